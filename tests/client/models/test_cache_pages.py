"""Pages of sequences: what is planned of them."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm

from tunehub.exceptions import UsageError
from tunehub.models.cache_pages import CachePages, StepTensors

pytestmark = pytest.mark.fast


def _with(lengths: dict[int, int], pages: int = 8) -> CachePages:
    found = CachePages(pages)
    for sequence, length in lengths.items():
        found.add(sequence)
        found.plan([sequence], [length])
    return found


def test_tokens_go_behind_those_that_are_there() -> None:
    plan = _with({3: 15, 5: 16}).plan([5, 3], [1, 2])
    assert {name: values.tolist() for name, values in plan.items()} == {
        "positions": [16, 15, 16],
        "places": [32, 15, 48],
        "page_starts": [0, 2, 4],
        "pages_used": [1, 2, 0, 3],
        "last_page_lengths": [1, 1],
        "first_positions": [0, 0],
        "starts": [0, 1, 3],
    }


def test_pages_of_removed_sequences_are_used_again() -> None:
    pages = _with({1: 40, 2: 60})
    pages.remove(1)
    assert pages.free == 4
    pages.add(4)
    assert set(pages.plan([4], [64])["pages_used"].tolist()) == {0, 1, 2, 7}


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    pages = _with({1: 40, 2: 60})
    with pytest.raises(UsageError, match="remove a sequence"):
        pages.plan([1, 2], [9, 21])
    assert (pages.length(1), pages.length(2), pages.free) == (40, 60, 1)


def test_sequences_are_added_once_and_known_before_they_are_used() -> None:
    pages = _with({1: 1})
    for change, sequence in ((pages.add, 1), (pages.remove, 2), (pages.length, 2)):
        with pytest.raises(UsageError, match="sequence"):
            change(sequence)


def test_tensors_of_a_step_keep_their_places() -> None:
    given, pages = StepTensors(2, 2, 6, tvm.cpu(), decode=True), _with({1: 15, 2: 40})
    before = [each.__dlpack__() for each in given.arguments]
    given.write(pages.plan([1, 2], [1, 1]))
    positions, places, starts, used, lengths, first = (each.numpy().tolist() for each in given.arguments)
    assert (positions, places, starts, used[:4]) == ([15, 40], [15, 56], [0, 1, 4], [0, 1, 2, 3])
    assert (lengths, first, len(before)) == ([16, 9], [0, 0], 6)


def test_a_plan_for_others_is_refused() -> None:
    given, pages = StepTensors(1, 1, 1, tvm.cpu(), decode=True), _with({1: 15, 2: 15})
    with pytest.raises(ValueError, match="positions"):
        given.write(pages.plan([1, 2], [1, 1]))
    with pytest.raises(ValueError, match="pages_used"):
        given.write({**pages.plan([1], [1]), "pages_used": pages.plan([2], [8])["pages_used"]})
