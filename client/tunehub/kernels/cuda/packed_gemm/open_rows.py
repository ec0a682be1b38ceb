"""Products with an open number of rows and quantised weights, from more rows on than a low batch has: kernels of
:mod:`tunehub.kernels.cuda.packed_gemm` for ranges of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tunehub.kernels.cuda.gemm.sizes import ranges
from tunehub.kernels.cuda.low_batch.gated import MOST_GATED
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.low_batch.taken_apart import TakenApart
from tunehub.kernels.cuda.low_batch.weights import Format
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.cuda.packed_gemm.choice import seconds, tiles
from tunehub.kernels.devices.known import device_of
from tunehub.tir.branches import SizeBranch
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import buffer_kind

if TYPE_CHECKING:
    from tunehub.target.types import Target

_SIZES = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 2048, 4096)  # at which times are compared
_KERNELS = 5
_MANY, _OF_MANY = 512, 3.0  # rows from which sizes count for so many
_NEVER_S = 1e3  # seconds of a tile that does not serve a size
_FEW, _FEW_OF_E4M3, _FEW_OF_GATED, _FEW_OF_BFLOAT = 64, 32, 16, 8


def few(form: Format, *, gated: bool = False) -> int:
    """Rows up to which kernels for a low batch are faster; those for scales in bfloat16 are plainer. ``gated``: of a
    product that is wide."""
    if form.e4m3:
        return _FEW_OF_GATED if gated else _FEW_OF_E4M3
    plain = _FEW_OF_BFLOAT if form.bfloat else _FEW
    return min(plain, MOST_GATED) if gated else plain


def many_rows(whole: OpenFunction, apart: TakenApart, target: Target, *, gated: bool = False) -> list[SizeBranch]:
    """Branches of ``apart.function`` for sizes above :func:`few`, as many as places of 32 bits reach.
    ``whole``: its product of weights that are made; ``gated``: with SiLU(gate) · up behind it.

    Raises as :func:`tunehub.kernels.cuda.packed_gemm.kernel.packed_over_all_rows` does, and GuardError.
    """
    from tunehub.kernels.cuda.gemm.hopper.open_bulk import most_length
    from tunehub.kernels.cuda.packed_gemm.gated import GatedPackedWriter, gated_tiles
    from tunehub.kernels.cuda.packed_gemm.kernel import packed_over_all_rows

    columns, depth = map(int, buffer_kind(apart.weights).shape)
    device, form = device_of(target), apart.form
    known, writer = list((gated_tiles if gated else tiles)(form.bits)), GatedPackedWriter if gated else None
    sizes = [rows for rows in _SIZES if rows > few(form, gated=gated)]
    extents = [LowBatchExtents(rows=rows, columns=columns, depth=depth, weights=form) for rows in sizes]
    times = [[seconds(each, tile, device) for each in extents] for tile in known]
    weights, found = np.where(np.array(sizes) < _MANY, 1.0, _OF_MANY), []
    for at, last in ranges(np.minimum(times, _NEVER_S), _KERNELS, weights):
        function = packed_over_all_rows(whole, apart, known[at], device, writer)
        check_function(function, apart.function, target)
        up_to = sizes[last] if last + 1 < len(sizes) else most_length(whole)
        found.append(SizeBranch(up_to=up_to, function=function))
    return found
