"""Elementwise functions in half precision of an unknown number of rows on CUDA, such as SiLU times another part of a
row: a thread reads, computes and writes eight neighbours at once. TVM's own schedule has a thread for each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.open_function import open_function
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, parameters, reduces
from tunehub.tir.schedules import open_schedule, root_blocks
from tunehub.tir.symbols import largest_probes
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimExpr, SBlock, Schedule, Var

NAME = "elementwise"
VECTOR = 8  # elements of two bytes
_THREADS = (256, 224, 192, 160, 128)  # of a block: as many as divide the vectors of a row


@dataclass(frozen=True, slots=True)
class VectorSchedule:
    """A module with the scheduled function as ``main``."""

    mod: IRModule


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> VectorSchedule | None:
    """A schedule of ``mod``, one PrimFunc ``main`` with open axes; None where that is no such function. Raises
    GuardError for what would be wrong, and what TVM raises."""
    function = mod["main"]
    schedule = by_vectors(mod) if open_function(function) is not None else None
    if schedule is None:
        return None
    scheduled = schedule.mod["main"]
    check_function(scheduled, function, target, largest_probes(scheduled))
    return VectorSchedule(schedule.mod)


def by_vectors(mod: IRModule) -> Schedule | None:
    """As :func:`open_sizes`, not checked."""
    schedule = open_schedule(mod)
    found = root_blocks(schedule)
    blocks = [schedule.get(block) for block in found]
    given = {hash(each) for each in parameters(mod["main"])}
    *before, last = found
    threads = vector_threads(blocks[-1])
    if threads is None or any(map(reduces, blocks)) or not all(_is_plain(each) for each in blocks):
        return None
    copies = [at for at, block in enumerate(blocks[:-1]) if _copies(block, given)]
    if not copies or any(hash(buffer_of(block.writes[0])) in given for block in blocks[:-1]):
        return None
    for at, block in enumerate(before):
        if at not in copies:
            schedule.compute_inline(block)
    written = schedule.cache_write(last, 0, "local")
    *outer, along = schedule.get_loops(written)
    parts, inside, vector = schedule.split(along, [None, threads, VECTOR])
    schedule.bind(schedule.fuse(*outer), "blockIdx.x")
    schedule.bind(parts, "blockIdx.y")
    schedule.bind(inside, "threadIdx.x")
    schedule.vectorize(vector)
    schedule.compute_at(last, inside)
    schedule.unroll(schedule.get_loops(last)[-1])
    for at in reversed(copies):
        schedule.set_scope(before[at], 0, "local")
        schedule.compute_at(before[at], inside)
        schedule.vectorize(schedule.get_loops(before[at])[-1])
    return schedule


def vector_threads(block: SBlock) -> int | None:
    """Of a block of threads for a row of the results of ``block``; None where vectors do not divide it."""
    length, dtype = integer(block.iter_vars[-1].dom.extent), str(buffer_kind(buffer_of(block.writes[0])).dtype)
    if length is None or length % VECTOR or dtype not in ("float16", "bfloat16"):
        return None
    return next((threads for threads in _THREADS if length // VECTOR % threads == 0), None)


def _is_plain(block: SBlock) -> bool:
    """Whether a block writes an element of one buffer at the place that its axes say."""
    body = block.body
    if type(body).__name__ != "BufferStore" or len(block.writes) != 1:
        return False
    axes = [axis.var for axis in block.iter_vars]
    return len(body.indices) == len(axes) and all(
        one.same_as(axis) for one, axis in zip(body.indices, axes, strict=True)
    )


def _copies(block: SBlock, given: set[int]) -> bool:
    """Whether a block copies neighbours of a row of a parameter that begin where vectors can."""
    value = block.body.value
    if type(value).__name__ not in LOADS or hash(buffer_of(value)) not in given:
        return False
    buffer, at, last = buffer_kind(buffer_of(value)), value.indices[-1], block.iter_vars[-1].var
    same_type = str(buffer.dtype) == str(buffer_kind(buffer_of(block.writes[0])).dtype)
    width, begin = integer(buffer.shape[-1]), 0 if at.same_as(last) else _added_to(at, last)
    return same_type and width is not None and width % VECTOR == 0 and begin is not None and begin % VECTOR == 0


def _added_to(index: PrimExpr, variable: Var) -> int | None:
    """The number that ``index`` adds to ``variable``; None for other indices."""
    if type(index).__name__ != "Add" or not index.a.same_as(variable):
        return None
    return integer(index.b)
