"""Padding that a trace adds to a reduction, checked before TVM applies it.

``PadEinsum`` fills up with zeros, and sums go over them, whatever a block makes of a zero: the square of how far it is
from a mean, or an index. Only where a zero gives nothing to the sum, as in a sum of products, results stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.tir.guard import GuardError
from tunehub.tir.nodes import buffer_of, integer, is_reduction
from tunehub.tir.symbols import variables_in
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, SBlock

_FACTORS = ("Mul", "And")
_SUMS = ("Add", "Sub", "Max", "Min")


def check_padding(block: SBlock, multiples: Sequence[int]) -> None:
    """Raise GuardError when the axes of ``block`` cannot be padded to ``multiples`` of elements."""
    axes = list(zip(block.iter_vars, multiples, strict=True))
    padded = {hash(axis.var) for axis, size in axes if is_reduction(axis) and _grows(integer(axis.dom.extent), size)}
    if padded and not _adds_nothing(block, padded):
        raise GuardError(f"the block {block.name_hint} would reduce zeros, which change its result")


def _grows(extent: int | None, size: int) -> bool:
    return extent is None or size < 1 or extent % size != 0


def _adds_nothing(block: SBlock, padded: set[int]) -> bool:
    """Whether ``block`` is a sum to which zeros in place of what it reads along ``padded`` axes add nothing."""
    store = block.body
    if type(store).__name__ != "BufferStore" or type(store.value).__name__ != "Add":
        return False
    operands = [store.value.a, store.value.b]
    own = [each for each in operands if type(each).__name__ in LOADS and buffer_of(each).same_as(store.buffer)]
    others = [each for each in operands if not any(each is found for found in own)]
    return len(own) == 1 and len(others) == 1 and _is_zero(others[0], padded)


def _is_zero(value: PrimExpr, padded: set[int]) -> bool:
    """Whether ``value`` is zero where all that is read along ``padded`` axes is."""
    kind = type(value).__name__
    if kind in LOADS:
        return not padded.isdisjoint(map(hash, variables_in(list(value.indices))))
    if kind in ("FloatImm", "IntImm"):
        return float(value.value) == 0.0
    if kind == "Cast":
        return _is_zero(value.value, padded)
    if kind in _FACTORS:
        return _is_zero(value.a, padded) or _is_zero(value.b, padded)
    return kind in _SUMS and _is_zero(value.a, padded) and _is_zero(value.b, padded)
