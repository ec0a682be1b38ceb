"""Queries, keys and values that are products of the same rows with constant weights: one product in place of three,
which fills a GPU better and is launched once. Attention reads its parts where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax, tirx

from tunehub.graph.attention.recognition import FoundAttention
from tunehub.graph.tensor_views import wide
from tunehub.tir.expressions import replaced
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    element_type,
    is_constant,
    operator_of,
    shape_of,
    static_shape,
    tensor_type,
    transposed_matrix,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Constant, Expr
    from tunehub.tir.types import Array, Buffer, BufferLoad, Mutator, PrimExpr

_HALF = "float16"  # records of float32 are of products that are apart


@dataclass(frozen=True, slots=True)
class _Linear:
    """``rows · weight + bias``."""

    rows: Expr
    weight: Array  # an array [K, N]
    bias: Expr | None


def with_one_product(mutator: Mutator, found: FoundAttention) -> FoundAttention:
    """``found`` with one product for all its queries, keys and values, written by ``mutator``; as it is where these are
    no products in half precision of the same rows with constants."""
    from_memory = [_memory(each) for each in (found.query, found.key, found.value)]
    places = [next(n for n, each in enumerate(found.memory) if each.same_as(memory)) for memory in from_memory]
    if len({*places}) < len(places) or found.operand != _HALF:
        return found
    parts = [_linear(mutator, found.tensors[at]) for at in places]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not _belong_together(known):
        return found
    whole = _product(mutator, known)
    return _reading(found, places, whole, [part.weight.shape[1] for part in known])


def _memory(load: BufferLoad) -> Buffer:
    seen: list[Expr] = []
    replaced(load, {}, lambda buffer, _: seen.append(buffer))
    return seen[0]


def _linear(mutator: Mutator, tensor: Expr) -> _Linear | None:
    value, bias = bound_value(mutator, tensor), None
    if operator_of(value) == "relax.add":
        biases = [_constant(mutator, each) for each in value.args]
        bias, value = (
            next((each for each in biases if each is not None and each.ndim == 1), None),
            bound_value(mutator, value.args[0 if biases[0] is None else 1]),
        )
        if bias is None:
            return None
    if operator_of(value) != "relax.matmul" or str(tensor_type(value).dtype) != _HALF:
        return None
    weight = _constant(mutator, value.args[1])
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[1:]):
        return None
    return _Linear(value.args[0], weight, bias)


def _constant(mutator: Mutator, expression: Expr) -> Constant | None:
    """The array that an expression is, or the transpose of."""
    source = transposed_matrix(mutator, expression)
    if source is not None:
        inner = _constant(mutator, source)
        return None if inner is None else inner.T
    value = bound_value(mutator, expression)
    return constant_array(value) if is_constant(value) else None


def _belong_together(parts: Sequence[_Linear]) -> bool:
    first = parts[0]
    same = all(part.rows.same_as(first.rows) for part in parts)
    return same and len({part.bias is None for part in parts}) == 1 and static_shape(first.rows) is not None


def _product(mutator: Mutator, parts: Sequence[_Linear]) -> Expr:
    emit = mutator.builder_.emit
    weight = relax.const(np.concatenate([part.weight for part in parts], axis=1), _HALF)
    whole = emit(relax.op.matmul(parts[0].rows, weight))
    if parts[0].bias is None:
        return whole
    return emit(relax.op.add(whole, relax.const(np.concatenate([part.bias for part in parts]), _HALF)))


def _reading(found: FoundAttention, places: Sequence[int], whole: Expr, widths: Sequence[int]) -> FoundAttention:
    """``found``, reading its three tensors side by side in ``whole``."""
    memory = tirx.decl_buffer([wide(extent) for extent in shape_of(whole) or ()], _HALF, "qkv")
    starts = dict(zip(places, accumulate(widths, initial=0), strict=False))
    shifts = {hash(found.memory[at]): start for at, start in starts.items()}

    def element(buffer: Buffer, indices: list[PrimExpr]) -> PrimExpr | None:
        start = shifts.get(hash(buffer))
        if start is None:
            return None
        last = indices[-1] + tirx.const(start, element_type(indices[-1])) if start else indices[-1]
        return tirx.BufferLoad(memory, [*indices[:-1], last])

    others = [at for at, _ in enumerate(found.tensors) if at not in places]
    return replace(
        found,
        tensors=(whole, *(found.tensors[at] for at in others)),
        memory=(memory, *(found.memory[at] for at in others)),
        query=replaced(found.query, {}, element),
        key=replaced(found.key, {}, element),
        value=replaced(found.value, {}, element),
    )
