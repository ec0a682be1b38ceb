"""Polynomials instead of the C library: how far they are off, and what becomes of infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")
from tvm import te  # noqa: E402

from tunehub.compiler.finishing import lowering_passes  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.numerics import fast_math as relax_fast_math  # noqa: E402
from tunehub.graph.numerics.fast_math import fast_math  # noqa: E402
from tunehub.graph.workloads import call_counts  # noqa: E402
from tunehub.tir.nodes import calls_in, operator_of, tensor_class  # noqa: E402

from ....cpu_features import AVX512, skip_unless_runs  # noqa: E402
from ....cpu_features import cpu as cpu_of  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
Array = np.ndarray[Any, Any]
CPUS = {"avx512": AVX512, "avx2": "core-avx2", "generic": "x86-64"}
_erf = np.vectorize(math.erf)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


EXACT: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "erf": _erf,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * (0.5 + 0.5 * _erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
}
# Largest error: of the result's size for exp, absolute for what is bounded, of the input's size otherwise.
BOUNDS = {"exp": 2e-7, "erf": 5e-7, "tanh": 5e-7, "sigmoid": 3e-7, "silu": 5e-7, "gelu": 5e-7, "gelu_tanh": 5e-7}


@pytest.fixture(params=list(CPUS))
def cpu(request: Any) -> Any:
    """A kind of CPU that this machine can run code for."""
    skip_unless_runs(CPUS[request.param])
    return cpu_of(CPUS[request.param])


def computed(name: str, values: Array, target: Any) -> Array:
    """What vector code computes for a multiple of 16 values."""
    function = getattr(relax_fast_math, name)
    x = te.placeholder(values.shape, "float32")
    y = te.compute(values.shape, lambda i: function(x[i]), name="y")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, 16])[1])
    result = tvm.runtime.tensor(np.empty(values.shape, "float32"))
    tvm.compile(schedule.mod, target=target)["main"](tvm.runtime.tensor(values), result)
    return np.asarray(result.numpy())


def dense_values() -> Array:
    """About 200,000 numbers: evenly spread ones, and every 32768th of all float32 numbers."""
    patterns = np.arange(0, 2**32, 2**15, dtype=np.uint64).astype(np.uint32).view(np.float32)
    spread = [np.linspace(-width, width, 40_000).astype("float32") for width in (1, 10, 100)]
    values = np.concatenate([*spread, patterns[np.isfinite(patterns)]])
    return values[: len(values) // 16 * 16]


@pytest.mark.parametrize("name", list(EXACT))
@pytest.mark.few(8)
def test_errors_are_bounded_over_all_numbers(name: str, cpu: Any) -> None:
    values = dense_values()
    found = computed(name, values, cpu)
    with np.errstate(over="ignore", under="ignore"):
        exact = EXACT[name](values.astype("float64"))
    finite = np.abs(exact) < 3.4e38
    assert np.isfinite(found[finite]).all()
    assert (found[exact > 3.41e38] == np.inf).all()
    size = {"exp": np.abs(exact), "erf": 1.0, "tanh": 1.0, "sigmoid": 1.0}.get(name, np.abs(values) + 1e-30)
    allowed = BOUNDS[name] * np.broadcast_to(size, values.shape) + 2e-38
    assert (np.abs(found[finite] - exact[finite]) <= allowed[finite]).all()


@pytest.mark.parametrize(
    ("name", "below", "above"),
    [("exp", 0.0, np.inf), ("erf", -1.0, 1.0), ("tanh", -1.0, 1.0), ("sigmoid", 0.0, 1.0)],
)
def test_infinities_and_nan(name: str, below: float, above: float, cpu: Any) -> None:
    special = np.resize(np.array([-np.inf, -3e38, np.inf, np.nan], "float32"), 16)
    found = computed(name, special, cpu)[:4]
    np.testing.assert_allclose(found, [below, below, above, np.nan], rtol=5e-7)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_large_inputs_of_activations(name: str, cpu: Any) -> None:
    special = np.resize(np.array([-1e30, -100, 1e30, np.inf, np.nan], "float32"), 16)
    found = computed(name, special, cpu)[:5]
    np.testing.assert_allclose(found, [0, 0, 1e30, np.inf, np.nan], rtol=5e-7, atol=1e-36)


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.75])
def test_powers_of_quarters_are_roots_and_products(nets: Any, target: Any, exponent: float) -> None:
    mod = nets.build(lambda b, x: b.emit(op.power(x, relax.const(np.float32(exponent)))), (600,))
    rewritten = fast_math(mod)
    assert "relax.power" not in _operators(rewritten)
    values = np.concatenate([np.geomspace(1e-9, 1e9, 595), [0, 1, np.inf, np.nan, -1]]).astype("float32")
    np.testing.assert_allclose(run(rewritten, target, values), run(mod, target, values), rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.3, -0.5, 0.0, 4.25])
def test_other_powers_stay(nets: Any, exponent: float) -> None:
    mod = nets.build(lambda b, x: b.emit(op.power(x, relax.const(np.float32(exponent)))), (6,))
    assert "relax.power" in _operators(fast_math(mod))


def run(mod: Any, target: Any, data: Array) -> Array:
    """The output of ``mod`` with TVM's default schedules."""
    with target:
        lowered = tvm.transform.Sequential(lowering_passes(target))(prepare(mod, target))
    executable = tvm.compile(lowered, target, relax_pipeline=tvm.transform.Sequential([]))
    return np.asarray(relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy())


