"""SiLU of the first half along the last axis, and the second half, of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.nodes import bound_value, integers, operator_of

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import Mutator

_RANK = 3


def gated_halves(mutator: Mutator, gate: Expr, up: Expr) -> tuple[Expr, int] | None:
    """Of what these are SiLU of the first half along the last axis, and the second half; and how long one is."""
    silu: Expr = bound_value(mutator, gate)
    if operator_of(silu) != "relax.nn.silu":
        return None
    first, second = _part(mutator, silu.args[0]), _part(mutator, up)
    if first is None or second is None or not first[0].same_as(second[0]):
        return None
    half = first[2]
    return (first[0], half) if (first[1], *second[1:]) == (0, half, 2 * half) else None


def _part(mutator: Mutator, value: Expr) -> tuple[Expr, int, int] | None:
    """What ``value`` is a slice of along the last axis, from where and up to where."""
    call: Expr = bound_value(mutator, value)
    if operator_of(call) != "relax.strided_slice":
        return None
    axes, begin, end, *strides = (integers(each, lambda own: bound_value(mutator, own)) for each in call.args[1:])
    last = axes in ([_RANK - 1], [-1]) and strides in ([], [[1]])
    return (call.args[0], begin[0], end[0]) if last and begin and end else None
