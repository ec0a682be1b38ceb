"""Winograd's algorithm for an open number of images: tiles of several in one product, so that weights are read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels import cpu as templates
from tunehub.kernels.cpu import KnobError, Machine, winograd
from tunehub.kernels.symbolic.loops import NotTiledError, over_groups
from tunehub.kernels.symbolic.pieces import piece_of
from tunehub.kernels.te.winograd import PRODUCT
from tunehub.kernels.template_fit import with_short_indices
from tunehub.tir.guard import check_tiles
from tunehub.tir.nodes import blocks_in, main_module
from tunehub.tir.open_axes import OpenAxes

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc


def by_images(function: PrimFunc, axes: OpenAxes, machine: Machine) -> PrimFunc | None:
    """``function`` in groups of images along its one open axis, if it is such a convolution, and its weights are best
    read once for several images; else None."""
    if not any(str(block.name_hint) == PRODUCT for block in blocks_in(function.body)):
        return None
    workload = _winograd(function, axes, 1)
    chosen = None if workload is None else winograd.together(workload, machine)
    if chosen is None:
        return None
    images, knobs = chosen
    together = _winograd(function, axes, images)
    if together is None:
        return None
    try:
        mod = with_short_indices(main_module(piece_of(function, axes, [images])))
        tile = winograd.apply(mod, together, knobs).mod["main"]
        check_tiles(tile)
        return over_groups(function, axes, tile, images, winograd.IMAGES)
    except (KnobError, NotTiledError):
        return None


def _winograd(function: PrimFunc, axes: OpenAxes, images: int) -> winograd.WinogradWorkload | None:
    if len(axes.extents) != 1 or not axes.is_contiguous(function, [images]):
        return None
    piece = piece_of(function, axes, [images])
    match = None if piece is None else templates.find(main_module(piece))
    return match.workload if match is not None and match.template.NAME == winograd.NAME else None
