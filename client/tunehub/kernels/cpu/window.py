"""Sliding windows that keep channels apart, in blocked layouts: the engine of depthwise convolutions and pooling.

A vector holds the channels of a block. The results of ``columns`` output columns stay in registers while the window
runs over its rows and columns; with the window's columns unrolled, neighbouring results share what they load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from tunehub.kernels.cpu.base import (
    FLOAT_BYTES,
    Block,
    Knobs,
    Machine,
    refusing,
    require,
    size_of,
    worth_threads,
)
from tunehub.kernels.cpu.fusion import (
    Surroundings,
    anchored,
    finish_rest,
    gather_epilogue,
    opened,
    place_pad,
    vectorize_epilogue,
)
from tunehub.kernels.cpu.register_tile import vectors_of
from tunehub.tir.schedules import unroll_and_vectorize

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, Schedule

LANES = 16  # channels in registers at once where a block has more than _MAX_LANES
_MAX_LANES = 32
_MAX_UNROLLED = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowWorkload:
    """``kernel``: rows and columns of the window; ``lanes``: channels in a block; ``outer``: blocks of channels."""

    anchor: str
    batch: int
    outer: int
    lanes: int
    rows: int
    columns: int
    kernel: tuple[int, int]
    data_bytes: int
    around: Surroundings

    @property
    def vector(self) -> int:
        """Channels whose results are in registers at once: a block, or of images with channels last a part of it."""
        return self.lanes if self.lanes <= _MAX_LANES else LANES

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each element of a window."""
        return 2 * self.batch * self.outer * self.lanes * self.rows * self.columns * size_of(self.kernel)


class WindowKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``columns``: results in registers. ``unroll``: also the window's rows, not only its columns.

    ``padding``: see :func:`tunehub.kernels.cpu.fusion.place_pad`. ``parallel``: use the thread pool.
    """

    columns: Annotated[int, Meta(ge=1, le=32)]
    unroll: bool = True
    padding: Literal["inline", "whole", "tile"] = "inline"
    parallel: bool = True


def recognise(blocks: tuple[Block, ...], anchors: tuple[str, ...]) -> WindowWorkload | None:
    """Describe the function of ``blocks``, or None when none of ``anchors`` is its only reduction."""
    found = anchored(blocks, anchors, ("float32", "int32", "uint8"))
    if found is None:
        return None
    block, around = found
    if len(block.spatial) != 5 or len(block.reduction) != 2:
        return None
    batch, outer, rows, columns, lanes = block.spatial
    if lanes > _MAX_LANES and lanes % LANES:
        return None
    return WindowWorkload(
        anchor=block.name,
        batch=batch,
        outer=outer,
        lanes=lanes,
        rows=rows,
        columns=columns,
        kernel=(block.reduction[0], block.reduction[1]),
        data_bytes=FLOAT_BYTES * (_largest_read(block) + size_of(block.write)),
        around=around,
    )


def knob_space(workload: WindowWorkload, machine: Machine) -> list[WindowKnobs]:
    """The choices worth measuring, the default's first."""
    found = {default_knobs(workload, machine): None}
    for columns in _widths(workload, machine):
        for knobs in _variations(workload, WindowKnobs(columns=columns)):
            if _unrolled(workload, knobs) <= _MAX_UNROLLED:
                found.setdefault(replace(knobs, parallel=_parallel(workload, machine)))
    return list(found)


def default_knobs(workload: WindowWorkload, machine: Machine) -> WindowKnobs:
    """The choice of a rule, without measuring: as many results as registers allow, all of a small window unrolled."""
    columns = min(_widths(workload, machine), key=lambda width: (abs(width - 7), -width))
    knobs = WindowKnobs(columns=columns, parallel=_parallel(workload, machine))
    return replace(knobs, unroll=size_of(workload.kernel) <= 9 and _unrolled(workload, knobs) <= _MAX_UNROLLED)


@refusing
def apply(mod: IRModule, workload: WindowWorkload, knobs: WindowKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    _check(workload, knobs)
    # Step 1. Producers are inlined; all that follows is one block, the epilogue.
    schedule, anchor = opened(mod, workload.anchor, workload.around)
    last = gather_epilogue(schedule, workload.around, anchor)
    # Step 2. Register tiles of columns times a block of channels; rows of results among threads.
    n, c, oh, ow, lanes, kh, kw = schedule.get_loops(anchor)
    outer_column, column = schedule.split(ow, [None, knobs.columns])
    tile = outer_column
    if workload.vector < workload.lanes:
        tile, lanes = schedule.split(lanes, [None, workload.vector])
        schedule.reorder(n, c, oh, outer_column, tile, kh, kw, column, lanes)
    else:
        schedule.reorder(n, c, oh, outer_column, kh, kw, column, lanes)
    outer = schedule.fuse(n, c, oh)
    schedule.reverse_compute_at(last, tile, preserve_unit_loops=True)
    unroll_and_vectorize(schedule, [column, lanes])
    if workload.kernel[1] * knobs.columns <= _MAX_UNROLLED:
        schedule.unroll(kw)
    if knobs.parallel:
        schedule.parallel(outer)
    vectorize_epilogue(schedule, last)
    # Step 3. Accumulators begin before the window's rows.
    initial = schedule.decompose_reduction(anchor, kh)
    unroll_and_vectorize(schedule, schedule.get_loops(initial)[-2:])
    if knobs.unroll:
        schedule.unroll(kh)
    # Step 4. Padding where the input is read, or copied before; code of its own for the last tile of a row.
    place_pad(schedule, workload.around.pad, knobs.padding, outer, parallel=knobs.parallel)
    if workload.columns % knobs.columns:
        schedule.annotate(outer_column, "pragma_loop_partition_hint", 1)
    finish_rest(schedule, workload.around, parallel=knobs.parallel)
    return schedule


def _check(workload: WindowWorkload, knobs: WindowKnobs) -> None:
    require(knobs.columns <= workload.columns, f"columns: {knobs.columns} is more than {workload.columns}")
    unrolled = _unrolled(workload, knobs)
    require(unrolled <= _MAX_UNROLLED, f"columns: {unrolled} steps unrolled, at most {_MAX_UNROLLED}")
    require(knobs.padding == "inline" or workload.around.pad is not None, "padding: this workload has none to copy")


def _unrolled(workload: WindowWorkload, knobs: WindowKnobs) -> int:
    return knobs.columns * (size_of(workload.kernel) if knobs.unroll else 1)


def _parallel(workload: WindowWorkload, machine: Machine) -> bool:
    return worth_threads(workload.flops, workload.data_bytes, machine)


def _widths(workload: WindowWorkload, machine: Machine) -> list[int]:
    """Numbers of results that fit into registers and cut a row in pieces as equal as possible."""
    most = max(1, machine.accumulators // vectors_of(workload.vector, machine))
    row = workload.columns
    return list(dict.fromkeys(-(-row // pieces) for pieces in range(-(-row // most), row + 1)))


def _variations(workload: WindowWorkload, knobs: WindowKnobs) -> Iterator[WindowKnobs]:
    paddings: tuple[Literal["inline", "whole", "tile"], ...] = ("inline",)
    if workload.around.pad is not None:
        paddings = ("inline", "whole")
    for padding in paddings:
        for unroll in (True, False):
            yield replace(knobs, padding=padding, unroll=unroll)


def _largest_read(block: Block) -> int:
    return max(map(size_of, block.reads), default=0)
