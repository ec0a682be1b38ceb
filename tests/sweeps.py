"""Sweeps: many cases alike, of which `nox` runs the first, and `nox -s sweep` the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def swept(first: Sequence[Any], everything: Iterable[Any]) -> list[Any]:
    """Parameters: `first` for every run, and the rest of `everything` for the session `sweep`."""
    return [*first, *(pytest.param(value, marks=pytest.mark.sweep) for value in everything if value not in first)]
