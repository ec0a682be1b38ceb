"""Norms and softmaxes of rows on CUDA: a warp a row, which is read once. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tvm import relax
from tvm.relax import op

from tunehub.kernels.cuda.choose import likeliest, offers
from tunehub.kernels.cuda.gemm import tiles
from tunehub.kernels.cuda.rows import norms
from tunehub.kernels.cuda.rules import RULES
from tunehub.kernels.devices.known import device_of

from ..scheduled import H200
from .cases import computed, function_of

pytestmark = pytest.mark.slow


def _layer_norm(b: Any, x: Any, weight: Any, bias: Any) -> Any:
    return op.nn.layer_norm(x, weight, bias, axes=[-1])


def _rms_norm(b: Any, x: Any, weight: Any) -> Any:
    return op.nn.rms_norm(x, weight, axes=[-1])


def _mean(b: Any, x: Any) -> Any:
    return op.mean(x, [-1])


def _softmax(b: Any, x: Any) -> Any:
    return op.nn.softmax(x, axis=-1)


def _tile(mod: Any) -> tuple[Any, Any]:
    workload = norms.match(mod, H200)
    (found,) = norms.candidates(workload, device_of(H200)) if workload is not None else (None,)
    return workload, None if found is None else found.tile


@pytest.mark.parametrize(
    ("make", "shapes", "dtype", "vector"),
    [
        (_layer_norm, ((1, 6, 7, 96), (96,), (96,)), "float16", 1),
        (_layer_norm, ((64, 16, 384), (384,), (384,)), "float16", 4),
        (_layer_norm, ((5, 1536), (1536,), (1536,)), "float32", 4),
        (_rms_norm, ((3, 4, 512), (512,)), "float16", 8),
        (_softmax, ((2, 3, 64), ), "float32", 2),
        (_layer_norm, ((1, 6, 7, 80), (80,), (80,)), "float16", 1),
        (_layer_norm, ((1, 6, 7, 72), (72,), (72,)), "float32", 1),
        (_rms_norm, ((2, 2560), (2560,)), "float16", 8),
    ],
)  # fmt: skip
def test_rows_are_what_the_function_says(make: Any, shapes: Any, dtype: str, vector: int) -> None:
    mod = function_of(make, *shapes, dtype=dtype)
    workload, tile = _tile(mod)
    assert tile.vector == vector
    found, expected = computed(mod, norms.build(workload, tile).mod)
    np.testing.assert_allclose(found, expected, atol=4e-3 if dtype == "float16" else 1e-5, rtol=2e-3)


def test_rows_that_a_warp_does_not_divide_share_one() -> None:
    _, tile = _tile(function_of(_layer_norm, (3136, 80), (80,), (80,)))
    assert (tile.threads, tile.vector, tile.rows) == (16, 1, 8)
    _, tile = _tile(function_of(_layer_norm, (3136, 40), (40,), (40,)))
    assert (tile.threads, tile.vector, tile.rows) == (8, 1, 8)


def test_many_short_rows_are_not_taken_for_windows() -> None:
    """Of heads, say (Qwen3): a thread for each of 6,144 rows took 33 us on an H200."""

    def norm(b: Any, squares: Any, x: Any, weight: Any) -> Any:
        mean = b.emit(op.add(b.emit(op.mean(squares, [-1], keepdims=True)), relax.const(1e-6)))
        return b.emit(op.multiply(weight, b.emit(op.multiply(x, b.emit(op.rsqrt(mean))))))

    found = offers(RULES, function_of(norm, *[(8, 64, 16, 64)] * 2, (64,), dtype="float32"), H200, device_of(H200))
    assert [each.rule.NAME for each in found] == ["row_norms", "cuda_tiles"]
    best = likeliest(found)
    assert best is not None and best.rule.NAME == "row_norms"
    (windows,) = offers((tiles,), function_of(_mean, (8, 64, 16, 64), dtype="float32"), H200, device_of(H200))
    assert windows.place_s == 0


def test_a_row_is_read_once_and_by_vectors() -> None:
    workload, tile = _tile(function_of(_layer_norm, (1024, 384), (384,), (384,)))
    assert tile.rows == 2
    script = norms.build(workload, tile).mod["main"].script()
    assert script.count("T.vectorized(T.int64(4))") == 4  # the row, weights, biases, results


def test_rows_of_a_block_are_of_one_place_along_all_other_axes() -> None:
    mod = function_of(_layer_norm, (100, 28, 64), (64,), (64,))
    workload, tile = _tile(mod)
    assert tile.rows == 7
    found, expected = computed(mod, norms.build(workload, tile).mod)
    np.testing.assert_allclose(found, expected, atol=4e-3, rtol=2e-3)


@pytest.mark.parametrize("shape", [(4, 100), (4, 4096)])
def test_rows_that_a_warp_does_not_divide_or_hold_are_left_to_others(shape: tuple[int, ...]) -> None:
    workload = norms.match(function_of(_softmax, shape), H200)
    assert workload is not None
    assert not list(norms.candidates(workload, device_of(H200)))


def test_a_sum_of_rows_alone_is_no_such_function() -> None:
    assert norms.match(function_of(lambda b, x: op.sum(x, axis=[-1]), (8, 64)), H200) is None
