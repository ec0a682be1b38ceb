"""Products in half precision with an open number of rows on CUDA: pieces of known extents on tensor cores where these
promise to beat TVM's own schedule, which serves the other sizes. One is launched when the function is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tunehub.cuda.default import default_schedule
from tunehub.cuda.matmul import Matmul
from tunehub.cuda.open_sizes import OpenFunction, SizedFunction, open_function
from tunehub.cuda.pieces import NotPiecesError, blocks_of
from tunehub.cuda.rule import NoTileError
from tunehub.cuda.sizes import MeasuredPiece, ranges
from tunehub.cuda.tensor_core import matmul_of
from tunehub.cuda.tensor_core_cost import default_s
from tunehub.cuda.tensor_core_rule import by_rule
from tunehub.records.never_worse import GUESS_MARGIN
from tunehub.relax.nodes import main_module
from tunehub.relax.open_axes.views import product, wide
from tunehub.relax.schedule.branches import SizeBranch, joined
from tunehub.relax.schedule.guard import check_function

_LENGTHS = (16, 32, 64, 128)  # of pieces
_SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)  # at which times are compared
_MOST_KERNELS = 4
_PADDED = 65  # rows from which TVM's rule takes tensor cores; of an open number it always does


def by_size(mod: Any, target: Any) -> tuple[SizedFunction, None] | None:
    """A schedule of ``mod``, one PrimFunc ``main`` with open axes; None when it is not of this kind.

    Raises NoTileError where TVM's own schedule is to be used, and what :func:`tunehub.cuda.tensor_core_rule.by_rule`
    does.
    """
    function = mod["main"]
    whole = open_function(function)
    matmul = None if whole is None else _open_rows(whole)
    if whole is None or matmul is None:
        return None
    pieces = dict(_pieces(whole, target))
    chosen = _chosen(matmul, list(pieces))
    if all(each is None for each, _ in chosen):
        raise NoTileError("TVM's own schedule should take as little at all sizes")
    made = {}
    for piece in {each: None for each, _ in chosen}:
        made[piece] = default_schedule(function, target) if piece is None else whole.over(pieces[piece], piece.length)
        if piece is not None:  # TVM's own was checked where it was made
            check_function(made[piece], function, target)
    branches = [SizeBranch(up_to=up_to, function=made[piece]) for piece, up_to in chosen]
    return SizedFunction(mod=main_module(joined(function, product(wide(whole.axes.extents)), branches))), None


def _open_rows(whole: OpenFunction) -> Matmul | None:
    """The product of a piece of one length when the open axis is its rows, and no convolution is."""
    first, second = (matmul_of(whole.piece(length)) for length in _LENGTHS[:2])
    if first is None or second is None or first.window > 1 or first.batch:
        return None
    extents = (1, *_LENGTHS[:1], *first.extents[2:]), (1, *_LENGTHS[1:2], *first.extents[2:])
    return first if (first.extents, second.extents) == extents else None


def _pieces(whole: OpenFunction, target: Any) -> Iterator[tuple[MeasuredPiece, Any]]:
    """Pieces, with the seconds that they should take, and their schedules; those that TVM does better are left out."""
    for length in _LENGTHS:
        try:
            found = by_rule(whole.piece(length), target)
        except NoTileError:
            continue
        if found is None:
            continue
        schedule, run_s = found
        function = schedule.mod["main"]
        try:
            whole.over(function, length)
        except NotPiecesError:
            continue
        yield MeasuredPiece(length=length, blocks=blocks_of(function), run_s=run_s), function


def _chosen(matmul: Matmul, pieces: list[MeasuredPiece]) -> list[tuple[MeasuredPiece | None, int | None]]:
    """For each range of sizes a piece, or None for TVM's own schedule, and its last size; None: all that are larger."""
    times = [[piece.seconds_at(size) for size in _SIZES] for piece in pieces]
    times.append([_default_s(matmul, size) / GUESS_MARGIN for size in _SIZES])
    candidates = [*pieces, None]
    return [
        (candidates[at], _SIZES[last] if last + 1 < len(_SIZES) else None)
        for at, last in ranges(np.array(times), _MOST_KERNELS)
    ]


def _default_s(matmul: Matmul, rows: int) -> float:
    own = matmul.rows[0]
    return default_s(replace(matmul, rows=(own._replace(extent=max(rows, _PADDED)),)))
