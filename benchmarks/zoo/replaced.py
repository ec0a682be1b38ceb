"""Architectures that were tried on 2026-11-22 and are not in the zoo in that form, and why."""

from __future__ import annotations

REPLACED = {
    "t5_encoder as an ONNX file": "PyTorch 2.15's ONNX exporter fails at a reshape; it is in the zoo as a program",
    "deberta_v2 as a program": "TVM's importer takes the logarithm of whole numbers; it is in the zoo as an ONNX file",
    "edgenext_x_small as a program": "TVM's importer divides float32 by int32 (floor_divide); as an ONNX file instead",
    "hiera_tiny_224": "PyTorch 2.15's ONNX exporter fails, and TVM's importer of programs has no amax",
    "mistral, qwen3 as programs": "TVM's importer fails on their masks' element types; as ONNX files instead",
    "encodec": "PyTorch's exporters fail: lengths of its paddings depend on tensors' values",
    "upernet with resnet50": "with random weights PyTorch's own float32 is 9e-5 from its float64: no reference",
    "torchvision's detectors with boxes": "the number of boxes depends on values; backbones and heads are in the zoo",
}
