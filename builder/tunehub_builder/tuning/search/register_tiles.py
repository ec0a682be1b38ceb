"""The search among the sketches of :mod:`tunehub_builder.tuning.space.register_tiles`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.search.strategy import REGISTRY, trace_id
from tunehub_builder.tuning.search.tiles import TileSearch
from tunehub_builder.tuning.space import register_tiles as sketch
from tunehub_builder.tuning.space.register_tiles import RegisterTile

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, Schedule

_BEST_TO_VARY = 2
_NEIGHBOURS = 1.0  # factors of two between register tiles


class RegisterTileSearch:
    """All register tiles of the task's sketches, then variations of the best ones.

    After trials that came from a registry, those around the fastest are first: neighbours of its register tile, then
    variations, then the other tiles from near to far.
    """

    name = "sketch"

    def __init__(self, mod: IRModule, vector: int) -> None:
        """``vector``: as ``register_tiles`` of the sketch takes it."""
        self._loops = sketch.loops_of(mod)
        tiles = [] if self._loops is None else sketch.register_tiles(self._loops, vector)
        self._search = TileSearch(tiles, lambda tile: self._apply(mod, tile))
        self._texts: list[str] | None = None

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """The register tiles and variations in their order, until none is new."""
        if self._texts is None:
            self._texts = [text for text, _ in self._search.schedules(self._search.tiles)]
        measured = {trace_id(trial.trace): trial for trial in trials}
        fresh = [text for text in self._texts if text not in measured]
        center = center_of(trials)
        if center is not None:
            far = {text: sketch.apart(self._search.tile_of[text].sizes, center) for text in fresh}
            fresh.sort(key=far.__getitem__)
            near = [text for text in fresh if far[text] <= _NEIGHBOURS]
            fresh = near or self._variations(measured) or fresh
        return [json.loads(text) for text in (fresh or self._variations(measured))[:limit]]

    def _variations(self, measured: Mapping[str, Trial]) -> list[str]:
        """Those of the fastest sketches that were not measured yet."""
        tile_of = self._search.tile_of
        mine = sorted((text for text in tile_of if text in measured), key=lambda text: measured[text].mean_s)
        best = [tile_of[text] for text in mine[:_BEST_TO_VARY] if measured[text].run_s]
        varied = (changed for tile in best for changed in sketch.variations(self._found_loops, tile))
        return [text for text, _ in self._search.schedules(varied, measured)]

    def _apply(self, mod: IRModule, tile: RegisterTile) -> Schedule:
        from tvm.s_tir import meta_schedule as ms

        schedule = sketch.apply(mod, self._found_loops, tile)
        if not ms.postproc.RewriteLayout().apply(schedule):
            raise ValueError("the layout of its weights cannot be changed")
        return schedule

    @property
    def _found_loops(self) -> sketch.Loops:
        assert self._loops is not None
        return self._loops


def center_of(trials: Sequence[Trial]) -> tuple[int, int, int] | None:
    """The register tile of the fastest trial that has one; None when no trial came from a registry."""
    if not any(trial.source.startswith(REGISTRY) for trial in trials):
        return None
    tiled = [(trial.mean_s, tile) for trial in trials if trial.run_s and (tile := sketch.register_tile(trial.trace))]
    return min(tiled)[1] if tiled else None
