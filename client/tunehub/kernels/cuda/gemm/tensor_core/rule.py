"""Schedules of current TVM for the tensor cores of CUDA GPUs without a record: products and convolutions of operands in
half precision, added up in float32, by the sketch of :mod:`tunehub.kernels.cuda.gemm.tensor_core.sketch` with the tile
that should cost least, where that promises to beat TVM's own schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import nsmallest
from typing import Any

from tunehub.comparison.guess import against_guess
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.tensor_core.cost import LAUNCHES_S, default_s, seconds
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, apply, matmul_of, tiles
from tunehub.kernels.cuda.gemm.tiles import is_narrow, narrow_s
from tunehub.tir.cuda.headers import missing_for_tensor_cores
from tunehub.tir.guard import check_function, check_tiles
from tunehub.tir.intrinsics import import_intrinsics

NAME = "tensor_cores"  # in reports
_ATTEMPTS = 3  # tiles that are tried, the likeliest ones


def by_rule(mod: Any, target: Any) -> tuple[Any, float] | None:
    """A schedule of ``mod``, an IRModule with one PrimFunc ``main``, and the seconds that it should take; None when the
    function has no such product.

    Raises NoTileError when no tile is within bounds, when TVM's own schedule should take as little, within the margin
    of every guess, when plain tiles should take less (of few columns), or when CUDA's headers for tensor cores are
    missing; where none of the likeliest tiles does, GuardError for what would be wrong or cannot be launched, or what
    TVM raises. The first call in a process takes 3 s, in which TVM registers its intrinsics.
    """
    matmul = matmul_of(mod)
    if matmul is None:
        return None
    check_headers()
    failure: Exception = NoTileError(f"no tile of {matmul.extents} is within bounds")
    default, (*_, columns, k) = default_s(matmul), matmul.extents
    plain = narrow_s(mod, target) if is_narrow(columns, k) else None
    for tile in ranked(matmul, _ATTEMPTS):
        expected = seconds(matmul, tile)
        against = against_guess(expected, default, launches_s=LAUNCHES_S)
        if against is not None:
            raise NoTileError(against)
        if plain is not None and plain < expected:
            raise NoTileError(f"plain tiles should take {plain * 1e6:.3g} µs, these {expected * 1e6:.3g}")
        try:
            schedule = checked(mod, matmul, tile)
            check_function(schedule.mod["main"], mod["main"], target)
        except Exception as error:  # TVM raises many kinds; another tile may do
            failure = error
        else:
            return schedule, expected
    raise failure


def check_headers() -> None:
    """Raise NoTileError when CUDA's headers for tensor cores are missing."""
    missing = missing_for_tensor_cores()
    if missing is not None:
        raise NoTileError(str(missing))


def checked(mod: Any, matmul: Matmul, tile: TensorTile) -> Any:
    """The schedule of ``mod`` by ``tile``. Raises GuardError when a tile writes what others write, and what TVM
    raises."""
    import_intrinsics("tvm.s_tir.tensor_intrin.cuda")
    schedule = apply(mod, matmul, tile)
    check_tiles(schedule.mod["main"])
    return schedule


def by_warpgroups(mod: Any, target: Any) -> tuple[Any, float] | None:
    """As :func:`by_rule`, by a kernel for warpgroups; None where the GPU has none or where tiles of this sketch, or
    plain ones of few columns, should take as little. Raises as :func:`tunehub.kernels.cuda.gemm.hopper.rule.by_rule`:
    others may do then."""
    matmul = warpgroups.matmul_in(mod)
    own = None if matmul is None else warpgroups.expected_s(matmul, target)
    if matmul is None or own is None or own >= min(_others_s(mod, matmul, target, own), default=math.inf):
        return None
    return warpgroups.by_rule(mod, matmul, target)


def _others_s(mod: Any, matmul: Matmul, target: Any, own: float | None) -> Iterator[float]:
    """Seconds that ``mod`` should take by tiles of this sketch, which has no bfloat16, and by plain tiles, where a
    kernel for warpgroups should take ``own``.

    Where there is one, tiles of this sketch are no choice for windows of images with channels last: six took 1.2 to 3.3
    times as long, up to four times what they promise; of 188 such records all but one are for warpgroups."""
    *_, columns, k = matmul.extents
    has_windows = matmul.runs[0] < k
    if matmul_of(mod) is not None and not (has_windows and own is not None):
        yield from (seconds(matmul, tile) for tile in ranked(matmul, 1))
    plain = narrow_s(mod, target) if own is None or is_narrow(columns, k) else None
    if plain is not None:
        yield plain


def promised_s(mod: Any, target: Any) -> float | None:
    """Seconds that ``mod``, an IRModule with one PrimFunc ``main``, should take by the better of :func:`by_warpgroups`
    and :func:`by_rule`, or by plain tiles where these take less; None when it has no product of operands in half
    precision. No schedule is made."""
    matmul = warpgroups.matmul_in(mod)
    if matmul is None:
        return None
    own = warpgroups.expected_s(matmul, target)
    known = [*([] if own is None else [own]), *_others_s(mod, matmul, target, own)]
    return min(known, default=None)


def ranked(matmul: Matmul, count: int) -> list[TensorTile]:
    """The ``count`` tiles that should take least, the best first."""
    return nsmallest(count, tiles(matmul), key=lambda tile: (seconds(matmul, tile), tile))
