"""Opening the records that a warm start is made of: what a compile for the target would use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import HubWarning
from tunehub.records.lookup import EmptyLookup, RecordLookup
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.recipe import Recipe
from tunehub_builder.tuning.target import TuningTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRecords:
    """The records of the package ``label`` behind the user's own, or those alone."""

    label: str
    lookup: RecordLookup


@contextmanager
def known_records(recipe: Recipe, target: TuningTarget) -> Iterator[KnownRecords | None]:
    """The records to start from, open inside the block; None when there are none, or no warm start is wanted.

    Raises TuningError when one is asked for that cannot be, UsageError for wrong settings.
    """
    wanted = recipe.warm_start
    if wanted is False:
        yield None
        return
    hub = _opened(recipe, target)
    try:
        known = _known(hub)
        if known is None and wanted:
            reasons = "; ".join(hub.report().notes)
            raise TuningError(f"--warm-start: there are no records for {target.name}: {reasons}")
        yield known
    finally:
        hub.close()


def _known(hub: Hub) -> KnownRecords | None:
    if isinstance(hub.lookup, EmptyLookup):
        return None
    chosen = hub.resolution.chosen
    return KnownRecords(label=chosen.label if chosen else "own records", lookup=hub.lookup)


def _opened(recipe: Recipe, target: TuningTarget) -> Hub:
    """Without warnings: that no package serves a target is why it is tuned."""
    import tvm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HubWarning)
        return open_hub(tvm.target.Target(target.config), registry=recipe.registry or None, strict=False)
