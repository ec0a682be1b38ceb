"""Matmuls with weights that are read as they lie, [N, K] (:mod:`tunehub.kernels.te.nt_dense`).

A tile of ``rows`` × ``columns`` results has a vector of sums for each, in registers while the reduction runs; a step
of that loads a vector of each row and of each column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tunehub.kernels.cpu.base import (
    FLOAT_BYTES,
    Block,
    Knobs,
    Machine,
    anchor_at,
    is_map,
    refusing,
    require,
    size_of,
    worth_threads,
)
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.fusion import inline
from tunehub.kernels.cpu.lane_sums import sum_lanes
from tunehub.kernels.te.nt_dense import SUMS, TOTAL
from tunehub.tir.schedules import open_schedule, unroll_and_vectorize

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, Schedule

_MOST_ROWS, _MOST_COLUMNS = 8, 8
_LATENCY = 8  # vectors of sums that hide what a multiply-add takes


@dataclass(frozen=True, kw_only=True, slots=True)
class NtDenseWorkload:
    """``leading``: extents of the result but its last, which is ``outputs``; ``depth``: K, in vectors of ``lanes``.
    ``producers`` are inlined, ``consumers`` computed on tiles of results."""

    leading: tuple[int, ...]
    outputs: int
    depth: int
    lanes: int
    producers: tuple[str, ...]
    consumers: tuple[str, ...]

    @property
    def axis(self) -> int:
        """The axis along which tiles have rows: the last that is longer than 1."""
        return max((at for at, extent in enumerate(self.leading) if extent > 1), default=len(self.leading) - 1)

    @property
    def length(self) -> int:
        """Of that axis."""
        return self.leading[self.axis]

    @property
    def flops(self) -> int:
        """Two for each multiply-add."""
        return 2 * size_of(self.leading) * self.outputs * self.depth * self.lanes

    @property
    def bytes_moved(self) -> int:
        """Of the weights."""
        return FLOAT_BYTES * self.outputs * self.depth * self.lanes


class NtDenseKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``rows`` × ``columns`` results of a tile. ``parallel``: use the thread pool."""

    rows: Annotated[int, Meta(ge=1, le=_MOST_ROWS)]
    columns: Annotated[int, Meta(ge=1, le=_MOST_COLUMNS)]
    parallel: bool = True


NAME, VERSION, KNOBS = "nt_dense", 1, NtDenseKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> NtDenseWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when it is no such matmul, with maps around it."""
    sums, total = (anchor_at(blocks, name) for name in (SUMS, TOTAL))
    if sums is None or total is None or len(blocks[sums].reduction) != 1:
        return None
    after = [block for block in blocks[total + 1 :] if block.sources]
    others = [block for at, block in enumerate(blocks) if at not in (sums, total)]
    if not all(map(is_map, others)) or not all(b.direct and b.spatial == blocks[total].spatial for b in after):
        return None
    *leading, outputs, lanes = blocks[sums].spatial
    return NtDenseWorkload(
        leading=tuple(leading),
        outputs=outputs,
        depth=blocks[sums].reduction[0],
        lanes=lanes,
        producers=tuple(block.name for block in others if block not in after),
        consumers=tuple(block.name for block in after),
    )


def knob_space(workload: NtDenseWorkload, machine: Machine) -> list[NtDenseKnobs]:
    """The choices worth measuring, the default's first."""
    found = {default_knobs(workload, machine): None}
    for rows, columns in _tiles(workload, machine):
        found.setdefault(NtDenseKnobs(rows=rows, columns=columns, parallel=_parallel(workload, machine)))
    return list(found)


def default_knobs(workload: NtDenseWorkload, machine: Machine) -> NtDenseKnobs:
    """The tile with the fewest loads for a multiply-add, of those that hide its latency."""

    def loads(tile: tuple[int, int]) -> tuple[float, int]:
        rows, columns = tile
        few = max(1.0, _LATENCY / (rows * columns))
        return few * (rows + columns) / (rows * columns), -rows

    rows, columns = min(_tiles(workload, machine), key=loads)
    return NtDenseKnobs(rows=rows, columns=columns, parallel=_parallel(workload, machine))


def _tiles(workload: NtDenseWorkload, machine: Machine) -> list[tuple[int, int]]:
    rows, columns = divisors(workload.length, _MOST_ROWS), divisors(workload.outputs, _MOST_COLUMNS)
    vectors = -(-workload.lanes // machine.vector)
    fits = [(r, c) for r in rows for c in columns if (r * c + r + 1) * vectors <= machine.registers]
    return fits or [(1, 1)]


def _parallel(workload: NtDenseWorkload, machine: Machine) -> bool:
    return worth_threads(workload.flops, workload.bytes_moved, machine)


@refusing
def apply(mod: IRModule, workload: NtDenseWorkload, knobs: NtDenseKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    require(workload.length % knobs.rows == 0, f"rows: {knobs.rows} does not divide {workload.length}")
    require(workload.outputs % knobs.columns == 0, f"columns: {knobs.columns} does not divide {workload.outputs}")
    # Step 1. Producers and all but the last consumer are inlined.
    schedule = open_schedule(mod)
    sums, total = schedule.get_sblock(SUMS), schedule.get_sblock(TOTAL)
    for name in (*workload.producers, *workload.consumers[:-1]):
        inline(schedule, name)
    follows = workload.consumers[-1:]
    last = schedule.get_sblock(follows[0]) if follows else schedule.cache_write(total, 0, "global")
    # Step 2. Register tiles of rows times columns; columns first among threads, as weights are read once.
    *leading, column = schedule.get_loops(last)
    leading[workload.axis], rows = schedule.split(leading[workload.axis], [None, knobs.rows])
    outer, columns = schedule.split(column, [None, knobs.columns])
    schedule.reorder(outer, *leading, rows, columns)
    shared = schedule.fuse(outer, *leading)
    for block in (total, sums):
        schedule.compute_at(block, shared, preserve_unit_loops=True)
    if knobs.parallel:
        schedule.parallel(shared)
    # Step 3. A vector of partial sums for each result of a tile, zeroed before the reduction.
    unroll_and_vectorize(schedule, [rows, columns])
    _accumulate(schedule, sums)
    # Step 4. The lanes of each vector are added up.
    for loop in schedule.get_loops(total)[1:-1]:
        schedule.unroll(loop)
    sum_lanes(schedule, total)
    return schedule


def _accumulate(schedule: Schedule, sums: BlockRV) -> None:
    """The reduction outside of the tile."""
    _, *tile, step = schedule.get_loops(sums)
    schedule.reorder(step, *tile)
    unroll_and_vectorize(schedule, tile)
    begun = schedule.decompose_reduction(sums, step)
    unroll_and_vectorize(schedule, schedule.get_loops(begun)[-len(tile) :])
