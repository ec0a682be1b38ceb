"""Schedules for PrimFuncs with open axes on CPUs, made of schedules for static ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tunehub import templates
from tunehub.relax.nodes import blocks_in, buffer_shapes, main_module
from tunehub.relax.open_axes.attention import is_attention, schedule_attention
from tunehub.relax.open_axes.axes import OpenAxes, open_axes
from tunehub.relax.open_axes.loops import NotTiledError, RowTiles, over_pieces, over_rows
from tunehub.relax.open_axes.maps import schedule_maps
from tunehub.relax.open_axes.reductions import schedule_reductions
from tunehub.relax.schedule.template_fit import machine_for, with_short_indices
from tunehub.relax.symbols import instance, symbols_of
from tunehub.templates import Machine
from tunehub.templates import dense as dense_template
from tunehub.templates.base import FLOAT_BYTES, blocks_of, size_of
from tunehub.templates.dense import DenseKnobs, DenseWorkload
from tunehub.templates.divisors import divisors
from tunehub.templates.register_tile import cost

_PREPROC = "meta_schedule.layout_rewrite_preproc"
_MOST_ROWS, _MOST_BLOCKS = 8, 8
_LIKELY_ROWS = (*range(1, 65), 128, 256, 384, 512)
_STEP_FLOPS = 8  # of a step of a loop, as far as it matters whether threads pay
_WORTH_THREADS_S = 15e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class TiledFunction:
    """``mod``: with the function as ``main``, its extents unknown. ``tile``: what served a tile of it, None for TVM's
    own loops or where ``template`` did."""

    mod: Any
    tile: Any | None
    template: str


Inner = Callable[[Any], tuple[Any | None, Any | None]]


def by_tiles(function: Any, target: Any, schedule: Inner) -> TiledFunction | None:
    """Schedule ``function``, a PrimFunc with open axes, by tiles of known extents; None when that cannot be.

    ``schedule``: schedules a static PrimFunc; returns it and what served it, or two times None.
    """
    if not symbols_of(function):
        return None
    machine = machine_for(target)
    if is_attention(main_module(function)):
        return TiledFunction(
            mod=schedule_attention(main_module(function), machine).mod, tile=None, template="attention"
        )
    axes = open_axes(function)
    if axes is None or not axes.is_contiguous(function, [1] * len(axes.extents)):
        return _anywhere(function, machine)
    rows = _by_rows(function, axes, machine)
    if rows is not None:
        return TiledFunction(mod=main_module(rows), tile=None, template=dense_template.NAME)
    piece = _piece(function, axes, [1] * len(axes.extents))
    if piece is None:
        return _anywhere(function, machine)
    scheduled, served = schedule(piece)
    if scheduled is None or _rewrites_layouts(scheduled.body):
        scheduled, served = piece, None
    made = over_pieces(function, axes, scheduled, _fewest(piece, machine))
    return TiledFunction(mod=main_module(made), tile=served, template=getattr(served, "template", None) or "loops")


def _anywhere(function: Any, machine: Machine) -> TiledFunction | None:
    """``function`` without tiles: its loops are scheduled as they are."""
    for name, make in (("elementwise", schedule_maps), ("loops", schedule_reductions)):
        schedule = make(function, machine)
        if schedule is not None:
            return TiledFunction(mod=schedule.mod, tile=None, template=name)
    return None


def _by_rows(function: Any, axes: OpenAxes, machine: Machine) -> Any | None:
    """``function`` in register tiles along an open axis, if it is a product with rows along one."""
    for row in reversed(range(len(axes.extents))):
        if not axes.is_contiguous(function, _sizes(axes, row, _MOST_ROWS)):
            continue
        piece = _piece(function, axes, _sizes(axes, row, _MOST_ROWS))
        workload = None if piece is None else _dense(piece)
        if workload is None or workload.length != _MOST_ROWS:
            continue
        lanes = workload.lanes(machine)
        large, small, blocks = _row_tiles(workload.outer(lanes), lanes, machine)
        tiles = [
            _dense_tile(_piece(function, axes, _sizes(axes, row, rows)), lanes, blocks) for rows in (large, small, 1)
        ]
        if None in tiles:
            continue
        first, second, third = tiles
        try:
            found = RowTiles(row=row, large=large, small=small, functions=(first, second, third))
            return over_rows(function, axes, found)
        except NotTiledError:
            continue
    return None


def _sizes(axes: OpenAxes, row: int, rows: int) -> list[int]:
    return [rows if at == row else 1 for at in range(len(axes.extents))]


def _dense(piece: Any) -> DenseWorkload | None:
    mod = main_module(piece)
    match = templates.find(mod)
    found = None if match is None or match.template.NAME != dense_template.NAME else match.workload
    return found if isinstance(found, DenseWorkload) else None


def _piece(function: Any, axes: OpenAxes, sizes: Sequence[int]) -> Any | None:
    """The static function of these sizes, None where no values of the symbols give it."""
    values = axes.values(sizes)
    return None if values is None else instance(function, values)


def _dense_tile(piece: Any | None, lanes: int, blocks: int) -> Any | None:
    """The schedule of a register tile that is all rows; None where the template refuses."""
    workload = None if piece is None else _dense(piece)
    if workload is None:
        return None
    mod = main_module(piece)
    rows = workload.length
    knobs = DenseKnobs(columns=rows, blocks=blocks, lanes=lanes, row=rows)
    try:
        schedule = dense_template.apply(with_short_indices(mod), workload, knobs)
    except templates.KnobError:
        return None
    return schedule.mod["main"]


@lru_cache(maxsize=256)
def _row_tiles(outer: int, lanes: int, machine: Machine) -> tuple[int, int, int]:
    """Rows of the large and of the small tile, and blocks of outputs of both, with the fewest cycles over likely
    numbers of rows."""

    def step(rows: int, blocks: int) -> float:
        return cost((rows, rows, blocks), lanes, machine) * blocks * rows

    def seconds(large: int, small: int, blocks: int) -> float:
        steps = [step(rows, blocks) for rows in (large, small, 1)]
        total = 0.0
        for rows in _LIKELY_ROWS:
            counts = _counts(rows, large, small)
            total += sum(count * each for count, each in zip(counts, steps, strict=True)) / (rows * blocks)
        return total

    vectors = -(-lanes // machine.vector)
    choices = [
        (large, small, blocks)
        for blocks in divisors(outer, _MOST_BLOCKS)
        for large in range(2, _MOST_ROWS + 1)
        if large * blocks * vectors <= machine.accumulators or (large == 2 and blocks == 1)
        for small in range(1, large)
    ]
    return min(choices, key=lambda choice: seconds(*choice))


def _counts(rows: int, large: int, small: int) -> tuple[int, int, int]:
    """How many tiles of each size :func:`tunehub.relax.open_axes.loops.over_rows` takes."""
    whole, rest = divmod(rows, large)
    if rows < small:
        return 0, 0, rows
    if rows < large:
        return 0, -(-rows // small), 0
    if rest and large + rest <= 2 * small:
        return whole - 1, 2, 0
    return (whole + 1, 0, 0) if rest > small else (whole, int(rest > 0), 0)


def _rewrites_layouts(node: Any) -> bool:
    """Whether a schedule copies an operand into another layout when the module is compiled: that is for all pieces."""
    return any(_PREPROC in (block.annotations or ()) for block in blocks_in(node))


def _fewest(piece: Any, machine: Machine) -> int:
    """The pieces that take as long as makes starting the thread pool worth it."""
    steps = sum(size_of((*block.spatial, *block.reduction)) for block in blocks_of(main_module(piece)))
    moved = sum(size_of(shape) for shape, _ in buffer_shapes(piece))
    seconds = max(_STEP_FLOPS * steps / (machine.vector * 3e9), FLOAT_BYTES * moved / 1e10, 1e-10)
    return math.ceil(_WORTH_THREADS_S / seconds)
