"""Reductions along an open axis in which neighbours lie side by side: vectors of partial results, and a remainder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import topi  # noqa: E402

pytestmark = pytest.mark.slow

SIZES = (1, 2, 15, 16, 17, 31, 32, 33, 61, 64, 128, 1000)


def _variance(x: Any) -> Any:
    centred = topi.subtract(x, topi.divide(topi.sum(x, axis=1, keepdims=True), x.shape[1].astype("float32")))
    return topi.sqrt(topi.add(topi.sum(topi.multiply(centred, centred), axis=1, keepdims=True), 1e-5))


EVERYTHING = {"largest": lambda x: topi.max(x), "least": lambda x: topi.min(x), "sum": lambda x: topi.sum(x)}


@pytest.mark.parametrize("columns", [96, 331])
@pytest.mark.parametrize("name", EVERYTHING)
def test_one_result_of_all_elements(name: str, columns: int, cpu: Any, opened: Any) -> None:
    case = opened.open_case(EVERYTHING[name], (1, "s0", columns))
    found = opened.scheduled(case, cpu)
    assert found is not None and found.template == "loops"
    assert ("T.vectorized" in str(found.mod)) == (columns % 4 == 0)
    fast, plain = opened.compiled(found.mod, cpu), opened.compiled(case.mod, cpu)
    for size in SIZES:
        arrays, got = opened.outputs(fast, case, (size,), np.random.default_rng(3))
        expected = opened.written(plain, arrays, case.shapes(size)[-1])
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3, err_msg=f"{name} at {size}")


CASES = {
    "sum": lambda x: topi.sum(x, axis=1),
    "max": lambda x: topi.max(x, axis=1),
    "root of a sum": lambda x: topi.sqrt(topi.add(topi.sum(topi.multiply(x, x), axis=1), 1.0)),
    "variance": _variance,
    "softmax": lambda x: topi.nn.softmax(x, axis=1),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_loops_at_every_size(name: str, cpu: Any, opened: Any) -> None:
    case = opened.open_case(CASES[name], (192, "s0"))
    found = opened.scheduled(case, cpu)
    assert found is not None and found.template == "loops"
    fast, plain = opened.compiled(found.mod, cpu), opened.compiled(case.mod, cpu)
    for size in SIZES:
        arrays, got = opened.outputs(fast, case, (size,), np.random.default_rng(3))
        expected = opened.written(plain, arrays, case.shapes(size)[-1])
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=f"{name} at {size}")
