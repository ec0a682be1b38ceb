"""Which knobs are measured next: a rule of the space and the trials so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_builder.tuning.journal import KnobChoice, Trial
from tunehub_builder.tuning.search.knobs import PATIENCE, WHOLE, asked_choices, choice_id, next_choices

pytestmark = pytest.mark.fast

BATCH = 8


def choice(**knobs: int) -> KnobChoice:
    return KnobChoice(template="conv2d", version=1, knobs=knobs)


LARGE = tuple(choice(a=a, b=b, c=c) for a, b, c in itertools.product(range(5), range(4), range(4)))


def search(space: Sequence[KnobChoice], seconds: Callable[[KnobChoice], float | None]) -> list[Trial]:
    """All trials until the search ends; None for seconds is a failure."""
    trials: list[Trial] = []
    while batch := next_choices(space, trials)[:BATCH]:
        for found in batch:
            time = seconds(found)
            outcome = {"error": "KnobError"} if time is None else {"run_s": (time,)}
            trials.append(Trial(task="a" * 32, choice=found, source="conv2d 1", **outcome))  # type: ignore[arg-type]
    return trials


def test_a_small_space_is_measured_whole_in_the_templates_order() -> None:
    space = LARGE[:WHOLE]
    assert [trial.choice for trial in search(space, lambda _: 1.0)] == list(space)
    assert [trial.choice for trial in search(space, lambda _: None)] == list(space)


def test_a_large_space_is_left_when_nothing_gets_better() -> None:
    trials = search(LARGE, lambda _: 1.0)
    assert trials[0].choice == LARGE[0]
    assert WHOLE <= len(trials) <= max(WHOLE, PATIENCE) + BATCH


def test_neighbours_of_the_best_come_first() -> None:
    best = choice(a=4, b=3, c=3)
    trials = search(LARGE, lambda found: 1.0 + sum(abs(best.knobs[name] - found.knobs[name]) for name in best.knobs))
    assert best in [trial.choice for trial in trials]
    assert len(trials) < len(LARGE)


def test_a_space_without_choices_is_at_its_end() -> None:
    assert next_choices((), []) == []


def test_proposed_choices_come_right_behind_the_templates_own() -> None:
    elsewhere, other = choice(a=9, b=9, c=9), KnobChoice(template="conv2d", version=2, knobs={"a": 9})
    proposed = [elsewhere, LARGE[0], other, elsewhere, LARGE[5]]
    first = asked_choices(LARGE, [], proposed)
    assert first == [LARGE[0], elsewhere, LARGE[5]]
    trials = [Trial(task="a" * 32, choice=found, source="conv2d 1", run_s=(1.0,)) for found in first]
    assert asked_choices(LARGE, trials[:2], proposed) == [LARGE[5]]
    assert asked_choices(LARGE, trials, proposed) == asked_choices((), [], proposed) == []


@given(
    st.integers(1, len(LARGE)),
    st.lists(st.sampled_from([None, 1.0, 1.001, 2.0, 3.0]), min_size=len(LARGE), max_size=len(LARGE)),
)
def test_every_search_ends_and_measures_nothing_twice(size: int, times: list[float | None]) -> None:
    by_id = {choice_id(found): time for found, time in zip(LARGE, times, strict=True)}
    trials = search(LARGE[:size], lambda found: by_id[choice_id(found)])
    ids = [choice_id(trial.choice) for trial in trials if trial.choice is not None]
    assert len(set(ids)) == len(ids) == len(trials) <= size
    assert trials[0].choice == LARGE[0]
    # Going on from any point of the journal proposes nothing that is there.
    assert not {choice_id(found) for found in next_choices(LARGE[:size], trials[: len(trials) // 2])} & set(
        ids[: len(ids) // 2]
    )
