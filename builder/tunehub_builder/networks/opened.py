"""Networks of fixed shapes with some of their dimensions open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper

from tunehub_builder.networks import onnx_model
from tunehub_builder.networks.exceptions import OnnxFileError
from tunehub_builder.networks.network import OPEN, Network

_AXES = MappingProxyType({"batch": 0, "sequence": 1})
_ENCODED = 3  # axes of the input of an encoder, the second of which is the sequence


@dataclass(frozen=True, kw_only=True)
class OpenedNetwork:
    """`network`, whose inputs have the open dimensions `axes`, by name."""

    network: Network
    axes: Mapping[str, int]

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        from tunehub_builder.networks.onnx_import import to_relax

        return to_relax(self.onnx_model(), self.network.name)

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`."""
        model = self.network.onnx_model()
        for name, axis in self.axes.items():
            open_axis(model, name, axis)
        return model


def opened(network: Network, dims: Mapping[str, tuple[int, ...]]) -> Network:
    """`network` with the dimensions that `dims` names open: the batch, and of encoders the sequence. With its own name
    and `_open`: beside records of the fixed shapes it is another network.

    Raises OnnxFileError where no name is one of its dimensions.
    """
    encoder = all(len(shape) == _ENCODED for shape in network.inputs.values())
    known = {name: axis for name, axis in _AXES.items() if encoder or name == "batch"}
    axes = {name: known[name] for name in dims if name in known}  # others are of other networks
    if not axes:
        asked = ", ".join(map(repr, dims))
        raise OnnxFileError(network.name, f"it has no dimension {asked}", f"Its dimensions are {', '.join(known)}")
    first = {axis: dims[name][0] for name, axis in axes.items()}
    inputs = {n: tuple(first.get(axis, e) for axis, e in enumerate(shape)) for n, shape in network.inputs.items()}
    return replace(
        network,
        name=f"{network.name}_open",
        source=f"{network.source}{OPEN}{', '.join(axes)}",
        inputs=inputs,
        dims={name: dims[name] for name in axes},
        definition=OpenedNetwork(network=network, axes=axes),
    )


def open_axis(model: onnx.ModelProto, name: str, axis: int) -> None:
    """Make the dimension `axis` of all inputs of `model`, of one extent, open, and of all that is reshaped.

    Constant shapes of Reshape that have its extent there get ONNX's 0, which copies it, as exporters write them.
    Constants that are concatenated with what has the dimension, such as a class token, are expanded to it.
    """
    dimensions = [value.type.tensor_type.shape.dim[axis] for value in model.graph.input]
    extent = dimensions[0].dim_value
    for dimension in dimensions:
        dimension.dim_param = name
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for tensor in model.graph.initializer:
        if tensor.name in shapes:
            values = numpy_helper.to_array(tensor).copy()
            values[axis : axis + 1][values[axis : axis + 1] == extent] = 0
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    _expand_constants(model.graph, axis, extent)
    onnx_model.forget_inferred_shapes(model)


def _expand_constants(graph: onnx.GraphProto, axis: int, extent: int) -> None:
    """Give constants that are concatenated along another axis the extent that the inputs of `graph` have at `axis`, as
    exporters write it."""
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.dims[axis : axis + 1] == [extent]}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Concat" and not constants.keys() >= set(node.input):
            (along,) = (attribute.i for attribute in node.attribute)
            for at, constant in [(at, constants[name]) for at, name in enumerate(node.input) if name in constants]:
                if along % len(constant.dims) != axis:
                    nodes += _expanded(graph, constant, axis)
                    node.input[at] = nodes[-1].output[0]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _expanded(graph: onnx.GraphProto, constant: onnx.TensorProto, axis: int) -> list[onnx.NodeProto]:
    """Nodes that repeat `constant` along `axis` for each of what the first input of `graph` has there."""
    name, dims = constant.name, np.array(constant.dims, dtype=np.int64)
    parts = {f"{name}_dims_before": dims[:axis], f"{name}_dims_behind": dims[axis + 1 :]}
    for part, values in parts.items():
        onnx_model.add_initializer(graph, part, values)
    before, behind = parts
    own, shape = f"{name}_extent", f"{name}_dims"
    return [
        helper.make_node("Shape", [graph.input[0].name], [own], start=axis, end=axis + 1),
        helper.make_node("Concat", [before, own, behind], [shape], axis=0),
        helper.make_node("Expand", [name, shape], [f"{name}_expanded"]),
    ]
