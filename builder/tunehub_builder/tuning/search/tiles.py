"""The search among the tiles of a sketch: likely ones first, then neighbours of the fastest.

A sketch is its tiles, in the order in which they are worth a try, and what makes a schedule of one. Which of them are
neighbours, and whose are next, each sketch's own search says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tunehub.tir.traces import export_trace
from tunehub_builder.tuning.search.strategy import trace_id

if TYPE_CHECKING:
    from tunehub.tir.types import Schedule

T = TypeVar("T")
_BY_MODEL = 0.3  # of candidates where there are fast ones to be varied


class TileSearch(Generic[T]):
    """Makes schedules of ``tiles``, the likeliest first, by ``apply``; it raises where TVM or the client refuses one.

    ``out``: tiles that are not to be proposed (again). ``tile_of``: by the text of its trace, of all that was made.
    """

    def __init__(self, tiles: Sequence[T], apply: Callable[[T], Schedule]) -> None:
        self.tiles = tiles
        self._apply = apply
        self.out: set[T] = set()
        self.tile_of: dict[str, T] = {}
        self._texts: dict[T, str] = {}
        self._refused: set[T] = set()

    def schedules(self, tiles: Iterable[T], known: Container[str] = ()) -> Iterator[tuple[str, Schedule]]:
        """The schedules of ``tiles`` by the text of their traces, in order and once each, without what is ``known``.

        One is made when it is asked for.
        """
        seen: set[str] = set()
        for tile in tiles:
            if tile in self._refused or self._texts.get(tile) in seen or self._texts.get(tile, "") in known:
                continue
            schedule = fitting(self._apply, tile)
            if schedule is None:
                self._refused.add(tile)
                self.out.add(tile)
                continue
            text = self._texts[tile] = trace_id(export_trace(schedule.trace))
            self.tile_of.setdefault(text, tile)
            if text not in seen and text not in known:
                seen.add(text)
                yield text, schedule

    def order(self, near: Iterator[T | None], random: Random) -> Iterator[T]:
        """By chance the next of ``near``, or the likeliest that is left; this one, too, where ``near`` has none."""
        likely = (tile for tile in self.tiles if tile not in self.out)
        while (tile := next(likely if random.random() < _BY_MODEL else near, None) or next(likely, None)) is not None:
            yield tile

    def left(self) -> list[T]:
        """The tiles that may be proposed, the likeliest first."""
        return [tile for tile in self.tiles if tile not in self.out]


def likeliest_first(tiles: Iterable[T], seconds: Callable[[T], float], random: Random, blur: float) -> list[T]:
    """``tiles`` by what they take according to a model, whose logarithm is blurred: it is not to choose one corner."""
    blurred = {tile: math.log(seconds(tile)) + random.gauss(0.0, blur) for tile in tiles}
    return sorted(blurred, key=blurred.__getitem__)


def fitting(apply: Callable[..., Any], *arguments: Any) -> Any:
    """The schedule that ``apply`` makes; None when TVM, or the client's guard, refuses it."""
    try:
        return apply(*arguments)
    except Exception:  # TVM raises many kinds where a primitive does not take its place
        return None
