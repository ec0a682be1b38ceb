"""Schedules whose fused loops are divided by open extents: extents of zero, and functions that stay what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import topi

pytestmark = pytest.mark.slow

SHAPE = (40, "s0", "s1", 3)


@pytest.mark.parametrize("make", [lambda x: topi.nn.softmax(x, axis=2), lambda x: topi.transpose(x, (2, 0, 3, 1))])
def test_tensors_without_elements_run_as_with_the_loops(make: Any, cpu: Any, opened: Any) -> None:
    case = opened.open_case(make, SHAPE, symbols=2)
    made = opened.scheduled(case, cpu)
    function, reference = opened.compiled(made.mod, cpu), opened.compiled(case.mod, cpu)
    for values in ((0, 3), (3, 0), (0, 0), (1, 1), (7, 13), (131, 2)):
        arrays, found = opened.outputs(function, case, values, np.random.default_rng(0))
        expected = opened.written(reference, arrays, case.shapes(*values)[-1])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scheduling_leaves_the_function_as_it_was(cpu: Any, opened: Any) -> None:
    case = opened.open_case(lambda x: topi.nn.softmax(x, axis=2), SHAPE, symbols=2)
    before = case.mod.script()
    assert opened.scheduled(case, cpu) is not None
    assert case.mod.script() == before
