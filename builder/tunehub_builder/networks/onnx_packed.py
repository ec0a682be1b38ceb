"""ONNX's weights of 4 and 8 bits in blocks, which TVM's importer does not read: ``MatMulNBits`` of onnxruntime, and
``DequantizeLinear`` with a ``block_size`` of constants. No TVM.

Both become one operator, ``PACKED``, of words [N, K * bits / 32] and scales [N, K / 32], whose result is a matrix
[K, N] or [N, K] for a product behind it: :func:`tunehub_builder.networks.onnx_import.to_relax` knows it. Scales of
longer blocks, of a multiple of 32, are repeated. Where blocks are others, or zero points differ, weights become floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

PACKED = "TunehubPackedWeights"
_GROUP, _WORD = 32, 32
_BYTE = 8
_BITS = (4, 8)
_SIGNED = {"int4": 4, "int8": 8}  # bits by types of numbers
_UNSIGNED = {"uint4": 4, "uint8": 8}
_Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _WeightBlocks:
    """Numbers [N, K] of ``bits``, unsigned; ``scales`` and ``zeros`` [N, blocks], each for ``block`` numbers of a row,
    or, with an ``order``, for those that it says."""

    numbers: _Array
    scales: _Array
    zeros: _Array
    bits: int
    block: int
    order: _Array | None = None

    def packed(self) -> tuple[_Array, _Array, int] | None:
        """Words, scales and whether numbers are centred on half of their range; None for others than these."""
        half = 2 ** (self.bits - 1)
        zero = self.zeros.flat[0]
        plain = (
            self.order is None and self.bits in _BITS and bool((self.zeros == zero).all()) and zero in (half, half - 1)
        )
        depth = self.numbers.shape[1]
        if not plain or self.block % _GROUP or depth % _GROUP:
            return None
        scales = np.repeat(self.scales, self.block // _GROUP, 1)[:, : depth // _GROUP]
        in_word = _WORD // self.bits
        shifts = (np.arange(in_word, dtype=np.uint32) * np.uint32(self.bits)).astype(np.uint32)
        parts = self.numbers.reshape(len(self.numbers), -1, in_word).astype(np.uint32) << shifts
        return np.bitwise_or.reduce(parts, axis=-1), np.ascontiguousarray(scales), int(zero == half)

    def floats(self) -> _Array:
        """The weights [N, K], in the type of scales."""
        kind = self.scales.dtype
        of = np.arange(self.numbers.shape[1]) // self.block if self.order is None else self.order
        return np.asarray((self.numbers.astype(kind) - self.zeros.astype(kind)[:, of]) * self.scales[:, of])


def with_packed_weights(graph: onnx.GraphProto) -> None:
    """Rewrite such nodes of ``graph``; those whose weights are no constants stay."""
    if not any(node.op_type in _RULES for node in graph.node):
        return
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        rule = _RULES.get(node.op_type)
        written = None if rule is None else rule(node, _Constants(graph, constants))
        nodes += [node] if written is None else written
    del graph.node[:]
    graph.node.extend(nodes)
    _drop_unused(graph, constants)


def _drop_unused(graph: onnx.GraphProto, before: dict[str, onnx.TensorProto]) -> None:
    """Leave out those constants of ``before`` that nothing reads any more."""
    inner = [each for node in graph.node for each in node.attribute if each.HasField("g") or each.graphs]
    used = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    if inner:
        return
    kept = [each for each in graph.initializer if each.name in used or each.name not in before]
    del graph.initializer[:]
    graph.initializer.extend(kept)


@dataclass(frozen=True, slots=True)
class _Constants:
    graph: onnx.GraphProto
    tensors: dict[str, onnx.TensorProto]

    def of(self, node: onnx.NodeProto, place: int) -> _Array | None:
        """What input number ``place`` is, where it is there and constant."""
        name = _input(node, place)
        return numpy_helper.to_array(self.tensors[name]) if name in self.tensors else None

    def known(self, node: onnx.NodeProto, *places: int) -> bool:
        """Whether inputs are constants or not there."""
        return all(_input(node, each) in ("", *self.tensors) for each in places)

    def add(self, name: str, array: _Array) -> str:
        """A constant."""
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def matrix(self, blocks: _WeightBlocks, result: str, *, transposed: bool) -> list[onnx.NodeProto]:
        """The nodes that make weights [N, K], or, ``transposed``, [K, N]; none where they are a constant."""
        found = blocks.packed()
        if found is None:
            floats = blocks.floats()
            self.add(result, np.ascontiguousarray(floats.T if transposed else floats))
            return []
        words, scales, centred = found
        names = [self.add(f"{result}_words", words), self.add(f"{result}_scales", scales)]
        attributes = {"bits": blocks.bits, "centred": centred, "transposed": int(transposed)}
        return [helper.make_node(PACKED, names, [result], name=result, **attributes)]


def _product(node: onnx.NodeProto, constants: _Constants) -> list[onnx.NodeProto] | None:
    """``MatMulNBits``."""
    places = range(1, 5)
    if not constants.known(node, *places) or constants.of(node, 1) is None:
        return None
    numbers, scales, zeros, order = (constants.of(node, each) for each in places)
    attributes = _attributes(node)
    outputs, depth = int(attributes["N"]), int(attributes["K"])
    bits, block = int(attributes.get("bits", 4)), int(attributes["block_size"])
    assert numbers is not None and scales is not None
    scales = scales.reshape(outputs, -1)
    zeros = _zeros(zeros, scales.shape, bits)
    blocks = _WeightBlocks(
        numbers=_unpacked(numbers.reshape(outputs, -1), bits)[:, :depth],
        scales=scales,
        zeros=zeros,
        bits=bits,
        block=block,
        order=None if order is None else order[:depth],
    )
    weights = f"{node.output[0]}_weights"
    made, bias = constants.matrix(blocks, weights, transposed=True), _input(node, 5)
    result = f"{node.output[0]}_product" if bias else node.output[0]
    made.append(helper.make_node("MatMul", [node.input[0], weights], [result], name=node.name))
    return [*made, helper.make_node("Add", [result, bias], list(node.output))] if bias else made


def _zeros(zeros: _Array | None, shape: tuple[int, ...], bits: int) -> _Array:
    """A zero point for each block."""
    if zeros is None:
        return np.full(shape, 2 ** (bits - 1))
    if zeros.dtype != np.uint8:
        return zeros.reshape(shape)
    return _unpacked(zeros.reshape(shape[0], -1), bits)[:, : shape[1]]


def _unpacked(packed: _Array, bits: int) -> _Array:
    """Numbers of bytes [N, M], the first in the lowest bits."""
    shifts = np.arange(0, _BYTE, bits, dtype=np.uint8)
    return np.asarray((packed[..., None] >> shifts) & np.uint8(2**bits - 1)).reshape(len(packed), -1)


def _dequantised(node: onnx.NodeProto, constants: _Constants) -> list[onnx.NodeProto] | None:
    """``DequantizeLinear`` of a matrix in blocks."""
    attributes = _attributes(node)
    block, axis = int(attributes.get("block_size", 0)), int(attributes.get("axis", 1))
    numbers, scales, zeros = (constants.of(node, each) for each in range(3))
    if not block or numbers is None or scales is None or numbers.ndim != 2 or not constants.known(node, 2):
        return None
    kind = str(numbers.dtype)
    bits, lift = {**_SIGNED, **_UNSIGNED}.get(kind), kind in _SIGNED
    if bits is None:
        return None
    raised = 2 ** (bits - 1) if lift else 0
    zeros = np.zeros(scales.shape, np.int32) if zeros is None else zeros
    whole, factors, points = (each.T if axis % 2 == 0 else each for each in (numbers, scales, zeros))
    blocks = _WeightBlocks(
        numbers=whole.astype(np.int32) + raised,
        scales=factors,
        zeros=points.astype(np.int32) + raised,
        bits=bits,
        block=block,
    )
    return constants.matrix(blocks, node.output[0], transposed=axis % 2 == 0)


_RULES: dict[str, Callable[[onnx.NodeProto, _Constants], list[onnx.NodeProto] | None]] = {
    "MatMulNBits": _product,
    "DequantizeLinear": _dequantised,
}


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}
