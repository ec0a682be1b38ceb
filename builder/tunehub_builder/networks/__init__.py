"""The networks tunehub tunes: a fixed list of standard ones, and any user's ``model.onnx``.

Each network is available twice with the same weights: as a Relax module for TVM and as an ONNX model for onnxruntime.
Importing this package imports neither tvm nor onnx; asking a network for a model does.
"""

from __future__ import annotations

from tunehub_builder.networks.exceptions import ModelFileError, NetworkError, OnnxFileError, UnknownNetworkError
from tunehub_builder.networks.network import OPEN, Definition, ImportedModel, Network, Precision, UserModel
from tunehub_builder.networks.registry import (
    from_onnx_file,
    get,
    get_open,
    in_precision,
    is_known,
    names,
    open_model_file,
    open_onnx_file,
)

__all__ = [
    "OPEN",
    "Definition",
    "ImportedModel",
    "ModelFileError",
    "Network",
    "NetworkError",
    "OnnxFileError",
    "Precision",
    "UnknownNetworkError",
    "UserModel",
    "from_onnx_file",
    "get",
    "get_open",
    "in_precision",
    "is_known",
    "names",
    "open_model_file",
    "open_onnx_file",
]
