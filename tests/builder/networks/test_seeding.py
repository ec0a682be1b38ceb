"""Random weights: deterministic, and of the deviation asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunehub_builder.networks import seeding

pytestmark = pytest.mark.fast


def test_each_name_has_its_own_stream() -> None:
    first = seeding.normal(0, "a", (100,), 1.0)
    np.testing.assert_array_equal(first, seeding.normal(0, "a", (100,), 1.0))
    assert not np.array_equal(first, seeding.normal(0, "b", (100,), 1.0))
    assert not np.array_equal(first, seeding.normal(1, "a", (100,), 1.0))


def test_a_pinned_value_so_that_records_of_the_numerics_stay_comparable() -> None:
    assert float(seeding.normal(0, "weight", (1,), 1.0)[0]) == pytest.approx(0.49035075306892395)


def test_deviations() -> None:
    values = seeding.normal(0, "w", (20_000,), 0.5)
    assert values.dtype == np.float32
    assert float(values.std()) == pytest.approx(0.5, rel=0.05)
    scales = seeding.around_one(0, "s", (1000,))
    assert scales.dtype == np.float32
    assert 0.9 <= float(scales.min()) < float(scales.max()) <= 1.1


def test_fan_in_deviation_is_he_initialisation_for_gain_sqrt_two() -> None:
    assert seeding.fan_in_deviation(50, gain=math.sqrt(2)) == pytest.approx(math.sqrt(2 / 50))
    assert seeding.fan_in_deviation(50, second_moment=4.0) == pytest.approx(1 / math.sqrt(200))
