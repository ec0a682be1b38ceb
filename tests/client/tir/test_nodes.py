"""Constants of Relax without copies, and kernels that are made once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tvm import te  # noqa: E402

from tunehub.graph.kernel_calls import Kernels  # noqa: E402
from tunehub.tir.nodes import constant_array, constant_like, static_shape, tensor_class  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 1, 5), (300, 1000)])
def test_a_constant_is_what_was_written(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    constant = constant_like(shape, "float32", lambda array: np.copyto(array, values))
    assert static_shape(constant) == shape
    np.testing.assert_array_equal(constant_array(constant), values)


def test_an_array_of_a_constant_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        constant_array(relax.const(np.ones(3, "float32")))[0] = 2


def test_an_array_outlives_its_constant() -> None:
    array = constant_array(relax.const(np.full(100_000, 7, "float32")))
    assert (array == 7).all()


def test_element_types_that_numpy_lacks_are_copied() -> None:
    assert constant_array(relax.const([1.0, 2.5], "bfloat16")).astype("float32").tolist() == [1, 2.5]


def test_equal_kernels_are_made_once() -> None:
    made: list[Any] = []

    def doubled(x: Any) -> Any:
        made.append(x)
        return te.compute(x.shape, lambda *i: x[i] * 2.0)

    builder = relax.BlockBuilder()
    x = relax.Var("x", _tensor((2, 3)))
    y = relax.Var("y", _tensor((4,)))
    with builder.function("main", [x, y]):
        kernels = Kernels(builder)
        with builder.dataflow():
            first = builder.emit(kernels.call(doubled, x, name="doubled"))
            second = builder.emit(kernels.call(doubled, first, name="doubled"))
            builder.emit(kernels.call(doubled, y, name="doubled"))
            result = builder.emit_output(second)
        builder.emit_func_output(result)
    assert len(made) == 2
    assert len(builder.get().functions) == 3
    assert static_shape(second) == (2, 3)


def _tensor(shape: tuple[int, ...]) -> Any:
    kind = tensor_class()
    return kind(shape, "float32")
