"""Functions whose results are bytes on CUDA: neighbours at once. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from benchmarks.shared.threads_as_loops import threads_as_loops
from tvm import relax
from tvm.relax import op

from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.rows import bytes as byte_vectors
from tunehub.tir.nodes import parameters

from ..scheduled import H200
from .cases import function_of

pytestmark = pytest.mark.slow


def _quantised_image(b: Any, x: Any) -> Any:
    """Quantised, padded and with channels last, eight of them."""
    steps = b.emit(op.round(b.emit(op.multiply(x, relax.const(np.float32(20))))))
    limits = relax.const(np.float32(0)), relax.const(np.float32(255))
    low = b.emit(op.maximum(b.emit(op.add(steps, relax.const(np.float32(100)))), limits[0]))
    image = b.emit(op.astype(b.emit(op.minimum(low, limits[1])), "uint8"))
    padded = b.emit(op.nn.pad(image, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=100.0))
    return op.nn.pad(b.emit(op.permute_dims(padded, [0, 2, 3, 1])), [0, 0, 0, 0, 0, 0, 0, 5])


def _largest(b: Any, x: Any) -> Any:
    return op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1), layout="NHWC")


def _turned(b: Any, x: Any) -> Any:
    """With channels last, eight of them."""
    return op.nn.pad(b.emit(op.permute_dims(x, [0, 2, 3, 1])), [0, 0, 0, 0, 0, 0, 0, 5])


def _part_of_rows(b: Any, x: Any) -> Any:
    return op.strided_slice(x, [3], [3], [19])


def _merged(b: Any, x: Any) -> Any:
    """Pixels of 2 x 2 side by side, as Swin merges patches."""
    parts = [b.emit(op.strided_slice(x, [1, 2], [i, j], [8, 8], [2, 2])) for i in (0, 1) for j in (0, 1)]
    return op.concat(parts, axis=-1)


CASES = {
    "rows of several": lambda: function_of(_merged, (2, 8, 8, 24)),
    "image in half precision": lambda: function_of(_turned, (2, 3, 9, 7)),
    "part of rows of an odd length": lambda: function_of(_part_of_rows, (2, 5, 6, 35)),
    "window in half precision": lambda: function_of(_largest, (2, 8, 8, 16)),
    "image": lambda: function_of(_quantised_image, (2, 3, 9, 7), dtype="float32"),
    "window": lambda: function_of(_largest, (2, 8, 8, 16), dtype="uint8"),
    "window of signed bytes": lambda: function_of(_largest, (2, 9, 7, 16), dtype="int8"),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_function(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_vectors, "has_functions", lambda: False)  # a CPU has none of CUDA C++
    mod = CASES[case]()
    found = by_one(byte_vectors, mod, H200)
    assert found is not None
    looped = threads_as_loops(found[0].mod, scopes="local", all_loops=True)
    rng, results = np.random.default_rng(0), []
    source, result = ([int(e) for e in each.shape] for each in parameters(mod["main"]))
    dtypes = [str(each.dtype) for each in parameters(mod["main"])]
    is_float = dtypes[0].startswith("float")
    given = (rng.standard_normal(source) * 5 if is_float else rng.integers(-100, 100, source)).astype(dtypes[0])
    for each in (looped, mod):
        out = tvm.runtime.tensor(np.full(result, 77, dtypes[1]))
        tvm.compile(each, target="llvm")["main"](tvm.runtime.tensor(given), out)
        results.append(out.numpy())
    assert np.array_equal(*results) and len(np.unique(results[0])) > 10


def test_floats_and_rows_that_no_vector_divides_are_left_to_others() -> None:
    assert byte_vectors.match(function_of(_largest, (1, 8, 8, 8), dtype="float32"), H200) is None
    assert byte_vectors.match(function_of(_largest, (1, 8, 8, 6), dtype="uint8"), H200) is None
