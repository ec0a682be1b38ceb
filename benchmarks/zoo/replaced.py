"""Architectures that were tried and are not in the zoo in that form, and why."""

from __future__ import annotations

REPLACED = {
    "t5_encoder as an ONNX file": "PyTorch 2.15's ONNX exporter fails at a reshape; it is in the zoo as a program",
    "deberta_v2 as a program": "TVM's importer takes the logarithm of whole numbers; it is in the zoo as an ONNX file",
    "edgenext_x_small as a program": "TVM's importer divides float32 by int32 (floor_divide); as an ONNX file instead",
    "hiera_tiny_224 as a program": "TVM's importer has no amax; it is in the zoo as an ONNX file",
    "mistral, qwen3 as programs": "TVM's importer fails on their masks' element types; as ONNX files instead",
    "the whole of encodec": "random codebooks give the same codes for every sound; its encoder is in the zoo",
    "upernet with resnet50": "with random weights PyTorch's own float32 is 9e-5 from its float64: no reference",
    "torchvision's detectors with boxes": "the number of boxes depends on values; backbones and heads are in the zoo",
}
