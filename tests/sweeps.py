"""Sweeps: many cases alike, of which `nox` runs the first or a covering choice, and `nox -s sweep` the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def swept(first: Sequence[Any], everything: Iterable[Any]) -> list[Any]:
    """Parameters: `first` for every run, and the rest of `everything` for the session `sweep`."""
    return [*first, *(pytest.param(value, marks=pytest.mark.sweep) for value in everything if value not in first)]


def covering(*values: Sequence[Any], together: int = 1) -> list[Any]:
    """All combinations of the values of several parameters: for every run so many that each value is among them, or
    each pair of values that are `together` two; the rest for the session `sweep`."""
    listed = [[each if hasattr(each, "marks") else pytest.param(each) for each in some] for some in values]
    places = list(product(*(range(len(some)) for some in listed)))

    def covered(place: tuple[int, ...]) -> set[Any]:
        return set(combinations(enumerate(place), together))

    left = set[Any]().union(*map(covered, places))
    chosen = set()
    while left:
        best = max(places, key=lambda place: len(left & covered(place)))
        chosen.add(best)
        left -= covered(best)
    found = []
    for place in places:
        parts = [some[at] for some, at in zip(listed, place, strict=True)]
        marks = [mark for part in parts for mark in part.marks]
        marks += [] if place in chosen else [pytest.mark.sweep]
        found.append(pytest.param(*(part.values[0] for part in parts), marks=marks))
    return found