@pytest.mark.parametrize(("axis", "length"), [(-1, 7), (1, 7), (0, 7), (-1, 37), (2, 197)])
def test_softmax_of_masked_scores(nets: Any, target: Any, axis: int, length: int) -> None:
    rng = np.random.default_rng(3)
    data = rng.normal(scale=8, size=(5, 6, length)).astype("float32")
    data[rng.random(data.shape) < 0.3] = -np.inf
    data[:, 0, 0], data[0, 0, :], data[0, :, 0] = 1.0, 1.0, 1.0
    data[2, 3, 4] = 1e4  # one weight of 1
    mod = nets.build(lambda b, x: b.emit(op.nn.softmax(x, axis=axis)), data.shape)
    found, plain = run(fast_math(mod), target, data), run(mod, target, data)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(plain))
    np.testing.assert_array_equal(found[data == -np.inf], plain[data == -np.inf])
    np.testing.assert_allclose(found, plain, atol=1e-6)


def test_all_operators_are_rewritten_and_fuse(nets: Any, target: Any) -> None:
    unary = [op.exp, op.erf, op.tanh, op.sigmoid, op.nn.silu, op.nn.gelu, op.nn.gelu_tanh]

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.matmul(x, nets.const(8, 8)))
        for function in unary:
            y = b.emit(function(b.emit(op.multiply(y, relax.const(0.1)))))
        return y

    mod = nets.build(make, (3, 8))
    rewritten = fast_math(mod)
    assert not {"relax.exp", "relax.erf", "relax.tanh", "relax.sigmoid"} & _operators(rewritten)
    assert call_counts(prepare(rewritten, target)).total() == 1
    data = np.random.default_rng(4).standard_normal((3, 8)).astype("float32")
    np.testing.assert_allclose(run(rewritten, target, data), run(mod, target, data), rtol=1e-5, atol=1e-6)


def test_other_types_stay(nets: Any) -> None:
    mod = nets.build(lambda b, x: b.emit(op.exp(x)), (4,), dtype="float64")
    assert "relax.exp" in _operators(fast_math(mod))


def test_only_planned_networks_are_rewritten(nets: Any, target: Any) -> None:
    mod = nets.build(lambda b, x: b.emit(op.exp(x)), (64,))
    texts = {layout: prepare(mod, target, layout=layout).script() for layout in ("keep", "auto")}
    assert "T.exp" in texts["keep"]
    assert "T.exp" not in texts["auto"]


def _operators(mod: Any) -> set[str]:
    return {operator_of(call) for call in calls_in(mod)}


@pytest.mark.parametrize(("kind", "largest"), [("float16", 1e-3), ("bfloat16", 8e-3)])
@pytest.mark.parametrize("name", ["silu", "gelu", "tanh"])
def test_halves_are_computed_in_float32(name: str, kind: str, largest: float) -> None:
    skip_unless_runs(AVX512)
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_class()((4, 96), kind))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(getattr(op if name == "tanh" else op.nn, name)(x))
        builder.emit_func_output(result)
    target = cpu_of(AVX512)
    module = prepare(builder.get(), target, layout="auto")
    values = np.linspace(-6, 6, 384, dtype="float32").reshape(4, 96).astype(kind)
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(values)).numpy().astype("float64")
    exact = EXACT[name](values.astype("float64"))
    assert (abs(found - exact) <= largest * np.maximum(abs(exact), 0.1)).all()
    assert any(f"T_{name}" in str(function) for function in module.functions.values())
