"""Tiles for CUDA: drawn and varied ones multiply to the loop's extent, and stay within what can be launched."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.kernels.cuda.gemm.rule import Tile
from tunehub_builder.tuning.space import cuda_tiles

pytestmark = pytest.mark.fast

EXTENTS = st.lists(st.integers(1, 600), min_size=1, max_size=4)


class Instruction:
    """As TVM's: a kind with a name, and attributes."""

    def __init__(self, kind: str, *attrs: Any) -> None:
        self.kind, self.attrs = SimpleNamespace(name=kind), attrs


class Trace:
    """As TVM's, as far as decisions are concerned."""

    def __init__(self, insts: list[Instruction], decisions: dict[Instruction, Any]) -> None:
        self.insts, self.decisions = insts, decisions


@pytest.fixture(autouse=True, scope="module")
def traces_without_tvm() -> Any:
    """The rules need of TVM only the class of the trace that they return."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_tiles, "_new_trace", Trace)
        yield


def _trace(spatial: list[int], reductions: list[int]) -> Trace:
    found: dict[Instruction, Any] = {}
    for extent in spatial:
        found[Instruction("SamplePerfectTile", 5, 64)] = [extent, 1, 1, 1, 1]
    for extent in reductions:
        found[Instruction("SamplePerfectTile", 3, 64)] = [extent, 1, 1]
    found[Instruction("SampleCategorical", [0, 16, 64, 512], [0.25, 0.25, 0.25, 0.25])] = 0
    return Trace([Instruction("GetSBlock"), *found], found)


def _tiles(trace: Trace) -> list[tuple[int, ...]]:
    return [tuple(trace.decisions[each]) for each in trace.insts if each.kind.name == "SamplePerfectTile"]


@given(EXTENTS, EXTENTS, st.integers(0, 99))
def test_draws_and_variations_are_within_bounds(spatial: list[int], reductions: list[int], seed: int) -> None:
    random = Random(seed)
    trace = cuda_tiles.drawn(_trace(spatial, reductions), random)
    for _ in range(3):
        if trace is None:  # of primes none may fit
            return
        tiles = _tiles(trace)
        assert [math.prod(tile) for tile in tiles] == [*spatial, *reductions]
        assert all(tile[-1] <= 64 for tile in tiles)
        assert cuda_tiles.within_bounds(tiles)
        trace = cuda_tiles.varied(trace, random)


def test_the_clients_tile_becomes_decisions() -> None:
    tile = Tile(virtual=(1, 2), threads=(8, 4), inner=(4, 1), step=(16, 3), expected_s=1e-5)
    trace = _trace([64, 56], [64, 3])
    found = cuda_tiles.ruled(trace, tile)
    assert _tiles(found) == [(2, 1, 8, 4, 1), (7, 2, 4, 1, 1), (4, 16, 1), (1, 3, 1)]
    assert found.decisions[trace.insts[-1]] == 3  # as many steps are unrolled as the rule has


@pytest.mark.parametrize(("spatial", "reductions"), [([64], [64, 3]), ([64, 55], [64, 3]), ([64, 56], [64]), ([], [])])
def test_a_tile_for_other_loops_is_refused(spatial: list[int], reductions: list[int]) -> None:
    tile = Tile(virtual=(1, 2), threads=(8, 4), inner=(4, 1), step=(16, 3), expected_s=1e-5)
    assert cuda_tiles.ruled(_trace(spatial, reductions), tile) is None


def test_a_variation_differs() -> None:
    random = Random(0)
    trace = cuda_tiles.drawn(_trace([64, 56, 56], [64, 3, 3]), random)
    other = cuda_tiles.varied(trace, random)
    assert list(other.decisions.values()) != list(trace.decisions.values())


@pytest.mark.parametrize(
    ("tiles", "fits"),
    [
        ([(8, 1, 64, 1, 1)], True),
        ([(32, 1, 16, 1, 1)], False),
        ([(1, 1, 16, 1, 1)], True),  # all that there are
        ([(1, 1, 1024, 1, 1)], True),
        ([(1, 1, 2048, 1, 1)], False),
        ([(1, 16, 64, 1, 1)], False),
        ([(1, 4, 64, 8, 8)], False),
        ([(8, 1, 64, 1, 1), (1, 8, 8)], True),
        ([(8, 1, 64, 1, 1), (1, 16, 8)], False),
        ([(4, 4, 4, 4)], True),  # another structure, which TVM checks itself
    ],
)
def test_bounds(tiles: list[tuple[int, ...]], fits: bool) -> None:
    assert cuda_tiles.within_bounds(tiles) == fits
