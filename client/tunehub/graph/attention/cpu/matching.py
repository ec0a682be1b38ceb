"""What attention is made of in a graph, and whether its tensors fit together; CUDA's own walk is another
(docs/adr/0072-two-walks-to-attention.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.graph.quantised_tensors import QUANTIZE, affine_of, constant_of, dequantised
from tunehub.kernels.te.attention import OPERATIONS, Reordered, Rounding, Step
from tunehub.kernels.te.scales import Array
from tunehub.tir.nodes import (
    bound_value,
    integer,
    operator_of,
    permuted_axes,
    same_extent,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import Index, Mutator

_MOST_STEPS = 4  # between a product and its softmax, those of rounding not counted


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoresInGraph:
    """What a softmax is of: the ``product`` of queries and keys, the ``steps`` behind it, and the tensors in these."""

    product: Expr
    steps: tuple[Step | Rounding, ...]
    operands: tuple[Expr, ...]


def scores_of(graph: Mutator, expression: Expr) -> ScoresInGraph | None:
    """What scores ``expression`` is; None where it is none."""
    steps: list[Step | Rounding] = []
    operands: list[Expr] = []
    value = bound_value(graph, expression)
    while operator_of(value) != "relax.matmul":
        rounding = _rounding(graph, value)
        if rounding is not None:
            steps.append(rounding)
            value = bound_value(graph, bound_value(graph, value.args[0]).args[0])
            continue
        if operator_of(value) not in OPERATIONS:
            return None
        sides = [bound_value(graph, each) for each in value.args]
        inner = 0 if _leads_to_product(graph, sides[0]) else 1
        number, operand = number_of(constant_of(graph, sides[1 - inner])), None
        if number is None:
            operand = len(operands)
            operands.append(value.args[1 - inner])
        steps.append(Step(operator_of(value), number, operand, inner == 1))
        value = sides[inner]
    if sum(isinstance(step, Step) for step in steps) > _MOST_STEPS:
        return None
    return ScoresInGraph(product=value, steps=tuple(steps[::-1]), operands=tuple(operands))


def _rounding(graph: Mutator, value: Expr) -> Rounding | None:
    """What ``value`` is rounded to, where it is quantised and dequantised."""
    found = dequantised(graph, value)
    inner = bound_value(graph, found[0]) if found is not None else None
    if found is None or operator_of(inner) != QUANTIZE or affine_of(graph, inner) != found[1]:
        return None
    return Rounding(found[1], str(tensor_type(inner).dtype))


def _leads_to_product(graph: Mutator, value: Expr) -> bool:
    while operator_of(value) in OPERATIONS or _rounding(graph, value) is not None:
        inner = value if operator_of(value) in OPERATIONS else bound_value(graph, value.args[0])
        value = bound_value(graph, inner.args[0])
    return operator_of(value) == "relax.matmul"


def source_of(graph: Mutator, tensor: Expr) -> Reordered:
    """``tensor``, or what it is a transposition of."""
    value = bound_value(graph, tensor)
    axes = permuted_axes(value)
    if axes is None:
        return Reordered(tensor, tuple(range(len(shape_of(tensor) or ()))))
    return Reordered(value.args[0], tuple(axes))


def fit(q: Sequence[Index], k: Sequence[Index], v: Sequence[Index]) -> bool:
    """Whether these are shapes of queries, keys and values with the same heads and static depth."""
    if len({len(q), len(k), len(v)}) > 1 or len(q) < 2 or integer(q[-1]) is None or integer(v[-1]) is None:
        return False
    pairs = [*zip(q[:-2], k[:-2], strict=True), *zip(q[:-2], v[:-2], strict=True), (q[-1], k[-2]), (k[-1], v[-2])]
    return all(same_extent(*pair) for pair in pairs)


def broadcasts(tensor: Expr, whole: Sequence[Index]) -> bool:
    """Whether a tensor can be combined with scores of the shape ``whole``."""
    shape = shape_of(tensor)
    if shape is None or not 0 < len(shape) <= len(whole) or str(tensor_type(tensor).dtype) != "float32":
        return False
    return all(
        integer(extent) == 1 or same_extent(extent, other)
        for extent, other in zip(shape[::-1], whole[::-1], strict=False)
    )


def number_of(constant: Array | None) -> float | None:
    """The number that a constant of floating point with one element is."""
    if constant is None or constant.size != 1 or not np.issubdtype(constant.dtype, np.floating):
        return None
    return float(np.float32(constant.item()))
