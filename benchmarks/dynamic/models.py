"""Networks with one open dimension, as ONNX files, and the sizes at which they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import numpy_helper

from benchmarks import untuned_networks
from tunehub_builder import networks
from tunehub_builder.networks import Network, onnx_model
from tunehub_builder.networks.bert import Bert, BertConfig

NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base")
_BATCHES, _LENGTHS = (1, 3, 8, 17), (1, 16, 63, 128, 384)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenModel:
    """The ONNX file ``path``, whose one input has the open dimension ``symbol`` at ``axis``; ``sizes`` to measure."""

    name: str
    path: Path
    symbol: str
    axis: int
    sizes: Sequence[int]

    def at(self, size: int) -> Network:
        """The network with the dimension fixed, read from the same file."""
        (given,) = onnx.load(self.path, load_external_data=False).graph.input
        shape = tuple(size if axis == self.axis else int(e) for axis, e in enumerate(onnx_model.shape_of(given) or ()))
        fixed = networks.from_onnx_file(self.path, shapes={given.name: shape})
        return replace(fixed, name=f"{self.name}_{size}")


def open_model(name: str, folder: Path, layers: int) -> OpenModel:
    """The network ``name`` in a file in ``folder``: encoders, of so many ``layers``, with an open sequence, others with
    an open batch. Raises UnknownNetworkError."""
    if name == "bert_base":
        return opened(Bert(config=BertConfig(layers=layers)).network(name), folder, "sequence", 1, _LENGTHS)
    return opened(untuned_networks.get(name, folder / "fixed"), folder, "batch", 0, _BATCHES)


def opened(network: Network, folder: Path, symbol: str, axis: int, sizes: Sequence[int]) -> OpenModel:
    """``network`` in a file in ``folder`` with the dimension ``axis`` of its input, and of all that is reshaped, open.

    Constant shapes of Reshape that have its extent there get ONNX's 0, which copies it, as exporters write them.
    """
    model = network.onnx_model()
    dimension = model.graph.input[0].type.tensor_type.shape.dim[axis]
    extent = dimension.dim_value
    dimension.dim_param = symbol
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in shapes:
            values = numpy_helper.to_array(tensor).copy()
            values[axis : axis + 1][values[axis : axis + 1] == extent] = 0
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx_model.forget_inferred_shapes(model)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{network.name}.onnx"
    onnx.save(model, path)
    return OpenModel(name=network.name, path=path, symbol=symbol, axis=axis, sizes=sizes)
