"""Tiles for other extents: always exact, the same where they fit, near where they do not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.transfer import tiles as transfer_tiles
from tunehub.kernels.transfer.tiles import keeps_vectors, perfect_tile, refitted_split

pytestmark = pytest.mark.fast

tiles = st.lists(st.integers(1, 64), min_size=2, max_size=5).map(tuple)


@given(st.integers(1, 5000), tiles, st.sampled_from([1, 2, 16, 64]))
def test_tiles_are_exact_and_bounded(extent: int, wanted: tuple[int, ...], innermost: int) -> None:
    found = perfect_tile(extent, wanted, innermost)
    assert math.prod(found) == extent
    assert len(found) == len(wanted)
    assert min(found) >= 1 and found[-1] <= innermost


@given(tiles)
def test_what_fits_stays(wanted: tuple[int, ...]) -> None:
    assert perfect_tile(math.prod(wanted), wanted, 64) == wanted


@given(tiles, st.integers(1, 30))
def test_the_outermost_takes_what_is_more(wanted: tuple[int, ...], times: int) -> None:
    assert perfect_tile(math.prod(wanted) * times, wanted, 64) == (wanted[0] * times, *wanted[1:])


def test_vectors_stay_whole() -> None:
    assert perfect_tile(96, (4, 1, 1, 16), 64)[-1] == 16
    assert perfect_tile(1000, (4, 1, 1, 16), 64)[-1] == 8  # not 20, which is nearer
    assert perfect_tile(1009, (4, 1, 1, 16), 64) == (1009, 1, 1, 1)


@given(st.integers(1, 64), st.integers(1, 64))
def test_whole_vectors_are_powers_of_two(wanted: int, found: int) -> None:
    assert keeps_vectors(wanted, wanted)
    assert keeps_vectors(wanted, 16 * found)
    assert keeps_vectors(1, found)
    assert keeps_vectors(16, found) == (found % 8 == 0)
    assert not keeps_vectors(4 * wanted, 2 * found + 1)


@given(st.integers(1, 5000), st.lists(st.integers(1, 64) | st.none(), min_size=1, max_size=5))
def test_splits_by_numbers(extent: int, factors: list[int | None]) -> None:
    if factors.count(None) > 1:
        return
    found = refitted_split(extent, factors)
    known = math.prod(factor or 1 for factor in (factors if found is None else found))
    assert extent % known == 0 if None in factors else extent == known
    assert found is None or [factor is None for factor in found] == [factor is None for factor in factors]


@given(st.integers(1, 100_000))
def test_divisors(extent: int) -> None:
    found = divisors(extent)
    assert list(found) == sorted(set(found)) and all(extent % d == 0 for d in found)
    assert found[0] == 1 and found[-1] == extent


@given(st.integers(1, 2000), st.integers(0, 300))
def test_divisors_up_to_a_bound(extent: int, most: int) -> None:
    assert divisors(extent, most) == tuple(d for d in range(1, most + 1) if extent % d == 0)


def test_of_numbers_with_many_divisors_few_tiles_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, cost = [], transfer_tiles._cost
    monkeypatch.setattr(transfer_tiles, "_cost", lambda *how: compared.append(how) or cost(*how))
    extent = 720_720 * 16
    perfect_tile(extent, (64, 8, 16, 32), 64)
    assert 0 < len(compared) <= (1 + 2 * transfer_tiles._KEPT) * len(divisors(extent))
