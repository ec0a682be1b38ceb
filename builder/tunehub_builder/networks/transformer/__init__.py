"""What the BERT encoder and the Vision Transformer share: a layer in Relax and in ONNX, and its weights."""
