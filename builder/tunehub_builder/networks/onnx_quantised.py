"""ONNX's operators on integers as float operators between DequantizeLinear and QuantizeLinear (QDQ form). No TVM.

TVM's importer has none of them; QDQ form it reads, and :mod:`tunehub.graph.quantised` makes integers of it again. The
results are the same up to the rounding of float32. Rewritten: ``QLinearConv``, ``QLinearMatMul``, ``ConvInteger``, and
what onnxruntime's quantiser writes in ``QOperator`` format beside them (domain ``com.microsoft``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

_Array = npt.NDArray[np.generic]
# Operators with one scale and zero point behind each tensor, those of the result at the end, and the float ones.
_ELEMENTWISE = {
    "QLinearAdd": "Add",
    "QLinearMul": "Mul",
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
}


def to_qdq(graph: onnx.GraphProto) -> None:
    """Rewrite the nodes of ``graph``, not those of inner graphs; those with scales that are no constants stay."""
    if not any(node.op_type in _RULES for node in graph.node):
        return
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = [new for node in graph.node for new in _IntegerOperator(node, graph, constants).nodes()]
    del graph.node[:]
    graph.node.extend(nodes)


class _IntegerOperator:
    """What takes the place of one node."""

    def __init__(self, node: onnx.NodeProto, graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]) -> None:
        self._node, self._graph, self._constants = node, graph, constants
        self._before: list[onnx.NodeProto] = []
        self._name = f"{node.output[0]}_qdq" if node.output else ""

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """The node itself where there is nothing to rewrite, or no way to."""
        rule = _RULES.get(self._node.op_type)
        written = None if rule is None else rule(self)
        yield from [self._node] if written is None else [*self._before, *written]

    def convolution(self) -> list[onnx.NodeProto] | None:
        """``QLinearConv``; its bias counts in products of the scales of data and weight."""
        x, weight, (scale, zero), bias = *self._pairs(2), self._input(6, 7), self._input(8)[0]
        scales = [self._constant(name) for name in (x[1], weight[1])]
        if any(each is None for each in scales):
            return None
        operands = [self._dequantised(*x), self._dequantised(*weight, axis=0)]
        if bias:
            product = np.asarray(scales[0]) * np.asarray(scales[1])
            operands.append(self._dequantised(bias, self._added("bias_scale", product.astype(np.float32)), "", axis=0))
        return self._computed("Conv", operands, (scale, zero))

    def integer_convolution(self) -> list[onnx.NodeProto] | None:
        """``ConvInteger``: scales of one, and a result of 32 bits."""
        (x, zero), (weight, weight_zero) = (self._input(at, at + 2) for at in (0, 1))
        one = self._added("one", np.ones((), np.float32))
        offsets = self._constant(weight_zero) if weight_zero else None
        if offsets is not None and offsets.size > 1:
            return None
        operands = [self._dequantised(x, one, zero), self._dequantised(weight, one, weight_zero)]
        result = f"{self._name}_float"
        return [
            helper.make_node("Conv", operands, [result], name=result, **self._attributes()),
            helper.make_node("Cast", [result], list(self._node.output), to=onnx.TensorProto.INT32),
        ]

    def product(self) -> list[onnx.NodeProto] | None:
        """``QLinearMatMul``; the second operand may have scales by column."""
        a, b = self._pairs(2)
        rows = self._constant(a[1])
        if rows is None or rows.size > 1 or self._constant(b[1]) is None:
            return None
        return self._computed("MatMul", [self._dequantised(*a), self._dequantised(*b, axis=1)], self._input(6, 7))

    def gemm(self) -> list[onnx.NodeProto] | None:
        """``QGemm``, whose result may stay float32."""
        a, b = self._pairs(2)
        (bias, scale), zero = self._input(6, 7), self._input(8)[0]
        scales, attributes = [self._constant(name) for name in (a[1], b[1])], self._attributes()
        if any(each is None for each in scales):
            return None
        outputs = 0 if attributes.get("transB", 0) else 1
        operands = [self._dequantised(*a), self._dequantised(*b, axis=outputs)]
        if bias:
            product = np.asarray(scales[0]) * np.asarray(scales[1]) * attributes.get("alpha", 1.0)
            operands.append(self._dequantised(bias, self._added("bias_scale", product.astype(np.float32)), "", axis=0))
        if scale:
            return self._computed("Gemm", operands, (scale, zero))
        return [helper.make_node("Gemm", operands, list(self._node.output), **attributes)]

    def elementwise(self) -> list[onnx.NodeProto] | None:
        """One or two tensors, each with its scale and zero point."""
        count = (len(self._node.input) - 2) // 3
        attributes = self._attributes()
        if attributes.pop("channels_last", 0):
            return None
        operands = [self._dequantised(*each) for each in self._pairs(count)]
        kind = _ELEMENTWISE[self._node.op_type]
        return self._computed(kind, operands, self._input(3 * count, 3 * count + 1), attributes)

    def concatenation(self) -> list[onnx.NodeProto] | None:
        """``QLinearConcat``: the scale and zero point of the result come first."""
        count = (len(self._node.input) - 2) // 3
        parts = [self._input(2 + 3 * at, 3 + 3 * at, 4 + 3 * at) for at in range(count)]
        operands = [self._dequantised(name, scale, zero) for name, scale, zero in parts]
        return self._computed("Concat", operands, self._input(0, 1))

    def _computed(
        self, kind: str, operands: Sequence[str], result: Sequence[str], attributes: dict[str, Any] | None = None
    ) -> list[onnx.NodeProto]:
        """The float operator, quantised by the scale and zero point of ``result``."""
        value = f"{self._name}_float"
        known = self._attributes() if attributes is None else attributes
        return [
            helper.make_node(kind, list(operands), [value], name=value, **known),
            helper.make_node("QuantizeLinear", [value, *filter(None, result)], list(self._node.output)),
        ]

    def _dequantised(self, name: str, scale: str, zero: str = "", axis: int | None = None) -> str:
        result = f"{self._name}_{len(self._before)}"
        inputs, known = [name, scale, *filter(None, [zero])], self._constant(scale)
        along = {"axis": axis} if axis is not None and known is not None and known.size > 1 else {}
        self._before.append(helper.make_node("DequantizeLinear", inputs, [result], name=result, **along))
        return result

    def _pairs(self, count: int) -> list[tuple[str, str, str]]:
        """The first ``count`` tensors with scale and zero point."""
        found = [self._input(3 * at, 3 * at + 1, 3 * at + 2) for at in range(count)]
        return [(name, scale, zero) for name, scale, zero in found]

    def _input(self, *places: int) -> list[str]:
        """The names at some places, empty where there is none."""
        names = list(self._node.input)
        return [names[at] if at < len(names) else "" for at in places]

    def _constant(self, name: str) -> _Array | None:
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _attributes(self) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in self._node.attribute}

    def _added(self, name: str, array: _Array) -> str:
        """A new constant."""
        full = f"{self._name}_{name}"
        self._graph.initializer.append(numpy_helper.from_array(array, full))
        return full


_RULES: dict[str, Callable[[_IntegerOperator], list[onnx.NodeProto] | None]] = {
    "QLinearConv": _IntegerOperator.convolution,
    "QLinearMatMul": _IntegerOperator.product,
    "ConvInteger": _IntegerOperator.integer_convolution,
    "QGemm": _IntegerOperator.gemm,
    "QLinearConcat": _IntegerOperator.concatenation,
    **dict.fromkeys(_ELEMENTWISE, _IntegerOperator.elementwise),
}
