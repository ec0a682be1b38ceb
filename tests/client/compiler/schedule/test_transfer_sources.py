"""The choice of a record for another shape."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.compiler.schedule.transfer_sources import (
    by_model,
    distance,
    features,
    most_efficient,
    nearest,
    predicted_default_s,
    predicted_s,
    promising,
)
from tunehub.records.lookup import Neighbour
from tunehub.tir.operator_class import OperatorClass

pytestmark = pytest.mark.fast

OWN = OperatorClass(key="0" * 32, shape=((1, 64, 30, 30), (1, 64, 28, 28, 64, 3, 3)))
shapes = st.tuples(*[st.integers(1, 512)] * 11)


def neighbour(*axes: int, run_s: float = 1e-3, default_s: float | None = 1e-1, package: str = "p") -> Neighbour:
    """One whose heavy block has these loops."""
    return Neighbour(
        extents=(1, 1, 1, 1, *axes), run_s=run_s, default_s=default_s, knobs=False, package=package, read=lambda: None
    )


NEAR = neighbour(1, 64, 28, 28, 32, 3, 3, run_s=2e-3, package="near")
FAST = neighbour(1, 256, 56, 56, 256, 3, 3, run_s=2e-2, package="fast", default_s=3.0)
ODD = neighbour(1, 61, 29, 29, 61, 3, 3, run_s=2e-4, package="odd")


def names(found: list[Neighbour]) -> list[str]:
    return [other.package for other in found]


def test_strategies() -> None:
    everything = [FAST, ODD, NEAR]
    assert names(nearest(OWN, everything))[-1] == "fast"
    assert (
        names(most_efficient(OWN, everything))[0]
        == max(everything, key=lambda o: math.prod(o.extents[4:]) / o.run_s).package
    )
    assert set(names(by_model(OWN, everything))) == {"fast", "odd", "near"}


def test_the_model_prefers_extents_that_tiles_divide() -> None:
    even = neighbour(1, 128, 28, 28, 64, 3, 3, run_s=2e-4)
    odd = neighbour(1, 127, 28, 28, 64, 3, 3, run_s=2e-4)
    assert by_model(OWN, [odd, even])[0] is even


@given(shapes)
def test_features_are_zero_for_the_same_shape_and_never_negative(extents: Any) -> None:
    assert features(OWN, OWN.extents) == (0.0, 0.0, 0.0)
    assert min(features(OWN, extents)) >= 0
    assert distance(OWN, extents) >= 0


def test_another_number_of_extents_is_no_neighbour() -> None:
    other = Neighbour(extents=(1, 2, 3), run_s=1.0, default_s=9.0, knobs=False, package="p", read=lambda: None)
    assert distance(OWN, other.extents) == math.inf
    assert promising(OWN, [other, NEAR]) == [NEAR]


@pytest.mark.parametrize(
    ("other", "promises"),
    [
        (NEAR, True),
        (neighbour(1, 64, 28, 28, 32, 3, 3, run_s=9e-2), False),  # hardly faster than the default where it was tuned
        (neighbour(1, 64, 28, 28, 32, 3, 3, default_s=None), True),
        (neighbour(1, 64, 28, 28, 32, 3, 3, run_s=1.0, default_s=None), False),
    ],
)
def test_only_what_beats_the_default_by_a_margin_is_worth_it(other: Neighbour, promises: bool) -> None:
    assert bool(promising(OWN, [other])) is promises


def test_starting_threads_is_not_worth_it_for_a_small_function() -> None:
    small = OperatorClass(key="0" * 32, shape=((1, 2, 3, 3), (1, 2, 1, 1, 2, 3, 3)))
    assert promising(small, [NEAR]) == []


def test_predictions_scale_with_the_work() -> None:
    twice = OperatorClass(key="0" * 32, shape=((1, 128, 30, 30), (1, 128, 28, 28, 64, 3, 3)))
    assert predicted_default_s(twice, NEAR) == pytest.approx(2 * predicted_default_s(OWN, NEAR))
    assert predicted_s(OWN, NEAR) >= OWN.work / (math.prod(NEAR.extents[4:]) / NEAR.run_s)
