"""Calls that are made for their effect are kept, in order, and what is around them is served."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.graph.effects import keep_effects
from tunehub.tir.nodes import tensor_type

pytestmark = pytest.mark.slow

op = relax.op
CALLED: list[str] = []


@pytest.fixture(autouse=True)
def _effects() -> Iterator[None]:
    """Packed functions that are called for their effect."""

    def assertion(x: Any) -> Any:
        CALLED.append("assertion")
        if float(x.numpy().ravel()[0]) < 0:
            raise ValueError("the first element is negative")
        return x

    def log(x: Any) -> Any:
        CALLED.append("log")
        return x

    tvm.register_global_func("tunehub.test.assertion", assertion, override=True)
    tvm.register_global_func("tunehub.test.log", log, override=True)
    CALLED.clear()
    yield


def packed(name: str, x: Any) -> Any:
    """0.26 renamed the argument for the type of the result."""
    names = inspect.signature(op.call_pure_packed).parameters
    keyword = next(each for each in names if each in ("ty_args", "sinfo_args"))
    return op.call_pure_packed(f"tunehub.test.{name}", x, **{keyword: tensor_type(x)})


@pytest.fixture
def asserting(nets: Any) -> Callable[..., Any]:
    """A network with assertions between its operators whose results nobody reads."""

    def make(*shape: Any, dataflow: bool = True) -> Any:
        builder, x, weight = relax.BlockBuilder(), nets.var("x", shape), nets.const(8, 8)

        def body() -> Any:
            builder.emit(packed("assertion", x))
            y = builder.emit(op.nn.relu(builder.emit(op.matmul(x, weight))))
            builder.emit(packed("log", y))
            return builder.emit(op.add(builder.emit(op.exp(y)), relax.const(1.0)))

        with builder.function("main", [x]):
            if dataflow:
                with builder.dataflow():
                    result = builder.emit_output(body())
            else:
                result = body()
            builder.emit_func_output(result)
        return builder.get()

    return make


@pytest.mark.parametrize("dataflow", [True, False])
@pytest.mark.parametrize("rows", [5, None])
@pytest.mark.parametrize("layout", ["keep", "auto"])
@pytest.mark.few(3)
def test_effects_happen_in_order_and_what_is_between_is_fused(
    nets: Any, target: Any, run: Any, make_hub: Any, asserting: Any, dataflow: bool, rows: int | None, layout: str
) -> None:
    mod = asserting(tvm.tirx.Var("n", "int64") if rows is None else rows, 8, dataflow=dataflow)
    hub = make_hub(layout=layout)
    executable = compile_module(mod, target, hub)
    assert not hub.failures and not hub.notes
    assert len(hub.workloads) == 2  # the product with its relu, and the addition with its exponential
    plain = tvm.compile(mod, target)
    for size in (5,) if rows else (1, 2, 7, 13):
        data = np.abs(nets.array(size, 8))
        expected = run(plain, data)
        CALLED.clear()
        np.testing.assert_allclose(run(executable, data), expected, rtol=1e-5, atol=1e-5)
        assert CALLED == ["assertion", "log"]
        with pytest.raises(Exception, match="the first element is negative"):
            run(executable, -data)
        assert CALLED == ["assertion", "log", "assertion"]  # and nothing after it


def test_packed_functions_whose_results_are_read_stay_as_they_are(
    nets: Any, target: Any, run: Any, make_hub: Any
) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(op.nn.relu(b.emit(packed("log", b.emit(op.exp(x))))))

    mod, data, hub = nets.build(make, (4, 4)), nets.array(4, 4), make_hub()
    assert keep_effects(mod).same_as(mod)
    np.testing.assert_allclose(run(compile_module(mod, target, hub), data), np.exp(data), rtol=1e-5)
    assert len(hub.workloads) == 2 and CALLED == ["log"]


def test_modules_without_effects_are_not_touched(nets: Any) -> None:
    mod = nets.residual()
    assert keep_effects(mod).same_as(mod)


def test_what_is_cast_keeps_its_memory(nets: Any, make_hub: Any, target: Any) -> None:
    """The planner takes what a packed function was given for free behind the call."""
    rows = tvm.tirx.Var("n", "int64")

    def body(builder: Any, x: Any) -> Any:
        first = builder.emit(op.nn.softmax(x))
        cast = builder.match_cast(first, tensor_type(first))
        other = cast
        for _ in range(4):
            other = builder.emit(op.nn.softmax(builder.emit(op.flip(other, axis=0))))
        return relax.Tuple([other, cast])

    mod, data = nets.build(body, (rows, 8)), np.random.default_rng(0).standard_normal((5, 8)).astype("float32")
    machine = relax.VirtualMachine(compile_module(mod, target, make_hub()), tvm.cpu())
    _, cast = machine["main"](tvm.runtime.tensor(data))
    powers = np.exp(data)
    np.testing.assert_allclose(cast.numpy(), powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


def test_a_function_with_effects_that_others_call_goes_the_default_way(
    nets: Any, target: Any, run: Any, make_hub: Any
) -> None:
    builder, x = relax.BlockBuilder(), nets.var("x", (4, 4))
    with builder.function("checked", [x]):
        builder.emit(packed("assertion", x))
        builder.emit_func_output(builder.emit(op.exp(x)))
    inner = next(iter(builder.get().functions))
    y = nets.var("y", (4, 4))
    with builder.function("main", [y]):
        builder.emit_func_output(builder.emit(relax.Call(inner, [y])))
    hub, data = make_hub(), np.abs(nets.array(4, 4))
    np.testing.assert_allclose(run(compile_module(builder.get(), target, hub), data), np.exp(data), rtol=1e-5)
    assert CALLED == ["assertion"] and hub.workloads == []
    assert hub.notes == ["checked, which other functions call, calls packed functions for their side effects"]
