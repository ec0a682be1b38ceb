"""Functions without reductions of known shapes on CUDA: arithmetic element by element, copies into another order.

A thread computes neighbours along the last axis, as many as one load brings, and writes them at once; what it reads
side by side comes by vectors. TVM's own schedule has a thread for each element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.expressions import replaced
from tunehub.tir.guard import check_exact
from tunehub.tir.index_expressions import operator_name, parts_of
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    element_type,
    integer,
    is_static,
    parameter_bytes,
    parameters,
    reduces,
    symbolic,
)
from tunehub.tir.schedules import has_root, open_schedule, root_blocks, root_nodes
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, PrimExpr, SBlock, Schedule

NAME, VERSION, ALONE = "elementwise_vectors", 1, False
_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of a number
_VECTOR_BYTES = (16, 8, 4)
_THREADS = (256, 128, 64, 32)  # of a block
_BLOCKS = 2  # of each multiprocessor, at least, where blocks can be smaller
_CHOICE = "if_then_else"


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorTile:
    """``threads`` of a block; a thread has ``vector`` neighbours."""

    threads: int
    vector: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementWorkload:
    """``mod`` with no more steps than threads compute one after the other; ``total`` results, of which so many as a
    ``vector`` has lie side by side."""

    mod: IRModule
    total: int
    vector: int


def match(mod: IRModule, target: Target) -> ElementWorkload | None:
    """A function of known shapes without reductions, with one result, in floats, whose neighbours lie side by side in
    what it reads."""
    function = mod["main"]
    if not is_static(function) or not has_root(function):
        return None
    blocks = root_nodes(mod)
    given = {hash(each) for each in parameters(function)}
    written = [hash(buffer_of(region)) in given for block in blocks for region in block.writes]
    if (
        any(map(reduces, blocks))
        or written != [False] * (len(blocks) - 1) + [True]
        or not all(map(_is_by_place, blocks))
    ):
        return None
    floats = [
        str(buffer_kind(each).dtype) for each in parameters(function) if "int" not in str(buffer_kind(each).dtype)
    ]
    sizes = {_SIZES.get(dtype, 0) for dtype in floats}
    shape = [integer(axis.dom.extent) or 0 for axis in blocks[-1].iter_vars]
    if 0 in sizes or not shape:
        return None
    for each in (each // max(sizes) for each in _VECTOR_BYTES):
        if each > 1 and shape[-1] % each == 0 and _inlined(schedule := open_schedule(mod), each):
            return ElementWorkload(mod=schedule.mod, total=math.prod(shape), vector=each)
    return None


def candidates(workload: ElementWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """Blocks small enough that all multiprocessors have some."""
    vectors = workload.total // workload.vector
    enough = _BLOCKS * device.multiprocessors
    threads = next((each for each in _THREADS if vectors >= each * enough), _THREADS[-1])
    moved = parameter_bytes(workload.mod["main"])
    tile = VectorTile(threads=threads, vector=workload.vector)
    yield KernelCandidate(tile=tile, seconds=device.launches.moving + moved / device.bandwidth)


def build(workload: ElementWorkload, tile: VectorTile) -> Schedule:
    """The schedule. Raises GuardError where a thread writes what others write, and what TVM raises."""
    schedule = open_schedule(workload.mod)
    *steps, last = root_blocks(schedule)
    given = {hash(each) for each in parameters(workload.mod["main"])}
    # Step 1. Vectors of results to threads.
    copied = not steps and is_copy(schedule.get(last).body.value)
    written = last if copied else schedule.cache_write(last, 0, "local")
    *outer, along = schedule.get_loops(written)
    parts, vector = schedule.split(along, [None, tile.vector])
    blocks, thread = schedule.split(schedule.fuse(*outer, parts), [None, tile.threads])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(vector)
    # Step 2. What a copy reads are vectors already; arithmetic has them in registers.
    if not copied:
        schedule.compute_at(last, thread, preserve_unit_loops=True)
        schedule.unroll(schedule.get_loops(last)[-1])
        for step in reversed(steps):
            schedule.set_scope(step, 0, "local")
            schedule.compute_at(step, thread, preserve_unit_loops=True)
            copies = is_copy(schedule.get(step).body.value)
            (schedule.vectorize if copies else schedule.unroll)(schedule.get_loops(step)[-1])
        for block in (*steps, last):
            if not is_copy(schedule.get(block).body.value):
                _read_vectors(schedule, block, thread, given, tile.vector)
    check_exact(schedule.mod["main"])
    return schedule


def _read_vectors(schedule: Schedule, block: BlockRV, thread: LoopRV, given: set[int], vector: int) -> None:
    """What ``block`` reads side by side of parameters comes at once."""
    node = schedule.get(block)
    loads = list(loads_of(node.body.value))
    for at, region in enumerate(list(node.reads)):
        buffer = buffer_of(region)
        own = [load for load in loads if buffer_of(load).same_as(buffer)]
        if hash(buffer) not in given or not _are_one(own) or not _is_plain(own[0].indices[-1], node):
            continue
        if not _Neighbours(node, vector).are_side_by_side(own[0]):
            continue
        cached = schedule.cache_read(block, at, "local", consumer_blocks=[block])
        schedule.compute_at(cached, thread, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(cached)[-1])


def _is_plain(index: PrimExpr, block: SBlock) -> bool:
    """Whether TVM sees which neighbours an index of the last axis of ``block``, or of that and a number, reads."""
    last = block.iter_vars[-1].var
    return bool(index.same_as(last)) or (type(index).__name__ == "Add" and index.a.same_as(last))


def _is_seen(load: PrimExpr, block: SBlock) -> bool:
    """Whether TVM sees that neighbours load neighbours: it writes code that does not compile for eight others."""
    from tvm.tirx.analysis import undefined_vars

    last, (*before, index) = block.iter_vars[-1].var, load.indices
    return _is_plain(index, block) and not any(each.same_as(last) for at in before for each in undefined_vars(at))


def _inlined(schedule: Schedule, vector: int) -> bool:
    """Leave of the blocks the last, copies that arithmetic reads by vectors, and arithmetic that is read twice; False
    where results would not come by vectors of so many, or TVM refuses that."""
    try:
        *before, last = root_blocks(schedule)
        for block in reversed(before):
            readers = [schedule.get(each) for each in schedule.get_consumers(block)]
            if not _stays(schedule.get(block), readers, vector):
                schedule.compute_inline(block)
    except Exception:  # TVM raises many kinds
        return False
    return _by_vectors(schedule.get(last), vector)


def _stays(own: SBlock, readers: Sequence[SBlock], vector: int) -> bool:
    """Whether a thread computes what ``own`` writes before what reads it."""
    if not all(_at_its_place(each, own, vector) for each in readers):
        return False
    if is_copy(own.body.value):
        seen = all(_is_seen(load, own) for load in loads_of(own.body.value))
        return seen and _by_vectors(own, vector) and not any(is_copy(each.body.value) for each in readers)
    written = buffer_of(own.writes[0])
    loads = [load for each in readers for load in loads_of(each.body.value) if buffer_of(load).same_as(written)]
    return len(loads) > 1


def _by_vectors(block: SBlock, vector: int) -> bool:
    """Whether a copy's neighbours come from neighbours, and at least one operand of arithmetic does, where nothing that
    is chosen differs among them."""
    neighbours, loads = _Neighbours(block, vector), list(loads_of(block.body.value))
    found = [neighbours.are_side_by_side(load) for load in loads]
    extent = buffer_kind(buffer_of(block.writes[0])).shape[-1]
    if (integer(extent) or 1) % vector or not found or not neighbours.choose_alike(block.body.value):
        return False
    return all(found) if is_copy(block.body.value) else any(found)


def _at_its_place(reader: SBlock, own: SBlock, vector: int) -> bool:
    """Whether ``reader`` reads of what ``own`` writes one vector for each of its own."""
    written = buffer_of(own.writes[0])
    loads = [load for load in loads_of(reader.body.value) if buffer_of(load).same_as(written)]
    if not _are_one(loads) or not _is_plain(loads[0].indices[-1], reader):
        return False
    return _Neighbours(reader, vector).are_side_by_side(loads[0])


def _are_one(loads: Sequence[PrimExpr]) -> bool:
    """Whether all of some loads are of one element."""
    from tvm_ffi import structural_equal

    return bool(loads) and all(structural_equal(loads[0], each) for each in loads[1:])


class _Neighbours:
    """So many places along the last axis of a block, from a multiple of that on."""

    def __init__(self, block: SBlock, vector: int) -> None:
        import tvm
        from tvm import tirx

        self._vector, self._analyzer = vector, symbolic().Analyzer()
        axes = block.iter_vars
        for axis in axes[:-1]:
            self._analyzer.bind(axis.var, axis.dom)
        extent, kind = integer(axes[-1].dom.extent) or vector, element_type(axes[-1].var)
        part, lane = tirx.Var("part", kind), tirx.Var("lane", kind)
        self._analyzer.bind(part, tvm.ir.Range(0, max(extent // vector, 1)))
        self._analyzer.bind(lane, tvm.ir.Range(0, vector))
        self._last, self._lane = axes[-1].var, lane
        self._first, self._place = part * vector, part * vector + lane

    def are_side_by_side(self, load: PrimExpr) -> bool:
        """Whether neighbours read neighbours, the first at a place where vectors begin."""
        from tvm import tirx

        extent, (*before, last) = integer(buffer_kind(buffer_of(load)).shape[-1]) or 1, load.indices
        begins = self._analyzer.can_prove(tirx.floormod(self._at(last, self._first), self._vector) == 0)
        if extent % self._vector or not begins:
            return False
        same = all(self._is_same(index) for index in before)
        return same and bool(
            self._analyzer.can_prove(self._at(last, self._place) == self._at(last, self._first) + self._lane)
        )

    def choose_alike(self, value: PrimExpr) -> bool:
        """Whether all conditions in ``value`` are the same for neighbours."""
        if _is_choice(value) and not self._is_same(_condition(value)):
            return False
        return all(map(self.choose_alike, parts_of(value)))

    def _is_same(self, expression: PrimExpr) -> bool:
        first, any_ = (self._analyzer.simplify(self._at(expression, at)) for at in (self._first, self._place))
        from tvm.tirx.analysis import undefined_vars

        return not any(each.same_as(self._lane) for each in undefined_vars(any_)) or bool(first.same_as(any_))

    def _at(self, expression: PrimExpr, place: PrimExpr) -> PrimExpr:
        return replaced(expression, {hash(self._last): place})


def is_copy(value: PrimExpr) -> bool:
    """Whether a value is one of some elements, as they are."""
    kind = type(value).__name__
    if kind in LOADS:
        return True
    if not _is_choice(value):
        return kind in ("FloatImm", "IntImm")
    return all(is_copy(each) for each in _chosen(value))


def _is_choice(value: PrimExpr) -> bool:
    return type(value).__name__ == "Select" or (type(value).__name__ == "Call" and operator_name(value) == _CHOICE)


def _condition(value: PrimExpr) -> PrimExpr:
    return value.condition if type(value).__name__ == "Select" else value.args[0]


def _chosen(value: PrimExpr) -> Sequence[PrimExpr]:
    return (value.true_value, value.false_value) if type(value).__name__ == "Select" else list(value.args)[1:]


def loads_of(value: PrimExpr) -> Iterator[PrimExpr]:
    """The elements that ``value`` is computed from."""
    if type(value).__name__ in LOADS:
        yield value
        return
    for part in parts_of(value):
        yield from loads_of(part)


def _is_by_place(block: SBlock) -> bool:
    """Whether a block writes one element, at the place that its axes say."""
    body = block.body
    if type(body).__name__ != "BufferStore" or len(block.writes) != 1:
        return False
    axes = [axis.var for axis in block.iter_vars]
    return len(axes) == len(body.indices) and all(
        index.same_as(axis) for index, axis in zip(body.indices, axes, strict=True)
    )
