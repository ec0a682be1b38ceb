"""Open dimensions of Relax modules get sizes, by their names or by the shapes of inputs."""

from __future__ import annotations

from typing import Any

import pytest

from tunehub.tir.nodes import shape_of, tensor_class
from tunehub_builder.networks import ModelFileError

tvm = pytest.importorskip("tvm")

from tunehub_builder.networks.fixing import with_fixed  # noqa: E402 - only if there is tvm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def module() -> Any:
    """x [n, 3] and y [n, m], of which the second is returned."""
    relax = tvm.relax
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    x, y = relax.Var("x", tensor_class()((n, 3), "float32")), relax.Var("y", tensor_class()((n, m), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        builder.emit_func_output(builder.emit(relax.op.exp(y)))
    return builder.get()


def shapes(mod: Any) -> list[Any]:
    return [tuple(e if isinstance(e, int) else str(e) for e in shape_of(each) or ()) for each in mod["main"].params]


def test_a_name_or_a_shape_fixes_a_dimension_in_all_inputs(module: Any) -> None:
    assert shapes(with_fixed(module, {}, {"n": 5}, "file")) == [(5, 3), (5, "m")]
    assert shapes(with_fixed(module, {"x": (5, 3)}, {}, "file")) == [(5, 3), (5, "m")]
    assert shapes(with_fixed(module, {"y": (5, 7)}, {}, "file")) == [(5, 3), (5, 7)]
    assert with_fixed(module, {}, {}, "file") is module


@pytest.mark.parametrize(
    ("given", "sizes", "expected"),
    [
        ({}, {"batch": 1}, r"file: there is no open dimension 'batch'\. Its open dimensions are n, m"),
        ({"z": (1,)}, {}, r"there is no input 'z'\. Give shapes for the inputs it has: x, y"),
        ({"x": (5, 4)}, {}, r"the shape \(5, 4\) given for input 'x' contradicts the file's \(n, 3\)"),
        ({"x": (5,)}, {}, "contradicts"),
        ({"x": (5, 3)}, {"n": 4}, "'n' is 4, and 5 by the shape given for input 'x'"),
    ],
)
def test_what_it_has_not_is_named(module: Any, given: Any, sizes: Any, expected: str) -> None:
    with pytest.raises(ModelFileError, match=expected):
        with_fixed(module, given, sizes, "file")
