"""What makes calls of Relax attention, for CPUs, CUDA and quantised models alike: Relax's own operators, the softmax
between two products, and zeros in place of what a query without keys gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tunehub.tir.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr

OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")  # of tensors [batch, length, heads, depth]


def is_softmax(value: Expr) -> bool:
    """Whether ``value`` is a softmax along the last axis."""
    return operator_of(value) == "relax.nn.softmax" and int(value.attrs.axis) in (-1, len(shape_of(value) or ()) - 1)


def replaces_nan(where: Expr, value_of: Callable[[Expr], Expr], number_of: Callable[[Expr], float | None]) -> bool:
    """Whether ``where`` puts zeros in place of what is no number in its last argument, such as the weights of a query
    that has no key. ``value_of``: what a variable is bound to; ``number_of``: the number that a tensor is all of."""
    condition, zero, weights = where.args
    found = value_of(condition)
    same = operator_of(found) == "relax.isnan" and value_of(found.args[0]).same_as(value_of(weights))
    return bool(same) and number_of(zero) == 0


def operator_scale(call: Call, depth: int) -> float:
    """What Relax's own operator ``call`` multiplies scores with; ``depth``: of queries and keys."""
    scale = call.attrs.scale
    return 1 / math.sqrt(depth) if scale is None else float(getattr(scale, "value", scale))
