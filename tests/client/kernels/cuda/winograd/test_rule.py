"""Which convolutions on a GPU are worth Winograd's algorithm, by counted costs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.kernels.cuda.winograd import rule
from tunehub.kernels.cuda.winograd.convolution import PlainConv3x3
from tunehub.kernels.cuda.winograd.rule import chosen_tile, winograd_s

from ..scheduled import H200

pytestmark = pytest.mark.slow


def conv(batch: int | None = 8, channels: int = 64, size: int = 56) -> PlainConv3x3:
    return PlainConv3x3(batch=batch, inputs=channels, outputs=channels, image=(size, size))


def test_tiles_cover_the_image() -> None:
    assert conv(size=14).grid(4) == (4, 4) and conv(size=14).grid(2) == (7, 7)
    assert conv(batch=3, size=7).tiles(4) == 12


def test_it_has_to_promise_more_than_a_little() -> None:
    best = min(winograd_s(conv(), tile, H200) for tile in (2, 4))
    assert 1e-6 < best < 1e-3
    assert chosen_tile(conv(), [1.2 * best], H200) is None
    assert chosen_tile(conv(), [1.3 * best], H200) in (2, 4)


def test_an_open_batch_is_judged_by_two_and_loses_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rule, "winograd_s", lambda convolution, tile, _: convolution.batch * (100e-6 if tile == 2 else 1)
    )
    assert chosen_tile(conv(batch=None), [110e-6, 1200e-6], H200) == 2
    assert chosen_tile(conv(batch=None), [110e-6, 900e-6], H200) is None
    assert chosen_tile(conv(batch=None), [90e-6, 9000e-6], H200) is None


def test_tiles_of_an_open_batch_are_those_of_an_image_and_fill_vectors() -> None:
    assert conv(batch=None, size=28).tiles(4) == 52 and conv(batch=None, size=7).tiles(4) == 4


def test_large_tiles_are_for_sums_that_stay_accurate_and_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {2: 100e-6, 4: 50e-6}
    monkeypatch.setattr(rule, "winograd_s", lambda convolution, tile, _: times[tile])
    assert chosen_tile(conv(), [1.0], H200) == 4
    assert chosen_tile(conv(channels=1024, size=14), [1.0], H200) == 2
    assert chosen_tile(conv(channels=32), [1.0], H200) is None
    times[4] = 95e-6
    assert chosen_tile(conv(), [1.0], H200) == 2


def test_products_that_no_cost_knows_are_never_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "without_record_s", lambda *_: None)
    rule._products_s.cache_clear()
    found: Any = chosen_tile(conv(), [1.0], H200)
    rule._products_s.cache_clear()
    assert found is None
