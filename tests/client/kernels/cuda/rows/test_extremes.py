"""Extremes of rows on CUDA: a block of threads a row, which is read once. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tvm.relax import op

from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.rows import extremes
from tunehub.kernels.devices.known import device_of

from ..scheduled import H200
from .cases import computed, function_of

pytestmark = pytest.mark.slow


def _largest(b: Any, x: Any) -> Any:
    return op.max(x, axis=-1, keepdims=True)


def _least(b: Any, x: Any) -> Any:
    return op.min(x, axis=-1)


def _sum(b: Any, x: Any) -> Any:
    return op.sum(x, axis=-1)


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "tile"),
    [
        (_largest, (3, 11008), "float32", extremes.ExtremesTile(threads=64, vector=4)),
        (_largest, (2, 5, 768), "float16", extremes.ExtremesTile(threads=96, vector=8)),
        (_least, (4, 1056), "float32", extremes.ExtremesTile(threads=96, vector=1)),
    ],
)
def test_each_row_has_its_extreme(make: Any, shape: Any, dtype: str, tile: Any) -> None:
    mod = function_of(make, shape, dtype=dtype)
    workload = extremes.match(mod, H200)
    assert workload is not None
    (found,) = extremes.candidates(workload, device_of(H200))
    assert found.tile == tile
    np.testing.assert_array_equal(*computed(mod, extremes.build(workload, found.tile).mod))


def test_the_rule_serves_and_what_it_serves_is_checked() -> None:
    assert by_one(extremes, function_of(_largest, (64, 1024), dtype="float32"), H200) is not None


@pytest.mark.parametrize(("make", "shape"), [(_sum, (4, 1024)), (_largest, (4, 1000))])
def test_sums_and_rows_that_no_warp_divides_are_left_to_others(make: Any, shape: Any) -> None:
    workload = extremes.match(function_of(make, shape, dtype="float32"), H200)
    assert workload is None or not list(extremes.candidates(workload, device_of(H200)))
