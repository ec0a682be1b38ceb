"""Compiling with records through TVM's own entry points, and TVM as it was afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from tunehub.compiler import pipeline as relax_pipeline
from tunehub.compiler.pipeline import activate, build_pipeline, compile_module, install, uninstall
from tunehub.compiler.preparing import prepare
from tunehub.graph.workloads import call_counts
from tunehub.tir.lowering import IS_SCHEDULED, PIPELINE
from tunehub.tir.nodes import tensor_class

pytestmark = pytest.mark.slow

op = relax.op


@pytest.fixture(autouse=True)
def originals() -> Iterator[tuple[Any, ...]]:
    """TVM's entry points, which every test must leave as they were."""
    before = entry_points()
    yield before
    assert entry_points() == before
    assert relax_pipeline._patch._users == 0


def entry_points() -> tuple[Any, ...]:
    return relax.pipeline.PIPELINE_MAP["default"], relax.get_default_pipeline, PIPELINE_MAP[PIPELINE]


@pytest.fixture
def net(nets: Any) -> Any:
    return nets.residual()


@pytest.fixture
def data(nets: Any) -> Any:
    return nets.array(1, 8, 8, 8)


def test_records_serve_and_the_result_is_the_default_one(
    net: Any, data: Any, target: Any, run: Any, make_hub: Any, record_for: Any
) -> None:
    hub = make_hub(record_for(net))
    assert len(hub.records) == 2  # with and without the residual addition
    expected = run(tvm.compile(net, target), data)
    with activate(hub):
        found = run(tvm.compile(net, target), data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert hub.rungs() == ["exact", "exact"]
    assert not hub.failures and not hub.notes
    assert {type(w.name) for w in hub.workloads} == {str}  # TVM's own str must not get out
    assert [(w.count, w.run_s, w.default_s, w.package) for w in hub.workloads] == [(1, 1e-3, 1e-1, "p 1")] * 2


def test_one_record_serves_the_other_epilogue_by_its_anchor(
    net: Any, data: Any, target: Any, run: Any, make_hub: Any, record_for: Any
) -> None:
    hub = make_hub(record_for(net)[:1])
    found = run(compile_module(net, target, hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(net, target), data), rtol=1e-4, atol=1e-4)
    assert sorted(hub.rungs()) == ["anchor", "exact"], [w.skipped for w in hub.workloads]


def test_without_records_no_record_serves(net: Any, data: Any, target: Any, run: Any, make_hub: Any) -> None:
    hub = make_hub()
    found = run(compile_module(net, target, hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(net, target), data), rtol=1e-4, atol=1e-4)
    assert set(hub.rungs()) <= {"template", "default"}


def test_inside_the_block_and_outside(net: Any, target: Any, make_hub: Any, originals: tuple[Any, ...]) -> None:
    hub = make_hub()
    with activate(hub):
        assert all(a is not b for a, b in zip(entry_points(), originals, strict=True))
        tvm.compile(net, target)
    assert all(a is b for a, b in zip(entry_points(), originals, strict=True))
    assert len(hub.workloads) == 2
    tvm.compile(net, target)
    assert len(hub.workloads) == 2


def test_an_error_in_the_block_leaves_nothing_behind(make_hub: Any) -> None:
    with pytest.raises(KeyError), activate(make_hub()):
        raise KeyError


def test_nested_blocks_use_the_innermost_hub(net: Any, target: Any, make_hub: Any) -> None:
    outer, inner = make_hub(), make_hub()
    with activate(outer):
        with activate(inner):
            tvm.compile(net, target)
        assert (len(outer.workloads), len(inner.workloads)) == (0, 2)
        tvm.compile(net, target)
    assert (len(outer.workloads), len(inner.workloads)) == (2, 2)


def test_threads_have_their_own_hubs(net: Any, target: Any, make_hub: Any) -> None:
    hubs = [make_hub(), make_hub(), None]
    barrier = threading.Barrier(len(hubs))
    turn = threading.Lock()  # TVM itself cannot legalise in two threads at once (topi's global tag scope)
    problems: list[BaseException] = []

    def work(hub: Any) -> None:
        try:
            if hub is None:
                barrier.wait(30)
                with turn:
                    tvm.compile(net, target)
                barrier.wait(30)
                return
            with activate(hub):
                barrier.wait(30)
                with turn:
                    tvm.compile(net, target)
                barrier.wait(30)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(hub,)) for hub in hubs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    assert [len(hub.workloads) for hub in hubs if hub] == [2, 2]


