"""Reshapes of open shapes: which kernels are such, and that they are views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import relax, te, tirx, topi  # noqa: E402

from tunehub.compiler.pipeline import compile_module  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.shapes.reshapes import is_reshape  # noqa: E402
from tunehub.graph.workloads import workloads  # noqa: E402

from ....relax_nets import net  # noqa: E402

pytestmark = pytest.mark.slow

N = tirx.Var("n", "int64")
LENGTH = N // 5 - 1


def function(make: Callable[[Any], Any], *shape: Any, dtype: str = "float32") -> Any:
    """What ``make`` does with a tensor."""
    x = te.placeholder(shape, dtype, name="x")
    return te.create_prim_func([x, make(x)], index_dtype_override="int64")


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: topi.reshape(x, (1, 256, 1, LENGTH)), (1, 256, LENGTH)),
        (lambda x: topi.reshape(x, (256 * LENGTH,)), (1, 256, 1, LENGTH)),
        (lambda x: topi.reshape(x, (N, 4, 8)), (N, 32)),
        (lambda x: topi.expand_dims(x, 1), (1, (N - 400) // 320 + 1)),
        (lambda x: topi.transpose(x, (1, 0, 2)), (1, N, 8)),
        (lambda x: topi.reshape(topi.reshape(x, (1, 1, 48, 128)), (1, 48, 128)), (1, 1, 6144)),
    ],
)
def test_copies_of_all_elements_in_their_order_are_reshapes(make: Any, shape: tuple[Any, ...]) -> None:
    assert is_reshape(function(make, *shape))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: topi.transpose(x, (1, 0)), (N, 8)),
        (lambda x: topi.strided_slice(x, [0], [4], [1], axes=[1]), (N, 8)),
        (lambda x: topi.flip(x, axis=1), (N, 8)),
        (lambda x: topi.nn.relu(x), (N, 8)),
        (lambda x: topi.broadcast_to(x, (3, N)), (1, N)),
        (lambda x: topi.cast(x, "int32"), (N, 8)),
        (lambda x: topi.concatenate([x, x], axis=0), (N, 8)),
        (lambda x: topi.reshape(topi.add(x, x), (8, N)), (N, 8)),
        (lambda x: topi.reshape(topi.transpose(x, (1, 0)), (4, 16)), (8, 8)),
        (lambda x: topi.transpose(topi.reshape(x, (8, 8)), (1, 0)), (4, 16)),
    ],
)
def test_other_kernels_are_none(make: Any, shape: tuple[Any, ...]) -> None:
    assert not is_reshape(function(make, *shape))


def test_a_reshape_whose_extents_might_be_negative_is_a_view(nets: Any, target: Any, run: Any, make_hub: Any) -> None:
    n, weight = tirx.Var("n", "int64"), nets.array(4, 1, 10)

    def body(b: Any, x: Any) -> Any:
        windows = b.emit(relax.op.nn.conv1d(x, relax.const(weight), strides=5))
        parts = b.emit(relax.op.reshape(windows, (1, 2, 2, (n - 10) // 5 + 1)))
        return b.emit(relax.op.nn.softmax(parts, axis=1))

    mod = nets.build(body, (1, 1, n))
    names = [str(variable.name_hint) for variable in prepare(mod, target).functions]
    assert not any("reshape" in name for name in names)
    hub = make_hub()
    executable = compile_module(mod, target, hub)
    assert not hub.failures and not hub.notes
    for size in (10, 14, 15, 61, 400):
        data = nets.array(1, 1, size)
        windows = np.stack([data[0, 0, at : at + 10] for at in range(0, size - 9, 5)])
        parts = np.exp((weight[:, 0] @ windows.T).reshape(1, 2, 2, -1))
        np.testing.assert_allclose(run(executable, data), parts / parts.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_two_reshapes_after_each_other_are_a_view() -> None:
    """As in front of a language model's attention: TVM fuses them, and sees no reshape in what that makes."""

    def make(builder: Any, x: Any) -> Any:
        y = builder.emit(relax.op.nn.softmax(x))
        y = builder.emit(relax.op.reshape(builder.emit(relax.op.reshape(y, (1, 1, 4, 8))), (1, 4, 8)))
        return builder.emit(relax.op.nn.softmax(y))

    prepared = prepare(net(make, (1, 1, 32)), tvm.target.Target({"kind": "cuda", "arch": "sm_90"}))
    kernels = [str(variable.name_hint) for variable, _ in workloads(prepared)]
    assert kernels and all(name.startswith("softmax") for name in kernels)
