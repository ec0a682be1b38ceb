"""Functions without reductions on CUDA: neighbours by vectors, whatever order they are copied into. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tvm.relax import op

from tunehub.kernels.cuda.rows import elementwise
from tunehub.kernels.devices.known import device_of

from ..scheduled import H200
from .cases import computed, function_of

pytestmark = pytest.mark.slow


def _windows(b: Any, x: Any) -> Any:
    """Windows of 2 x 2 of an image that is moved by one, as Swin has them."""
    for axis in (1, 2):
        parts = [b.emit(op.strided_slice(x, [axis], [begin], [end])) for begin, end in ((1, 4), (0, 1))]
        x = b.emit(op.concat(parts, axis=axis))
    apart = b.emit(op.permute_dims(b.emit(op.reshape(x, (1, 2, 2, 2, 2, 16))), [0, 1, 3, 2, 4, 5]))
    return op.reshape(apart, (4, 4, 16))


def _back_and_added(b: Any, x: Any, y: Any) -> Any:
    together = b.emit(op.permute_dims(b.emit(op.reshape(x, (1, 2, 2, 2, 2, 16))), [0, 1, 3, 2, 4, 5]))
    return op.add(b.emit(op.reshape(together, (1, 4, 4, 16))), y)


def _excited(b: Any, gate: Any, x: Any, scale: Any) -> Any:
    scaled = b.emit(op.multiply(b.emit(op.multiply(x, b.emit(op.sigmoid(gate)))), scale))
    return op.multiply(scaled, b.emit(op.sigmoid(scaled)))


def _of_odd_rows(b: Any, x: Any, y: Any) -> Any:
    return op.multiply(b.emit(op.strided_slice(x, [1], [3], [11])), y)


def _built(mod: Any) -> tuple[Any, Any]:
    workload = elementwise.match(mod, H200)
    assert workload is not None
    (found,) = elementwise.candidates(workload, device_of(H200))
    return found.tile, elementwise.build(workload, found.tile).mod


@pytest.mark.parametrize(
    ("make", "shapes", "vectors"),
    [
        (_windows, ((1, 4, 4, 16),), 1),
        (_back_and_added, ((4, 4, 16), (1, 4, 4, 16)), 2),
        (_excited, ((1, 1, 1, 32), (1, 5, 5, 32), (1, 1, 1, 32)), 4),
        (_of_odd_rows, ((6, 13), (6, 8)), 2),
    ],
)
def test_results_are_what_the_function_says(make: Any, shapes: Any, vectors: int) -> None:
    mod = function_of(make, *shapes)
    tile, scheduled = _built(mod)
    assert tile.vector == 8
    assert scheduled["main"].script().count("T.vectorized(T.int64(8))") == vectors
    found, expected = computed(mod, scheduled)
    np.testing.assert_allclose(found, expected, atol=1e-3, rtol=1e-3)


def test_a_step_that_is_read_twice_is_computed_once() -> None:
    _, scheduled = _built(function_of(_excited, (1, 1, 1, 32), (1, 5, 5, 32), (1, 1, 1, 32)))
    assert scheduled["main"].script().count("T.sigmoid") == 2


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda b, x: op.permute_dims(x, [1, 0]), ((16, 16),)),
        (lambda b, x: op.nn.relu(x), ((4, 7),)),
        (lambda b, x: op.sum(x, axis=[1]), ((8, 64),)),
    ],
    ids=["other neighbours", "odd rows", "a reduction"],
)
def test_other_functions_are_left_to_others(make: Any, shapes: Any) -> None:
    assert elementwise.match(function_of(make, *shapes), H200) is None
