"""The tiles for ranges of sizes: rules without TVM."""

from __future__ import annotations

import numpy as np
import pytest

from tunehub.kernels.cuda.gemm.cost import Operand, Problem, Term, as_tiles, seconds
from tunehub.kernels.cuda.gemm.rule import NoTileError, Tile
from tunehub.kernels.cuda.gemm.sizes import MeasuredPiece, candidates, open_problem, ranges, tiles_by_size
from tunehub.kernels.devices.known import default_device
from tunehub.target.gpu_architectures import SM_80, LaunchLimits

pytestmark = pytest.mark.fast
DEVICE = default_device()


def _product(rows: int, depth: int = 768, columns: int = 768) -> Problem:
    first = Operand(shape=(rows, depth), index=((Term(loop=0, scale=1),), (Term(loop=2, scale=1),)))
    second = Operand(shape=(depth, columns), index=((Term(loop=2, scale=1),), (Term(loop=1, scale=1),)))
    return Problem(spatial=(rows, columns), reduction=(depth,), operands=(first, second))


def test_a_problem_of_any_size_is_made_of_two() -> None:
    found = open_problem(_product(2), _product(3))
    assert found is not None and found.at(197) == _product(197)


def test_both_operands_may_be_as_long_as_the_size() -> None:
    found = open_problem(_product(2, columns=2), _product(3, columns=3))
    assert found is not None and found.at(61) == _product(61, columns=61) and found.open_loop is None


def test_extents_that_are_something_else_than_the_size_make_no_open_problem() -> None:
    assert open_problem(_product(4), _product(6)) is None
    assert open_problem(_product(2), _product(2)) is None


def test_ranges_have_the_candidate_that_loses_least() -> None:
    times = np.array([[1.0, 1.0, 4.0, 8.0], [2.0, 2.0, 2.0, 2.0]])
    assert ranges(times, 4) == [(0, 1), (1, 3)]
    assert ranges(times, 1) == [(1, 3)]


def test_another_kernel_for_hardly_any_gain_is_not_made() -> None:
    assert ranges(np.array([[1.0, 1.01], [1.01, 1.0]]), 4) == [(0, 1)]


def test_tiles_are_for_rising_sizes_and_take_little_more_than_the_best_at_each() -> None:
    problem = open_problem(_product(2), _product(3))
    assert problem is not None
    found = tiles_by_size(problem, SM_80, DEVICE, covering=True, above=1)
    thresholds = [each.up_to for each in found]
    assert thresholds[-1] is None and thresholds[:-1] == sorted(thresholds[:-1], key=lambda each: each or 0)
    for size in (2, 16, 33, 128, 1024):
        tile = next(each.tile for each in found if each.up_to is None or size <= each.up_to)
        assert isinstance(tile, Tile)
        rows = as_tiles(
            [
                (each.virtual, each.threads, each.inner, each.step)
                for each in candidates(problem, SM_80, DEVICE, covering=True)
            ]
        )
        own = as_tiles([(tile.virtual, tile.threads, tile.inner, tile.step)])
        assert seconds(problem.at(size), own, DEVICE)[0] < 1.4 * seconds(problem.at(size), rows, DEVICE).min()


def test_without_a_tile_within_bounds_none_is_made() -> None:
    problem = open_problem(_product(2), _product(3))
    assert problem is not None
    with pytest.raises(NoTileError):
        candidates(problem, LaunchLimits(threads=1024, shared_memory=16), DEVICE, covering=True)


def test_measured_pieces_serve_sizes_at_which_they_take_less() -> None:
    problem = open_problem(_product(2), _product(3))
    assert problem is not None
    piece = MeasuredPiece(length=128, blocks=48, run_s=8.4e-6, device=DEVICE)
    found = tiles_by_size(problem, SM_80, DEVICE, covering=True, above=1, known=[piece])
    serves = [each.tile for each in found if each.up_to is None or each.up_to >= 128]
    assert serves[0] is piece
    slow = tiles_by_size(
        problem, SM_80, DEVICE, covering=True, known=[MeasuredPiece(length=128, blocks=48, run_s=1.0, device=DEVICE)]
    )
    assert all(isinstance(each.tile, Tile) for each in slow)


def test_pieces_side_by_side_take_longer_where_multiprocessors_have_several_blocks() -> None:
    piece = MeasuredPiece(length=128, blocks=48, run_s=1.0, device=DEVICE)
    assert [piece.seconds_at(size) for size in (1, 128, 256, 257, 1024)] == [1.0, 1.0, 1.0, 2.0, 3.0]