def test_install_and_uninstall(net: Any, target: Any, make_hub: Any, originals: tuple[Any, ...]) -> None:
    first, second = make_hub(), make_hub()
    install(lambda _target: first)
    try:
        tvm.compile(net, target)
        install(lambda _target: second)  # replaces the first
        tvm.compile(net, target)
        with activate(make_hub()) as _:
            tvm.compile(net, target)
        assert (len(first.workloads), len(second.workloads)) == (2, 2)
    finally:
        uninstall()
    assert entry_points() == originals
    uninstall()  # once more changes nothing
    tvm.compile(net, target)
    assert (len(first.workloads), len(second.workloads)) == (2, 2)


def test_uninstalling_inside_a_block_keeps_the_block(net: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub()
    install(lambda _target: make_hub())
    with activate(hub):
        uninstall()
        tvm.compile(net, target)
    assert len(hub.workloads) == 2


def test_a_module_for_another_kind_of_target_goes_the_default_way(net: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub(host=SimpleNamespace(kind="cuda"))
    with activate(hub):
        tvm.compile(net, target)
    assert hub.workloads == []
    assert hub.notes == ["they are for cuda, the module is compiled for llvm"]


def test_a_failing_step_leads_to_the_default_pipeline(
    net: Any, data: Any, target: Any, run: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("lookup broke")

    hub = make_hub()
    monkeypatch.setattr(hub, "by_exact", broken, raising=False)
    with activate(hub):
        found = run(tvm.compile(net, target), data)
    np.testing.assert_array_equal(found, run(tvm.compile(net, target), data))
    ((step, error),) = hub.failures
    assert step == "compiling with records"
    assert "lookup broke" in str(error)


def test_a_failing_lowering_step_too(
    net: Any, data: Any, target: Any, run: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_target: Any) -> Any:
        raise AttributeError("no such pass")

    hub = make_hub()
    monkeypatch.setattr("tunehub.compiler.finishing.lowering_passes", broken)
    with activate(hub):
        found = run(tvm.compile(net, target), data)
    np.testing.assert_array_equal(found, run(tvm.compile(net, target), data))
    assert len(hub.failures) == 1 and not hub.workloads


def test_failing_code_generation_leads_to_the_default_pipeline(
    net: Any, data: Any, target: Any, run: Any, make_hub: Any, record_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that the guard lets through and TVM cannot generate code for: the module is compiled once more."""
    from tunehub.compiler.schedule import apply

    records = record_for(net)
    for record in records:
        record.trace[0][:] = [
            ["GetSBlock", [], ["conv2d_nchw", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], [f"l{i}" for i in range(1, 8)]],
            ["Parallel", ["l2"], [], []],
            ["Parallel", ["l3"], [], []],
        ]
    hub = make_hub(records)
    monkeypatch.setattr(apply, "check_function", lambda *_: None)
    found = run(compile_module(net, target, hub), data)
    np.testing.assert_array_equal(found, run(tvm.compile(net, target), data))
    ((step, _error),) = hub.failures
    assert step == "generating code for the scheduled module"


def test_strict_failures_are_raised(net: Any, target: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(_step: str, error: BaseException) -> None:
        raise error

    hub = make_hub()
    monkeypatch.setattr(hub, "failed", strict, raising=False)
    monkeypatch.setattr(hub, "by_exact", lambda _key: 1 / 0, raising=False)
    with pytest.raises(Exception, match="division by zero"):
        compile_module(net, target, hub)


def test_weights_as_parameters(nets: Any, target: Any, run: Any, make_hub: Any, record_for: Any) -> None:
    weight = nets.array(16, 8, 3, 3)

    def make(b: Any, x: Any, w: Any) -> Any:
        return b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, w, padding=1))))

    mod = nets.build(make, (1, 8, 8, 8), (16, 8, 3, 3), names=("x", "w"))
    data = nets.array(1, 8, 8, 8)
    expected = run(tvm.compile(mod, target), data, weight)
    hub = make_hub(record_for(mod))
    np.testing.assert_allclose(run(compile_module(mod, target, hub), data, weight), expected, rtol=1e-4, atol=1e-4)
    assert hub.rungs() == ["exact"]
    bound = make_hub(record_for(nets.build(lambda b, x: make(b, x, relax.const(weight)), (1, 8, 8, 8))))
    executable = compile_module(mod, target, bound, params={"w": weight})
    np.testing.assert_allclose(run(executable, data), expected, rtol=1e-4, atol=1e-4)
    assert bound.rungs() == ["exact"]
    assert not hub.failures and not bound.failures


def test_a_network_that_is_called_twice_counts_its_calls(nets: Any, target: Any, make_hub: Any) -> None:
    weight = nets.const(8, 8, 3, 3)

    def make(b: Any, x: Any) -> Any:
        for _ in range(3):
            x = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weight, padding=1))))
        return x

    mod = nets.build(make, (1, 8, 8, 8))
    assert sorted(call_counts(prepare(mod, target)).values()) == [3]
    hub = make_hub()
    compile_module(mod, target, hub)
    assert [workload.count for workload in hub.workloads] == [3]


def test_the_pipeline_is_a_pass(net: Any, data: Any, target: Any, run: Any, make_hub: Any, record_for: Any) -> None:
    hub = make_hub(record_for(net))
    executable = tvm.compile(net, target, relax_pipeline=build_pipeline(target, hub))
    np.testing.assert_allclose(run(executable, data), run(tvm.compile(net, target), data), rtol=1e-4, atol=1e-4)
    assert hub.rungs() == ["exact", "exact"]


def test_functions_without_blocks_stay_beside_packed_weights(
    nets: Any, target: Any, run: Any, make_hub: Any, record_for: Any
) -> None:
    """TVM's pass that splits packing off fails for such functions; the module is compiled with its record anyway."""

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, nets.const(8, 8, 3, 3), padding=1))))
        return b.emit(op.cumsum(b.emit(op.sort(y, axis=3)), axis=3))

    mod, data = nets.build(make, (1, 8, 8, 8)), nets.array(1, 8, 8, 8)
    hub = make_hub(record_for(mod))
    found = run(compile_module(mod, target, hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    assert "exact" in hub.rungs() and not hub.failures


def test_functions_that_arrive_scheduled_stay_beside_packed_weights(
    nets: Any, target: Any, run: Any, make_hub: Any, record_for: Any
) -> None:
    """The kernels of a paged key-value cache have loops without blocks, and their mark tells everybody to leave them
    alone."""
    sums = prepare(nets.build(lambda b, x: b.emit(op.cumsum(x, axis=3)), (1, 8, 8, 8)), target)
    (kernel,) = (each for each in sums.functions.values() if isinstance(each, tvm.tirx.PrimFunc))

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, nets.const(8, 8, 3, 3), padding=1))))
        own = b.add_func(kernel.with_attr(IS_SCHEDULED, True), "summed_by_hand")
        return b.emit(relax.call_tir(own, relax.Tuple([y]), tensor_class()((1, 8, 8, 8), "float32")))

    mod, data = nets.build(make, (1, 8, 8, 8)), nets.array(1, 8, 8, 8)
    hub = make_hub(record_for(mod))
    found = run(compile_module(mod, target, hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    assert [each.rung for each in hub.workloads] == ["exact"] and not hub.failures
