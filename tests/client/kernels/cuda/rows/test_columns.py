"""Means over the pixels of images whose channels are last, on CUDA. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tvm.relax import op

from tunehub.kernels.cuda.rows import columns
from tunehub.kernels.devices.known import device_of

from ..scheduled import H200
from .cases import computed, function_of

pytestmark = pytest.mark.slow


def _pooled(b: Any, x: Any) -> Any:
    return op.nn.gelu(b.emit(op.mean(x, axis=[1, 2], keepdims=True)))


@pytest.mark.parametrize(("shape", "threads"), [((1, 28, 28, 48), 56), ((2, 7, 7, 24), 49)])
def test_means_are_what_the_function_says(shape: tuple[int, ...], threads: int) -> None:
    mod = function_of(_pooled, shape)
    workload = columns.match(mod, H200)
    assert workload is not None
    (found,) = columns.candidates(workload, device_of(H200))
    assert found.tile.threads == threads
    given, expected = computed(mod, columns.build(workload, found.tile).mod)
    np.testing.assert_allclose(given, expected, atol=1e-3, rtol=1e-3)


def test_a_product_of_one_row_with_a_matrix_adds_up_columns() -> None:
    def make(b: Any, x: Any, weight: Any, bias: Any) -> Any:
        return op.add(b.emit(op.astype(b.emit(op.matmul(x, weight, out_dtype="float32")), "float16")), bias)

    mod = function_of(make, (1, 96), (96, 40), (40,))
    workload = columns.match(mod, H200)
    assert workload is not None
    (found,) = columns.candidates(workload, device_of(H200))
    assert (found.tile.columns, found.tile.threads) == (8, 96)
    given, expected = computed(mod, columns.build(workload, found.tile).mod)
    np.testing.assert_allclose(given, expected, atol=2e-2, rtol=2e-3)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda b, x: op.mean(x, axis=[2, 3]), (1, 16, 8, 8)),
        (lambda b, x: op.max(x, axis=[1, 2]), (1, 8, 8, 16)),
        (lambda b, x: op.subtract(x, b.emit(op.mean(x, axis=[1, 2], keepdims=True))), (1, 8, 8, 16)),
    ],
    ids=["of rows", "largest", "with the image"],
)
def test_other_functions_are_left_to_others(make: Any, shape: tuple[int, ...]) -> None:
    assert columns.match(function_of(make, shape), H200) is None


def test_few_rows_are_left_to_others() -> None:
    workload = columns.match(function_of(_pooled, (1, 4, 4, 16)), H200)
    assert workload is not None
    assert not list(columns.candidates(workload, device_of(H200)))
