"""What a function of attention stores: its result, or what elementwise functions behind it, which fusion puts there,
make of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.tir.expressions import replaced
from tunehub.tir.guard import GuardError
from tunehub.tir.nodes import buffer_of, is_reduction, parameters, reduces, same_extents

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, PrimFunc, SBlock, Var


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """``value``, of parameters and of what attention adds up, at ``indices`` of ``buffer``. Both are in terms of the
    variables ``place``: where in the weighted sums the one is that the value reads."""

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    place: tuple[PrimExpr, ...]
    value: PrimExpr


def stored_by(function: PrimFunc, blocks: Iterable[SBlock], weighted: SBlock) -> Stored:
    """What ``function`` stores by ``blocks``, in their order: that of attention's result, and those that fusion added;
    ``weighted`` is the block of the weighted sums. Raises GuardError where one is not elementwise, or where several of
    them are stored."""
    values: dict[int, tuple[list[int], PrimExpr]] = {}
    given, kept = {hash(each) for each in parameters(function)}, []

    def element(buffer: Buffer, indices: list[PrimExpr]) -> PrimExpr | None:
        axes, value = values.get(hash(buffer), ([], None))
        return None if value is None else replaced(value, dict(zip(axes, indices, strict=True)))

    for block in blocks:
        buffer, value = buffer_of(block.writes[0]), replaced(_value_of(block), {}, element)
        values[hash(buffer)] = [hash(axis.var) for axis in block.iter_vars], value
        if hash(buffer) in given:
            kept.append((block, buffer, value))
    if len(kept) != 1:
        raise GuardError(f"{len(kept)} results of attention and what follows it are stored, and not one")
    block, buffer, value = kept[0]
    return Stored(
        buffer=buffer, indices=tuple(block.body.indices), place=_place_read(block, value, weighted), value=value
    )


def _value_of(block: Index) -> PrimExpr:
    """Of the axes of ``block``, where it is stored."""
    is_store = type(block.body).__name__ == "BufferStore"
    if not is_store or reduces(block) or not _are(block.body.indices, [axis.var for axis in block.iter_vars]):
        raise GuardError(f"{block.name_hint}, which is joined with attention, is not elementwise")
    return block.body.value


def _place_read(block: Index, value: PrimExpr, weighted: SBlock) -> tuple[PrimExpr, ...]:
    """Where the one weighted sum is that ``value`` reads: all axes of ``block``, in any order."""
    sums = buffer_of(weighted.writes[0])
    reads: list[list[PrimExpr]] = []
    replaced(value, {}, lambda buffer, indices: reads.append(indices) if buffer.same_as(sums) else None)
    extents = {hash(axis.var): axis.dom.extent for axis in block.iter_vars}
    first = reads[0] if reads else []
    found = [extents.pop(hash(index), -1) for index in first]
    whole = [axis.dom.extent for axis in weighted.iter_vars if not is_reduction(axis)]
    if extents or not same_extents(found, whole) or not all(_are(each, first) for each in reads):
        raise GuardError(f"{block.name_hint} is not elementwise in the result of attention")
    return tuple(first)


def _are(indices: Sequence[PrimExpr], axes: Sequence[Var]) -> bool:
    return len(indices) == len(axes) and all(index.same_as(axis) for index, axis in zip(indices, axes, strict=True))
