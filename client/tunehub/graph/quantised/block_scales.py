"""Floats of 8 bits with a scale for each block of them, as graphs make float32 of them: ``astype(x, "float32")`` times
``repeat(scales, 128, axis)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tunehub.kernels.cuda.gemm.matmul import FLOAT8
from tunehub.tir.nodes import operator_of, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Expr

BLOCK = 128  # numbers along an axis that have one scale


class BlockScaled(NamedTuple):
    """``numbers`` of 8 bits, and ``scales`` of blocks of them."""

    numbers: Expr
    scales: Expr


def block_scaled(value: Expr, bound: Callable[[Expr], Expr], axes: Mapping[int, int]) -> BlockScaled | None:
    """What ``value``, in float32, is made of, where it has a scale for as many numbers along each axis as ``axes``
    says; None for others. ``bound``: the call that a variable is bound to, None for parameters."""
    product = _made_by(value, bound, "relax.multiply")
    if product is None:
        return None
    for one, other in (product.args, reversed(product.args)):
        cast = _made_by(one, bound, "relax.astype")
        if cast is None or str(tensor_type(cast.args[0]).dtype) not in FLOAT8:
            continue
        scales, repeats = _repeated(other, bound)
        if repeats == dict(axes) and str(tensor_type(scales).dtype) == "float32":
            return BlockScaled(cast.args[0], scales)
    return None


def _repeated(value: Expr, bound: Callable[[Expr], Expr]) -> tuple[Expr, dict[int, int]]:
    """What is repeated along axes to make ``value``, and how often."""
    found: dict[int, int] = {}
    while (call := _made_by(value, bound, "relax.repeat")) is not None and call.attrs.axis is not None:
        value, dimensions = call.args[0], len(shape_of(value) or ())
        axis = int(call.attrs.axis) % dimensions
        found[axis] = found.get(axis, 1) * int(call.attrs.repeats)
    return value, found


def _made_by(value: Expr, bound: Callable[[Expr], Expr], operator: str) -> Expr | None:
    call = bound(value) if type(value).__name__ in ("Var", "DataflowVar") else value
    return call if call is not None and operator_of(call) == operator else None
