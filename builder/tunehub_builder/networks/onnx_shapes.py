"""Rewrites of ONNX models, none of which changes a result, without which TVM's importer loses shapes. No TVM.

Exporters write masks of attention so: ``Range(0, n, 1)`` for a dimension ``n``, which the importer gives a length of
its own, so that no later broadcast and no Reshape knows its shape; and ``ConstantOfShape`` of no dimension, which it
refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

_VIEWS = frozenset({"Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})


def keep_shapes(graph: onnx.GraphProto) -> None:
    """Rewrite the nodes of ``graph``, not those of inner graphs."""
    values = _GraphValues.of(graph)
    nodes = [new for node in graph.node for new in _rewritten(node, values, graph)]
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _GraphValues:
    """The constants of a graph and the nodes that give the other tensors, by name."""

    constants: Mapping[str, npt.NDArray[np.generic]]
    producers: Mapping[str, onnx.NodeProto]

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> _GraphValues:
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            tensor = next((a.t for a in node.attribute if a.name == "value"), None)
            constants |= {node.output[0]: tensor} if node.op_type == "Constant" and tensor is not None else {}
        small = {name: tensor for name, tensor in constants.items() if int(np.prod(tensor.dims)) <= 1}
        return cls(
            constants={name: numpy_helper.to_array(tensor) for name, tensor in small.items()},
            producers={output: node for node in graph.node for output in node.output},
        )

    def is_number(self, name: str, number: int) -> bool:
        """Whether a tensor is this number, of 64 bits."""
        found = self.constants.get(name)
        return found is not None and found.dtype == np.int64 and found.size == 1 and bool(np.all(found == number))

    def is_extent(self, name: str) -> bool:
        """Whether a number is read from a shape, so that it is not negative."""
        node = self.producers.get(name)
        while node is not None and node.op_type in _VIEWS:
            node = self.producers.get(node.input[0])
        return node is not None and node.op_type == "Shape"


def _rewritten(node: onnx.NodeProto, values: _GraphValues, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    if node.op_type == "ConstantOfShape" and getattr(values.constants.get(node.input[0]), "shape", None) == (0,):
        value = next((numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"), np.float32(0))
        tensor = numpy_helper.from_array(np.asarray(value).reshape(()), node.output[0])
        return [helper.make_node("Constant", [], [node.output[0]], value=tensor)]
    if node.op_type != "Range":
        return [node]
    start, limit, step = node.input
    if values.is_number(start, 0) and values.is_number(step, 1) and values.is_extent(limit):
        return _with_length(node, limit, graph)
    return [node]


def _with_length(node: onnx.NodeProto, length: str, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """A range from 0 by 1, as long as its limit is large."""
    (output,) = node.output
    axis, vector, numbers = (f"{output}_{what}" for what in ("axis", "length", "numbers"))
    graph.initializer.append(numpy_helper.from_array(np.array([0], "int64"), axis))
    node.output[0] = numbers
    unsqueeze = helper.make_node("Unsqueeze", [length, axis], [vector], name=vector)
    return [node, unsqueeze, helper.make_node("Reshape", [numbers, vector], [output], name=output)]
