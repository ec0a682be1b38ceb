"""Records in TVM's dispatch: served, layered, reported, and gone again afterwards."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import tvm
from tvm import auto_scheduler, autotvm, relay
from tvm.relay.backend import te_compiler
from tvm.relay.backend.vm import VMCompiler
from tvm.relay.build_module import BuildModule

import tunehub
from tunehub.api import installed_hubs
from tunehub.exceptions import HubWarning

from .relay_cases import (
    TARGET,
    build,
    conv_net,
    layouts_of,
    log_line,
    plain_output,
    run,
    tasks,
    used_layouts,
    write_log,
)

pytestmark = pytest.mark.legacy

REPLACED = (
    (BuildModule, "build"), (BuildModule, "optimize"), (VMCompiler, "lower"), (VMCompiler, "optimize"),
    (VMCompiler, "codegen"),
    (te_compiler, "select_implementation"), (autotvm.tophub, "context"), (autotvm.tophub, "load_reference_log"),
    (autotvm.tophub, "check_backend"), (autotvm.DispatchContext, "current"),
    (auto_scheduler.DispatchContext, "current"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def quiet_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test leaves TVM as it found it. No package is for the tests' target: that warning is not the point."""
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    before = [getattr(holder, name) for holder, name in REPLACED]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no package serves", HubWarning)
        yield
    assert [getattr(holder, name) for holder, name in REPLACED] == before


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """TVM's TopHub downloads by this function; it must never be reached below a hub."""
    monkeypatch.delenv("TOPHUB_LOCATION", raising=False)
    tried: list[str] = []

    def download(location: str, name: str) -> None:
        tried.append(name)
        raise URLError("no network in tests")

    monkeypatch.setattr(autotvm.tophub, "download_package", download)
    return tried


@pytest.fixture(scope="module")
def net() -> tuple[Any, dict[str, Any]]:
    return conv_net()


@pytest.fixture(scope="module")
def task(net: Any) -> Any:
    return next(task for task in tasks(*net) if task.name == "conv2d_NCHWc.x86")


@pytest.fixture(scope="module")
def expected(net: Any) -> Any:
    return plain_output(*net)


def test_a_record_is_used_and_reported(net: Any, task: Any, expected: Any, tmp_path: Path, no_network: Any) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 3, 2e-3), log_line(task, 5, 1e-3), log_line(task, 7, 3e-3))
    with tunehub.context(TARGET, user_records=log) as hub:
        lib = build(*net)
    (layer,) = hub.report().workloads
    assert (layer.rung, layer.tuner, layer.run_s, layer.package) == ("user", "autotvm", 1e-3, str(log))
    assert layer.implementation == "conv2d_nchw.x86"
    assert used_layouts(lib) == [layouts_of(task, 5)]
    assert np.allclose(run(lib), expected, atol=1e-5)
    assert no_network == []


def test_the_virtual_machine_is_served_too(net: Any, task: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3))
    mod, params = net
    with tunehub.context(TARGET, user_records=log) as hub, tvm.transform.PassContext(opt_level=3):
        relay.vm.compile(mod, TARGET, params=params)
    assert [item.rung for item in hub.report().workloads] == ["user"]


def test_inside_and_outside_of_a_pass_context(net: Any, task: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3))
    mod, params = net
    with tvm.transform.PassContext(opt_level=3), tunehub.context(TARGET, user_records=log) as hub:
        relay.build(mod, TARGET, params=params)
    assert [item.rung for item in hub.report().workloads] == ["user"]


@pytest.mark.parametrize("outside", [True, False])
def test_the_users_own_context_comes_first(net: Any, task: Any, tmp_path: Path, outside: bool) -> None:
    hubs = write_log(tmp_path / "hub.log", log_line(task, 5, 1e-4))
    users = write_log(tmp_path / "user.log", log_line(task, 3, 9e-3))
    if outside:
        with autotvm.apply_history_best(str(users)), tunehub.context(TARGET, user_records=hubs) as hub:
            lib = build(*net)
    else:
        with tunehub.context(TARGET, user_records=hubs) as hub, autotvm.apply_history_best(str(users)):
            lib = build(*net)
    assert used_layouts(lib) == [layouts_of(task, 3)]
    (layer,) = hub.report().workloads
    assert (layer.rung, layer.package) == ("user", "your own AutoTVM context")


def test_below_the_users_context_the_hub_fills_the_gaps(net: Any, task: Any, tmp_path: Path) -> None:
    hubs = write_log(tmp_path / "hub.log", log_line(task, 5, 1e-4))
    line = log_line(task, 3, 9e-3)
    line["input"][2][0][1] = [1, 16, 99, 99]
    users = write_log(tmp_path / "user.log", line)
    with tunehub.context(TARGET, user_records=hubs) as hub, autotvm.apply_history_best(str(users)):
        lib = build(*net)
    assert used_layouts(lib) == [layouts_of(task, 5)]
    assert hub.report().workloads[0].package == str(hubs)


