"""The networks tunehub tunes: a fixed list of standard ones, and any user's ``model.onnx``.

Each network is available twice with the same weights: as a Relax module for TVM and as an ONNX model for onnxruntime.
Importing this package imports neither tvm nor onnx; asking a network for a model does.
"""

from __future__ import annotations

from tunehub_builder.networks.exceptions import NetworkError, OnnxFileError, UnknownNetworkError
from tunehub_builder.networks.network import OPEN, Definition, Network
from tunehub_builder.networks.registry import from_onnx_file, get, get_open, names, open_onnx_file

__all__ = [
    "OPEN",
    "Definition",
    "Network",
    "NetworkError",
    "OnnxFileError",
    "UnknownNetworkError",
    "from_onnx_file",
    "get",
    "get_open",
    "names",
    "open_onnx_file",
]
