"""Where candidates come from: the port of all searches.

A search's traces are in the portable form of :mod:`tunehub.tir.traces`; what it proposes next depends on the trials
that it is told about, so that a resumed run goes on where the journal ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from tunehub_builder.tuning.journal import Trial

REGISTRY = "registry"  # so the sources of trials begin that records of a package or the user's own led to


class SearchStrategy(Protocol):
    """A tuner's search for one task. Its ``name`` is the source of the trials that it leads to."""

    name: str

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """Return at most ``limit`` candidates that are not among ``trials``; an empty list ends the search."""
        ...


def trace_id(trace: Any) -> str:
    """A text that is equal for equal traces."""
    return json.dumps(trace, sort_keys=True, separators=(",", ":"))
