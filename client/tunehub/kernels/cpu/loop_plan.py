"""Which blocks of a function are inlined, and what kind of loops the others get (:mod:`tunehub.kernels.cpu.loops`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tunehub.kernels.cpu.access import Nest, Steps, goes_on, nest_of
from tunehub.kernels.cpu.base import size_of
from tunehub.tir.nodes import buffer_kind, buffer_of, parameters
from tunehub.tir.schedules import root_blocks

if TYPE_CHECKING:
    from tunehub.tir.types import Schedule

WIDE = 16  # results from which on a copy of an operand for the sake of vectors pays
_WORK = 1 << 16  # steps of a reduction from which on a copy at each run may pay
_LONG = 16  # steps of a reduction from which on sums side by side pay, although they are joined at the end
_CHEAP = 12  # operations that are not worth a buffer
_TWICE = 1.5  # reads of each element up to which it is computed where it is read
_REUSED = 32  # reads of each element of a padding from which on it is copied


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """``operand``: position among the regions that a block reads; ``axis``: the one that becomes the last.

    ``free``: the operand is a constant, packed when the function is compiled.
    """

    operand: int
    axis: int
    free: bool


Kind = Literal["map", "columns", "dots", "serial"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A block that has loops of its own. ``vector``: the loop in vectors; ``first``: the loop from which on those up to
    ``vector`` are one, because memory goes on from one to the next. ``follower``: the block computed on its tiles.
    ``packing``: how an operand is copied before, so that neighbours lie side by side.
    """

    kind: Kind
    nest: Nest
    vector: int | None
    first: int = 0
    follower: str | None = None
    packing: Packing | None = None

    @property
    def length(self) -> int:
        """Steps of the loop in vectors."""
        return 1 if self.vector is None else size_of(self.nest.extents[self.first : self.vector + 1])


# -- what is inlined


def inline_cheap(schedule: Schedule) -> tuple[str, ...]:
    """Inline the steps that cost less than a buffer; returns their names in order."""
    names = []
    for block in root_blocks(schedule):
        consumers = schedule.get_consumers(block)
        nest = nest_of(schedule, block) if consumers else None
        if nest is not None and not nest.reductions:
            reading = [nest_of(schedule, consumer) for consumer in consumers]
            if all(_worth_inlining(nest, consumer, len(consumers)) for consumer in reading):
                schedule.compute_inline(block)
                names.append(nest.name)
    return tuple(names)


def _worth_inlining(nest: Nest, consumer: Nest | None, consumers: int) -> bool:
    """True when ``consumer`` may compute elements of ``nest`` itself, as often as it reads them."""
    if consumer is None or (consumer.reductions and any(None in read for read in nest.reads)):
        return False
    again = consumer.iterations / nest.iterations
    if nest.calls and again > _TWICE:
        return False
    if nest.conditions and consumer.reductions:
        innermost = max((i for i, extent in enumerate(nest.extents) if extent > 1), default=0)
        return again < _REUSED and innermost not in nest.conditions
    cheap = not nest.calls and nest.operations <= _CHEAP
    return cheap or (consumers == 1 and again <= _TWICE)


# -- what kind of loops a block has


def stages_of(schedule: Schedule, nests: list[Nest]) -> tuple[Stage, ...]:
    """The stages in order; a block that follows a reduction element by element is part of it."""
    found: list[Stage] = []
    followers: set[str] = set()
    for i, nest in enumerate(nests):
        if nest.name in followers:
            continue
        kind, vector, packing = _plan(schedule, nest)
        follower = None
        consumers = [str(schedule.get(c).name_hint) for c in schedule.get_consumers(schedule.get_sblock(nest.name))]
        following = nests[i + 1] if i + 1 < len(nests) else None
        if following is not None and consumers == [following.name] and _follows(schedule, nest, following):
            follower = following.name
            followers.add(follower)
        after = following if follower else None
        first = vector or 0
        if vector is not None and packing is None:
            first = _first(nest, vector) if kind == "dots" else _first_result(schedule, nest, after, vector)
        found.append(Stage(kind=kind, nest=nest, vector=vector, first=first, follower=follower, packing=packing))
    return tuple(found)


def _follows(schedule: Schedule, nest: Nest, after: Nest) -> bool:
    """True when ``after`` reads each sum once, at the place where it writes its own result."""
    if not nest.reductions or nest.results > 1 or after.reductions or after.extents != nest.spatial or not nest.spatial:
        return False
    steps = _row_major(nest.spatial)
    position = _reads_of(schedule, nest.name, after.name)
    reads = [read for read, source in zip(after.reads, after.sources, strict=True) if source == position]
    return nest.write[: len(steps)] == steps == after.write and all(read == steps for read in reads)


def _reads_of(schedule: Schedule, source: str, reader: str) -> int:
    written = buffer_of(schedule.get(schedule.get_sblock(source)).writes[0])
    regions = schedule.get(schedule.get_sblock(reader)).reads
    return next((i for i, region in enumerate(regions) if buffer_of(region).same_as(written)), -1)


def _row_major(extents: tuple[int, ...]) -> Steps:
    return tuple(0 if extent == 1 else math.prod(extents[i + 1 :]) for i, extent in enumerate(extents))


def _plan(schedule: Schedule, nest: Nest) -> tuple[Kind, int | None, Packing | None]:
    """How a block is computed, which of its loops is in vectors, and what is copied for that."""
    kind, vector = _kind(nest)
    columns = range(len(nest.spatial) if nest.reductions and nest.results == 1 else 0)
    for column in sorted(columns, key=lambda i: (nest.write[i] != 1, -nest.spatial[i])):
        packing = _packing(schedule, nest, column)
        if packing is not None and _worth_packing(nest, kind, vector, column, packing):
            return "columns", column, packing
    return kind, vector, None