def test_install_serves_unmodified_builds(
    net: Any, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: Any
) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3))
    tunehub.install(user_records=log)
    try:
        lib = build(*net)
        (hub,) = installed_hubs()
        assert [item.rung for item in hub.report().workloads] == ["user"]
        tunehub.install(user_records=log)  # a second call replaces the first
    finally:
        tunehub.uninstall()
    assert used_layouts(lib) == [layouts_of(task, 5)]
    assert no_network == []
    tunehub.uninstall()


def test_threads_do_not_see_each_others_hubs(net: Any, task: Any, tmp_path: Path) -> None:
    """Contexts of two threads begin and end in an order that TVM's own stack of contexts would not survive."""
    logs = [write_log(tmp_path / f"{index}.log", log_line(task, index, 1e-3)) for index in (3, 5)]
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]
    layouts: dict[int, Any] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with warnings.catch_warnings(), tunehub.context(TARGET, user_records=logs[number]):
                inside.wait(60)
                layouts[number] = used_layouts(build(*net))
                leave[number].wait(60)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    plain = used_layouts(build(*net))  # this thread has no hub
    for event, thread in zip(leave, threads, strict=True):
        event.set()
        thread.join(120)
    assert errors == []
    assert layouts == {0: [layouts_of(task, 3)], 1: [layouts_of(task, 5)]}
    assert plain == used_layouts(build(*net))


def test_a_record_that_breaks_the_build_is_left_out_and_named(
    net: Any, task: Any, expected: Any, tmp_path: Path
) -> None:
    line = log_line(task, 5, 1e-3)
    entity = next(item for item in line["config"]["entity"] if item[0] == "tile_oc")
    entity[2] = [-1, 5]  # 5 is no factor of 16
    log = write_log(tmp_path / "a.log", line)
    named = pytest.warns(HubWarning, match=r"conv2d_NCHWc\.x86 1x16x14x14.*splits an axis of 16 into \[-1, 5\]")
    with named, tunehub.context(TARGET, user_records=log) as hub:
        lib = build(*net)
    assert [item.rung for item in hub.report().workloads] == ["default"]
    assert np.allclose(run(lib), expected, atol=1e-5)


def test_the_users_own_error_goes_through(task: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3))
    data, weight = relay.var("data", shape=(1, 16, 14, 14)), relay.var("w", shape=(16, 17, 3, 3))
    bad = relay.Function([data, weight], relay.nn.conv2d(data, weight, kernel_size=(3, 3), channels=16))
    with tunehub.context(TARGET, user_records=log), pytest.raises(tvm.error.DiagnosticError):
        build(tvm.IRModule.from_expr(bad), {})


def test_dynamic_shapes_are_left_to_tvm(task: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3))
    data = relay.var("data", shape=(relay.Any(), 16))
    weight = relay.var("w", shape=(8, 16))
    mod = tvm.IRModule.from_expr(relay.Function([data, weight], relay.nn.dense(data, weight)))
    with tunehub.context(TARGET, user_records=log), tvm.transform.PassContext(opt_level=3):
        assert relay.vm.compile(mod, TARGET) is not None


def test_references_come_from_the_hub_not_from_tophub(task: Any, tmp_path: Path, no_network: Any) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3), log_line(task, 3, 2e-3))
    with tunehub.context(TARGET, user_records=log):
        autotvm.task.DispatchContext.current.query(tvm.target.Target(TARGET), task.workload)
        pairs = autotvm.tophub.load_reference_log("llvm", "unknown", "conv2d_NCHWc.x86")
        assert [pair[0].config.index for pair in pairs][:2] == [5, 3]  # the user's own come first
        assert autotvm.tophub.load_reference_log("llvm", "unknown", "nothing.x86") == []
    assert no_network == []


def test_queries_outside_of_a_build_are_answered(task: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3))
    target = tvm.target.Target(TARGET)
    with tunehub.context(TARGET, user_records=log):
        config = autotvm.task.DispatchContext.current.query(target, task.workload)
    assert (config.index, config.cost, config.is_fallback) == (5, 1e-3, False)


def test_layers_are_counted_and_alternatives_named(task: Any, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", log_line(task, 5, 1e-3))
    with tunehub.context(TARGET, user_records=log) as hub:
        build(*conv_net(layers=3))
    report = hub.report()
    (layer,) = report.workloads
    assert layer.count == 3
    assert report.share(layer) == 1.0
    assert any("3 layers are 1 distinct workloads" in note for note in report.notes)
