from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_builder.packing.curves import STEPS, tuning_curve
from tunehub_builder.tuning.best_so_far import BestSoFar
from tunehub_registry.tuning_curves import encode_curves, parse_curves

pytestmark = pytest.mark.fast


def best_of(times: list[float]) -> BestSoFar:
    best = BestSoFar()
    for seconds in times:
        best.add(seconds)
    return best


@given(st.lists(st.floats(min_value=1e-9, max_value=10.0) | st.sampled_from([math.inf, math.nan, 0.0]), max_size=200))
def test_a_curve_can_be_written_and_ends_at_the_best_time(times: list[float]) -> None:
    best = best_of(times)
    curve = tuning_curve("a" * 32, "template", best)
    if curve is None:
        assert not best.steps
        return
    assert parse_curves(encode_curves([curve]), "x") == (curve,)
    assert curve.trials == len(times)
    assert curve.steps[0][0] == best.steps[0][0]
    assert curve.steps[-1][1] == pytest.approx(best.steps[-1][1], rel=5e-3)
    assert len(curve.steps) <= STEPS


def test_of_many_steps_those_that_gained_most_stay() -> None:
    times = [1.0 - k / 1000 for k in range(1, 40)] + [0.5] + [0.5 - k / 1000 for k in range(1, 40)]
    curve = tuning_curve("a" * 32, "template", best_of(times))
    assert curve is not None
    assert (curve.steps[0], curve.steps[-1]) == ((1, 0.999), (79, 0.461))
    assert (40, 0.5) in curve.steps
    assert len(curve.steps) == STEPS