def _packing(schedule: Schedule, nest: Nest, column: int) -> Packing | None:
    """The copy of one operand after which all that is read along ``column`` lies side by side, if there is one."""
    apart = [i for i, read in enumerate(nest.reads) if read[column] not in (0, 1)]
    if column in nest.conditions or len(apart) != 1 or nest.sources.count(nest.sources[apart[0]]) != 1:
        return None
    read, shape = nest.reads[apart[0]], nest.shapes[apart[0]]
    axes = [i for i, step in enumerate(_row_major(shape)) if step == read[column] and shape[i] == nest.extents[column]]
    if len(axes) != 1 or None in read:
        return None
    operand = nest.sources[apart[0]]
    return Packing(operand=operand, axis=axes[0], free=_is_free(schedule, nest.name, operand))


def _worth_packing(nest: Nest, kind: Kind, vector: int | None, column: int, packing: Packing) -> bool:
    """True when vectors along ``column`` gain more than the copy of an operand costs, about two cycles an element."""
    width = 1 if vector is None else nest.extents[vector]
    if nest.extents[column] < WIDE or (kind == "columns" and _fills(width)):
        return False
    if not packing.free and nest.iterations < _WORK:
        return False
    read = next(i for i, source in enumerate(nest.sources) if source == packing.operand)
    copy = 0 if packing.free else 2 * size_of(nest.shapes[read])
    copy += 0 if nest.write[column] == 1 else 2 * size_of(nest.spatial)  # written one by one
    if kind == "dots":
        return copy < size_of(nest.spatial) * WIDE / 2
    return copy < nest.iterations / (2 if kind == "serial" else WIDE if 2 * width < WIDE else 128)


def _fills(extent: int) -> bool:
    """True when a loop of ``extent`` is vectors and little more."""
    return extent % WIDE == 0 or extent >= 4 * WIDE


def _is_free(schedule: Schedule, name: str, operand: int) -> bool:
    """True when an operand is a parameter that the compiler may lay out as it likes."""
    function = schedule.mod["main"]
    own = parameters(function)
    free = [own[int(i)] for i in (function.attrs or {}).get("layout_free_buffers", ()) if int(i) < len(own)]
    buffer = buffer_of(schedule.get(schedule.get_sblock(name)).reads[operand])
    return any(buffer.same_as(parameter) for parameter in free)


def _first(nest: Nest, vector: int) -> int:
    """The outermost of the reduction's loops that end with ``vector`` and run through memory as one.

    At most two are longer than 1: TVM takes the place in three apart so that it does not find the one loop again.
    """
    first = vector
    while first > len(nest.spatial) and _joins(nest, first, vector, nest.reads):
        first -= 1
    return first


def _joins(nest: Nest, first: int, vector: int, accesses: tuple[Steps, ...]) -> bool:
    """True when the loop before ``first`` and those from there to ``vector`` run through memory as one."""
    long = sum(extent > 1 for extent in nest.extents[first - 1 : vector + 1])
    return long <= 2 and all(goes_on(nest, access, first) for access in accesses)


def _first_result(schedule: Schedule, nest: Nest, after: Nest | None, vector: int) -> int:
    """The outermost of the loops over results that end with ``vector`` and run through memory as one.

    They stay apart where ``vector`` alone fills vectors.
    """
    written = buffer_kind(buffer_of(schedule.get(schedule.get_sblock(nest.name)).writes[0]))
    plain = nest.write[: len(nest.spatial)] == _row_major(nest.spatial) and len(written.shape) == len(nest.spatial)
    if not nest.reductions or not plain or vector != len(nest.spatial) - 1 or nest.extents[vector] % WIDE == 0:
        return vector
    first = vector
    accesses = (nest.write, *nest.reads, *(after.reads if after else ()))
    apart = nest.places | (after.places if after else frozenset())  # divisions would have to be done for each element
    while first > 0 and not {first, first - 1} & apart and _joins(nest, first, vector, accesses):
        first -= 1
    return first


def _kind(nest: Nest) -> tuple[Kind, int | None]:
    """How a block is computed, and which of its loops is in vectors."""
    column = next((i for i in range(len(nest.spatial)) if nest.write[i] == 1 and _side_by_side(nest, i)), None)
    column = None if nest.results > 1 else column  # registers for one result
    if not nest.reductions:
        return "map", None if nest.calls else column  # vectors would call exp for each element, and move it there
    first = len(nest.spatial)
    rows = [i for i in range(first, len(nest.extents)) if _side_by_side(nest, i) and any(r[i] == 1 for r in nest.reads)]
    dot = max(rows, key=lambda i: nest.extents[i], default=None)
    length = 0 if dot is None else size_of(nest.extents[_first(nest, dot) : dot + 1])
    if column is not None and (dot is None or nest.extents[column] >= min(WIDE // 2, length)):
        return "columns", column
    if dot is not None and length >= 4 and size_of(nest.reduction) >= _LONG:
        return "dots", dot
    return ("columns", column) if column is not None else ("serial", None)


def _side_by_side(nest: Nest, loop: int) -> bool:
    """True when all that is read along ``loop`` lies side by side, or is one element."""
    return nest.extents[loop] > 1 and loop not in nest.conditions and all(read[loop] in (0, 1) for read in nest.reads)
