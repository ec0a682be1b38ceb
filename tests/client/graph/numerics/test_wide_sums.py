"""Reductions in half precision are as near to float32 as one rounding is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.numerics.wide_sums import wide_sums, wide_sums_of_half  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402

from ...kernels.cuda.scheduled import H200  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
Array = np.ndarray[Any, Any]
MANY = (96, 1000)  # in float16 their number is infinite


def _network(shape: tuple[Any, ...], call: Any, dtype: str = "float16", more: tuple[int, ...] = ()) -> Any:
    given = [relax.Var("x", tensor_class()(shape, dtype))]
    given += [relax.Var(f"w{extent}", tensor_class()((extent,), dtype)) for extent in more]
    builder = relax.BlockBuilder()
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(call(*given)))
        builder.emit_func_output(result)
    return builder.get()


def _computed(mod: Any, *given: Array) -> Array:
    executable = tvm.compile(wide_sums(mod), tvm.target.Target("llvm"))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, given))
    return np.asarray(found.numpy().astype("float32"))


def _apart(found: Array, expected: Array) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("rows", [MANY[0], tvm.tirx.Var("n", "int64")])
@pytest.mark.parametrize(("call", "expected"), [
    (lambda x: op.mean(x), lambda x: x.mean()),
    (lambda x: op.mean(x, [-1], keepdims=True), lambda x: x.mean(-1, keepdims=True)),
    (lambda x: op.sum(x, [0]), lambda x: x.sum(0)),
    (lambda x: op.variance(x), lambda x: x.var()),
    (lambda x: op.std(x), lambda x: x.std()),
])  # fmt: skip
def test_sums_and_means_are_rounded_once(rows: Any, call: Any, expected: Any) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, MANY).astype("float16")
    found = _computed(_network((rows, MANY[1]), call), x)
    assert _apart(found, np.asarray(expected(x.astype("float32")))) < 2**-11


@pytest.mark.parametrize(("call", "more"), [(lambda x: op.nn.softmax(x), ()), (
    lambda x, scale: op.nn.rms_norm(x, scale, axes=[-1]), (MANY[1],),
)])  # fmt: skip
def test_softmax_and_norms_in_bfloat16_are_rounded_once(call: Any, more: tuple[int, ...]) -> None:
    import ml_dtypes

    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in (MANY, *((each,) for each in more))]
    half, whole = _network(MANY, call, "bfloat16", more), _network(MANY, call, "float32", more)
    expected = _computed(whole, *(each.astype("float32") for each in given))
    assert _apart(_computed(half, *given), expected) < 2**-7


@pytest.mark.parametrize("call", [op.variance, op.std, op.mean])
def test_half_precision_is_added_up_in_float32_on_cpus(call: Any) -> None:
    """TVM does not compile a number of terms that float16 has not."""
    cpu, x = tvm.target.Target("llvm"), np.random.default_rng(0).uniform(0.5, 1.5, (1, 65505)).astype("float16")
    mod = prepare(_network(x.shape, lambda x: call(x, [-1])), cpu)
    found = relax.VirtualMachine(tvm.compile(mod, cpu), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    expected = {op.variance: np.var, op.std: np.std, op.mean: np.mean}[call](x.astype("float32"), -1)
    assert _apart(found.astype("float32"), expected) < 2**-10
    whole = _network(MANY, lambda x: op.nn.softmax(x), "bfloat16")
    assert wide_sums_of_half(whole).script() == whole.script()


def test_a_sum_stays_one_kernel_and_other_types_stay_as_they_are() -> None:
    mean = prepare(_network(MANY, lambda x: op.mean(x, [-1])), H200)
    assert sum(isinstance(each, tvm.tirx.PrimFunc) for each in mean.functions.values()) == 1
    whole = _network(MANY, lambda x: op.mean(x, [-1]), "float32")
    assert wide_sums(whole).script() == whole.script()
    softmax = _network(MANY, lambda x: op.nn.softmax(x))
    assert wide_sums(softmax).script() == softmax.script()


@pytest.mark.parametrize(("channels", "wide"), [(3, False), (64, True)])
def test_convolutions_in_groups_that_add_up_many_numbers_do_so_in_float32(channels: int, wide: bool) -> None:
    given = [relax.Var("x", tensor_class()((1, 2 * channels, 8, 8), "float16"))]
    given.append(relax.Var("w", tensor_class()((16, channels, 3, 3), "float16")))
    builder = relax.BlockBuilder()
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(op.nn.conv2d(*given, groups=2)))
        builder.emit_func_output(result)
    text = prepare(builder.get(), H200).script()
    assert ('"float32"' in text or "T.float32" in text) == wide
