"""Schedules for PrimFuncs with open axes on CPUs, made of schedules for static ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cpu import Machine, winograd
from tunehub.kernels.cpu import dense as dense_template
from tunehub.kernels.cpu import nt_dense as nt_template
from tunehub.kernels.cpu.attention import is_attention, lacks, schedule_attention
from tunehub.kernels.cpu.base import CAUTIOUS_BYTES, FLOAT_BYTES, blocks_of, size_of
from tunehub.kernels.symbolic.divisors import with_positive_divisors
from tunehub.kernels.symbolic.images import by_images
from tunehub.kernels.symbolic.loops import over_pieces
from tunehub.kernels.symbolic.maps import schedule_maps
from tunehub.kernels.symbolic.nt_rows import by_nt_rows
from tunehub.kernels.symbolic.pieces import piece_of, without_shared_blocks
from tunehub.kernels.symbolic.reductions import schedule_reductions
from tunehub.kernels.symbolic.rows import by_rows
from tunehub.kernels.symbolic.window_tiles import by_windows
from tunehub.kernels.template_fit import machine_for
from tunehub.tir.nodes import blocks_in, buffer_shapes, main_module
from tunehub.tir.open_axes import separate_axes
from tunehub.tir.symbols import symbols_of

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc, Schedule, Stmt

_PREPROC = "meta_schedule.layout_rewrite_preproc"
_STEP_FLOPS = 8  # of a step of a loop, as far as it matters whether threads pay


@dataclass(frozen=True, kw_only=True, slots=True)
class TiledFunction:
    """``mod``: with the function as ``main``, its extents unknown. ``tile``: what served a tile of it, None for TVM's
    own loops or where ``template`` did."""

    mod: IRModule
    tile: Any | None
    template: str


Inner = Callable[[Any], tuple[Any | None, Any | None]]


def by_tiles(function: PrimFunc, target: Target, schedule: Inner) -> TiledFunction | None:
    """Schedule ``function``, a PrimFunc with open axes, by tiles of known extents; None when that cannot be.

    ``schedule``: schedules a static PrimFunc; returns it and what served it, or two times None.
    """
    if not symbols_of(function):
        return None
    machine = machine_for(target)
    if is_attention(main_module(function)):
        if lacks(main_module(function), target) is not None:
            return None
        return _whole(schedule_attention(main_module(function), machine), "attention")
    function = without_shared_blocks(function)
    axes = separate_axes(function)
    if axes is None:
        windows = by_windows(function, machine)
        if windows is not None:
            return TiledFunction(mod=main_module(windows.function), tile=None, template=windows.template)
        return _anywhere(function, machine)
    whole_by = (
        (partial(by_rows, function, axes, target), dense_template.NAME),
        (partial(by_nt_rows, function, axes, machine), nt_template.NAME),
        (partial(by_images, function, axes, machine), winograd.NAME),
    )
    for schedule_whole, template in whole_by:
        whole = schedule_whole()
        if whole is not None:
            return TiledFunction(mod=main_module(whole), tile=None, template=template)
    piece = piece_of(function, axes, [1] * len(axes.extents))
    if piece is None:
        return _anywhere(function, machine)
    scheduled, served = schedule(piece)
    if scheduled is None or rewrites_layouts(scheduled.body):
        scheduled, served = piece, None
    made = over_pieces(function, axes, scheduled, fewest_for_threads(piece, machine))
    return TiledFunction(mod=main_module(made), tile=served, template=getattr(served, "template", None) or "loops")


def _anywhere(function: PrimFunc, machine: Machine) -> TiledFunction | None:
    """``function`` without tiles: its loops are scheduled as they are."""
    for name, make in (("elementwise", schedule_maps), ("loops", schedule_reductions)):
        schedule = make(function, machine)
        if schedule is not None:
            return _whole(schedule, name)
    return None


def _whole(schedule: Schedule, template: str) -> TiledFunction:
    mod = main_module(with_positive_divisors(schedule.mod["main"]))
    return TiledFunction(mod=mod, tile=None, template=template)


def rewrites_layouts(node: Stmt) -> bool:
    """Whether a schedule copies an operand into another layout when the module is compiled: that is for all pieces."""
    return any(_PREPROC in (block.annotations or ()) for block in blocks_in(node))


def fewest_for_threads(piece: PrimFunc, machine: Machine) -> int:
    """The pieces that take as long as makes starting the thread pool worth it."""
    steps = sum(size_of((*block.spatial, *block.reduction)) for block in blocks_of(main_module(piece)))
    moved = sum(size_of(shape) for shape, _ in buffer_shapes(piece))
    rates = machine.rates
    arithmetic = _STEP_FLOPS * steps / (machine.vector * rates.cautious_flops)
    seconds = max(arithmetic, FLOAT_BYTES * moved / CAUTIOUS_BYTES, 1e-10)
    return math.ceil(rates.worth_s / seconds)
