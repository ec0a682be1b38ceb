"""What the searches of all sketches share: schedules of tiles, once each, and which is next. Fakes stand for TVM."""

from __future__ import annotations

from itertools import count, islice
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tunehub_builder.tuning.search import tiles
from tunehub_builder.tuning.search.strategy import trace_id
from tunehub_builder.tuning.search.tiles import TileSearch, likeliest_first

pytestmark = pytest.mark.fast


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tiles that were applied. Those below 0 are refused; a trace is the tile's tens."""
    monkeypatch.setattr(tiles, "export_trace", lambda trace: trace)
    return []


def search_of(given: list[int], applied: list[int]) -> TileSearch[int]:
    def apply(tile: int) -> Any:
        applied.append(tile)
        if tile < 0:
            raise RuntimeError("refused")
        return SimpleNamespace(trace=tile // 10)

    return TileSearch(given, apply)


def test_schedules_come_in_order_once_each_and_none_is_made_ahead(applied: list[int]) -> None:
    search = search_of([30, 31, -1, 20, 10], applied)
    found = [text for text, _ in islice(search.schedules(search.tiles, {trace_id(2)}), 2)]
    assert found == [trace_id(3), trace_id(1)]
    assert search.tile_of[trace_id(3)] == 30
    applied.clear()
    next(search.schedules([30, 10]))
    assert applied == [30]


def test_a_refused_tile_is_not_tried_again(applied: list[int]) -> None:
    search = search_of([-1, 10], applied)
    assert len(list(search.schedules([-1, -1, 10]))) == 1
    assert list(search.schedules([-1])) == []
    assert applied == [-1, 10]
    assert search.left() == [10]


def test_likely_tiles_and_neighbours_are_mixed_until_none_is_left(applied: list[int]) -> None:
    search = search_of(list(range(100)), applied)
    search.out.update(range(50))
    found = list(islice(search.order(count(1000), Random(0)), 40))
    likely = [tile for tile in found if tile < 1000]
    assert likely == list(range(50, 50 + len(likely)))
    assert 5 < len(likely) < 25
    assert list(search.order(iter(()), Random(0))) == list(range(50, 100))


def test_a_model_orders_tiles_up_to_a_blur() -> None:
    assert likeliest_first(range(1, 9), lambda tile: 9.0 - tile, Random(0), 0.0) == list(range(8, 0, -1))
    assert sorted(likeliest_first(range(1, 9), lambda tile: 9.0 - tile, Random(0), 5.0)) == list(range(1, 9))
