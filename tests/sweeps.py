"""Sweeps: many cases alike, of which `nox` runs the first or a covering choice, and `nox -s sweep` the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, groupby, product
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


def sweep_all_but_few(items: Iterable[pytest.Item]) -> None:
    """Of a test with the marker `few(count)`, so many cases are for every run; the rest are marked `sweep`."""
    marked = (item for item in items if item.get_closest_marker("few") and not item.get_closest_marker("sweep"))
    for _, group in groupby(marked, key=lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        few = cases[0].get_closest_marker("few")
        assert few is not None
        chosen = spread([case.callspec.indices for case in cases], *few.args)  # type: ignore[attr-defined]
        for number in {*range(len(cases))} - chosen:
            cases[number].add_marker("sweep")


def spread(cases: Sequence[Mapping[str, int]], count: int) -> set[int]:
    """The numbers of `count` cases that have as many values of their parameters as so many can have, and are far from
    each other in their order."""
    chosen: set[int] = set()
    seen: set[tuple[str, int]] = set()
    while len(chosen) < min(count, len(cases)):
        best = max(
            {*range(len(cases))} - chosen,
            key=lambda each: (len(cases[each].items() - seen), min((abs(each - one) for one in chosen), default=-each)),
        )
        chosen.add(best)
        seen |= cases[best].items()
    return chosen
