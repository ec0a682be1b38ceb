"""Schedules of current TVM for long sums in float32 on CUDA GPUs without a record: by the sketch of
:mod:`tunehub.kernels.cuda.gemm.split_k.sketch` with the tile that should cost least, where that promises more than any
other form."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from tunehub.comparison.guess import GUESS_MARGIN, against_guess
from tunehub.kernels.cuda.gemm.cost import LAUNCHES_S
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.split_k.cost import seconds
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile, all_tiles, apply, matmul_of
from tunehub.kernels.cuda.gemm.tiles import others_s, sums_of
from tunehub.tir.guard import check_function, check_tiles

NAME = "split_k"  # in reports
_ATTEMPTS = 3  # tiles that are tried, the likeliest ones
_FEW_COLUMNS = 3  # with so few other tiles took 0.44 and 0.78 times as long, where these promised 0.91 and 0.95


def by_rule(mod: Any, target: Any) -> tuple[Any, float] | None:
    """A schedule of ``mod``, an IRModule with one PrimFunc ``main``, and the seconds that it should take; None when the
    function has no such sum.

    Raises as :func:`promises` does; where none of the likeliest tiles does, GuardError for what would be wrong or
    cannot be launched, or what TVM raises.
    """
    failure: Exception | None = None
    for matmul, tile, expected_s in promises(mod, target):
        try:
            schedule = apply(mod, matmul, tile)
            check_tiles(schedule.mod["main"])
            check_function(schedule.mod["main"], mod["main"], target)
        except Exception as error:  # TVM raises many kinds; another tile may do
            failure = error
        else:
            return schedule, expected_s
    if failure is not None:
        raise failure
    return None


def promises(mod: Any, target: Any) -> Iterator[tuple[Matmul, SplitTile, float]]:
    """The likeliest tiles of ``mod`` and the seconds that they should take, the best first; none when the function has
    no such sum. No schedule is made.

    Raises NoTileError when no tile is within bounds, when the rule's other tiles should take less than the next, or
    TVM's own schedule as little, within the margin of every guess.
    """
    matmul = matmul_of(mod)
    if matmul is None:
        return
    sums = sums_of(mod)
    tile_s, default_s = (None, None) if sums is None else others_s(sums, target)
    if matmul.is_batch_by_sums:  # other tiles took 0.96 to 2.5 times as long for 18 of these (ADR 44)
        tile_s = None
    few = matmul.extents[2] <= _FEW_COLUMNS
    found = likeliest(matmul, _ATTEMPTS)
    if not found:
        raise NoTileError(f"no tile of {matmul.extents} is within bounds")
    for tile, expected_s in found:
        if tile_s is not None and tile_s < (GUESS_MARGIN if few else 1.0) * expected_s:
            raise NoTileError(f"other tiles should take {tile_s * 1e6:.3g} µs, these {expected_s * 1e6:.3g}")
        against = None if default_s is None else against_guess(expected_s, default_s, launches_s=LAUNCHES_S)
        if against is not None:
            raise NoTileError(against)
        yield matmul, tile, expected_s


def promised(mod: Any, target: Any) -> float | None:
    """The seconds of the likeliest schedule that :func:`by_rule` tries; None when there is none. Raises as
    :func:`promises` does."""
    return next((expected_s for *_, expected_s in promises(mod, target)), None)


def promised_s(mod: Any) -> float | None:
    """Seconds that the likeliest tile should take; None when there is none."""
    matmul = matmul_of(mod)
    found = () if matmul is None else likeliest(matmul, _ATTEMPTS)
    return found[0][1] if found else None


@lru_cache(maxsize=256)  # asked for a transfer, for the rule, and for each function that differs in what follows only
def likeliest(matmul: Matmul, count: int) -> tuple[tuple[SplitTile, float], ...]:
    """The ``count`` tiles that should take least, in seconds each, the best first."""
    found = all_tiles(matmul)
    expected = seconds(matmul, found)
    return tuple((found.tile(int(at)), float(expected[at])) for at in np.argsort(expected, kind="stable")[:count])
