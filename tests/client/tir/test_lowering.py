"""Scheduled functions for CPUs are lowered without the passes whose work LLVM repeats; everything else as TVM does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from tunehub.compiler.pipeline import activate, compile_module
from tunehub.compiler.preparing import prepare
from tunehub.tir.lowering import IS_SCHEDULED, PIPELINE, without_cleaning

pytestmark = pytest.mark.slow

CLEANING = {"tirx.CommonSubexprElim", "tirx.RemoveNoOp", "s_tir.RenormalizeSplitPattern"}


@pytest.fixture
def workload(nets: Any, target: Any) -> Any:
    """One function, bound to a target as lowering pipelines get it."""
    mod = prepare(nets.conv(), target)
    (function,) = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return function.with_attr("global_symbol", "main").with_attr("target", target)


def context_of(function: Any, **options: Any) -> Any:
    """The PassContext in which TVM's pipeline runs for a module of `function`, in one with `options`."""
    seen: list[Any] = []

    def factory() -> tuple[Any, Any, Any]:
        @tvm.transform.module_pass(opt_level=0, name="test.whole")
        def whole(mod: Any, context: Any) -> Any:
            seen.append(tvm.transform.PassContext.current())
            return mod

        return whole, "host", "device"

    lower, *finalizing = without_cleaning(factory)()
    assert finalizing == ["host", "device"]
    with tvm.transform.PassContext(**options):
        lower(tvm.IRModule({"main": function}))
    (context,) = seen
    return context


def test_scheduled_functions_are_lowered_without_cleaning_and_the_users_options_stay(workload: Any) -> None:
    scheduled = workload.with_attr(IS_SCHEDULED, True)
    config = {"tirx.disable_assert": True}
    context = context_of(scheduled, opt_level=1, disabled_pass=["tirx.UnrollLoop"], config=config)
    assert {str(name) for name in context.disabled_pass} == CLEANING | {"tirx.UnrollLoop"}
    assert (context.opt_level, dict(context.config)) == (1, config)


def test_functions_that_nobody_scheduled_are_lowered_as_ever(workload: Any) -> None:
    assert not context_of(workload).disabled_pass


@pytest.mark.parametrize(("kind", "cleans"), [("cuda", False), ("vulkan", True)])
def test_of_gpus_only_cudas_compiler_cleans(workload: Any, kind: str, cleans: bool) -> None:
    target = tvm.target.Target({"kind": kind, **({"arch": "sm_80"} if kind == "cuda" else {})})
    context = context_of(workload.with_attr(IS_SCHEDULED, True).with_attr("target", target))
    assert cleans == (not context.disabled_pass)


def test_who_instruments_passes_sees_all_of_tvms(workload: Any) -> None:
    timing = tvm.ir.instrument.PassTimingInstrument()
    assert not context_of(workload.with_attr(IS_SCHEDULED, True), instruments=[timing]).disabled_pass


@pytest.mark.parametrize("how", ["context", "compile"])
def test_passes_have_tvms_names(
    nets: Any, target: Any, make_hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """With and without instruments: the pipeline of this TVM runs each pass, and then none of them."""
    mod, data, whole = nets.conv(), nets.array(1, 8, 8, 8), PIPELINE_MAP[PIPELINE]
    ran: list[str] = []

    @tvm.ir.instrument.pass_instrument
    class Names:
        def run_before_pass(self, _mod: Any, info: Any) -> None:
            ran.append(str(info.name))

    def compiled() -> Any:
        if how == "compile":
            return compile_module(mod, target, make_hub())
        with activate(make_hub()):
            return tvm.compile(mod, target)

    def watched() -> tuple[Any, Any, Any]:
        lower, *finalizing = whole()

        @tvm.transform.module_pass(opt_level=0, name="test.watched")
        def watching(module: Any, context: Any) -> Any:
            options = {"opt_level": context.opt_level, "disabled_pass": context.disabled_pass}
            with tvm.transform.PassContext(**options, instruments=[Names()]):
                return lower(module)

        return (watching, *finalizing)

    monkeypatch.setitem(PIPELINE_MAP, PIPELINE, watched)
    expected = run(tvm.compile(mod, target), data)
    assert set(ran) >= CLEANING
    ran.clear()
    found = run(compiled(), data)
    assert ran
    assert not CLEANING & set(ran)
    assert PIPELINE_MAP[PIPELINE] is watched
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_kernels_of_open_models_know_that_buffers_share_no_memory(nets: Any, target: Any, make_hub: Any) -> None:
    """The function that computes shapes, which TVM adds to such a module, does not say so of its one buffer."""

    def make(b: Any, x: Any) -> Any:
        return b.emit(tvm.relax.op.nn.relu(b.emit(tvm.relax.op.nn.conv2d(x, nets.const(16, 8, 3, 3)))))

    found = compile_module(nets.build(make, (tvm.tirx.Var("n", "int64"), 8, 8, 8)), target, make_hub())
    (library,) = found.mod.imports if hasattr(found.mod, "imports") else found.mod.imported_modules
    code = library.inspect_source("ll")
    assert "shape_func" in code and "tvm-tbaa" in code
    assert "tvm-alias" not in code
