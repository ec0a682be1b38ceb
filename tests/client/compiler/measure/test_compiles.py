"""Compiles that measure: the winner is used and remembered, and nothing that goes wrong breaks or hangs a compile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import tvm

from tunehub.comparison.protocol import fastest
from tunehub.compiler.hub import Hub, open_hub
from tunehub.compiler.measure import missing as measure
from tunehub.compiler.measure import workload as measure_workload
from tunehub.compiler.measure.candidates import Task, default_record, task_of
from tunehub.compiler.measure.session import CandidateSession, unpacked
from tunehub.compiler.measure.workload import NONE, CandidateTimes, Limits
from tunehub.compiler.pipeline import compile_module, explain_module
from tunehub.compiler.preparing import prepare
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.compiler.workers import process as worker_process
from tunehub.compiler.workers.process import WorkerProcess
from tunehub.exceptions import HubError, HubWarning, MeasureError
from tunehub.kernels.cpu.base import knob_distance
from tunehub_registry.any_record import encode_any_record, read_any_records
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.template_record import TemplateRecord

from ..conftest import Nets

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def net(module_nets: Nets) -> Any:
    return module_nets.matmul(m=16, n=64, k=64)


@pytest.fixture(scope="module")
def data(module_nets: Nets) -> Any:
    return module_nets.array(16, 64)


@pytest.fixture(scope="module")
def expected(net: Any, data: Any, target: Any, run: Any) -> Any:
    return run(tvm.compile(net, target), data)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "mine.jsonl"


@pytest.fixture
def hub_with(target: Any, store: Path) -> Iterator[Callable[..., Hub]]:
    """A hub without packages, whose warnings at opening do not matter here."""
    hubs: list[Hub] = []

    def opened(count: int, **options: Any) -> Hub:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hubs.append(open_hub(target, **{"user_records": store, "measure": count, **options}))
        return hubs[-1]

    yield opened
    for hub in hubs:
        hub.close()


@pytest.fixture
def check(net: Any, data: Any, target: Any, run: Any, expected: Any) -> Callable[[Hub], list[str]]:
    """Compile the network with a hub, compare what it computes, and return the rungs."""

    def compiled(hub: Hub) -> list[str]:
        np.testing.assert_allclose(run(compile_module(net, target, hub), data), expected, rtol=1e-4, atol=1e-4)
        return [workload.rung for workload in hub.report().workloads]

    return compiled


@pytest.fixture
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "WorkerProcess", lambda *_, **__: pytest.fail("a process was started"))


def kept(store: Path) -> list[Any]:
    with store.open("rb") as stream:
        return list(read_any_records(stream, "mine"))


def measured_notes(hub: Hub) -> list[str]:
    return [note for note in hub.report().notes if note.startswith("measured ")]


def test_the_first_compile_measures_and_the_second_is_exact(
    hub_with: Any, check: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hub_with(3)
    rungs = check(first)
    assert set(rungs) == {"measured"}
    for workload in first.report().workloads:
        assert workload.trials in (1, 2, 3)
        assert workload.run_s is not None and workload.unmeasured_s is not None
        assert workload.run_s <= workload.unmeasured_s
    assert len(kept(store)) == len(rungs)
    (note,) = measured_notes(first)
    assert f"measured {len(rungs)} of {len(rungs)} workloads in " in note
    assert "candidates" in first.report().workloads[0].rung or first.report().table().row_count == len(rungs)

    monkeypatch.setattr(measure, "WorkerProcess", lambda *_, **__: pytest.fail("a process was started"))
    for count in (3, 0):  # measuring or not, the second compile finds what it needs
        second = hub_with(count)
        assert check(second) == ["user"] * len(rungs)
        assert measured_notes(second) == []
    assert len(kept(store)) == len(rungs)


@pytest.mark.usefixtures("_no_processes")
def test_without_candidates_to_measure_nothing_changes(hub_with: Any, check: Any, store: Path) -> None:
    assert set(check(hub_with(0))) == {"template"}
    assert not store.exists()


@pytest.mark.usefixtures("_no_processes")
def test_explaining_measures_nothing(hub_with: Any, net: Any, target: Any, store: Path) -> None:
    hub = hub_with(3)
    explain_module(net, target, hub)
    assert {workload.rung for workload in hub.report().workloads} == {"template"}
    assert not store.exists()


def test_that_tvms_default_is_the_fastest_is_remembered(
    hub_with: Any, check: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "fastest", lambda _samples, _chosen: NONE)
    first = hub_with(1)
    assert set(check(first)) == {"measured"}
    for record in kept(store):
        assert isinstance(record, ScheduleRecord)
        assert (record.trace, record.anchor, record.op_class) == (([], []), None, None)
    monkeypatch.setattr(measure, "WorkerProcess", lambda *_, **__: pytest.fail("a process was started"))
    second = hub_with(1)
    assert set(check(second)) == {"user"}
    assert {workload.template for workload in second.report().workloads} == {None}


# --- what goes wrong


def disturb(monkeypatch: pytest.MonkeyPatch, number: int, with_: signal.Signals, times: int) -> list[int]:
    """Send a signal to the process that is about to compare the candidate ``number``, so many times."""
    ask, hits = WorkerProcess.ask, []

    def disturbed(self: WorkerProcess, request: tuple[Any, ...], limit_s: float) -> Any:
        if request[:2] == ("difference", unpacked(number)) and len(hits) < times:
            hits.append(number)
            os.kill(self._process.process.pid, with_)
        return ask(self, request, limit_s)

    monkeypatch.setattr(WorkerProcess, "ask", disturbed)
    return hits


@pytest.mark.usefixtures("new_interpreters")
def test_a_killed_process_costs_nothing_when_it_was_an_accident(
    hub_with: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disturb(monkeypatch, 1, signal.SIGKILL, times=1) == []
    hub = hub_with(2)
    assert set(check(hub)) == {"measured"}
    assert not [note for note in hub.report().notes if "left out" in note]


@pytest.mark.usefixtures("new_interpreters")
@pytest.mark.few(1)
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "killed"])
def test_a_candidate_that_ends_its_process_loses_itself_only(
    hub_with: Any, check: Any, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setattr(measure, "Limits", partial(Limits, run_s=4.0))
    hits = disturb(monkeypatch, 1, how, times=2)
    hub = hub_with(2)
    assert set(check(hub)) == {"measured"}
    assert hits == [1, 1]
    (note,) = [note for note in hub.report().notes if "left out" in note]
    assert "candidate 1 was left out" in note


def test_a_wrong_candidate_is_never_used(hub_with: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = WorkerProcess.ask

    def wrong(self: WorkerProcess, request: tuple[Any, ...], limit_s: float) -> Any:
        answer = ask(self, request, limit_s)
        return ("ok", 0.5) if request[0] == "difference" else answer

    monkeypatch.setattr(WorkerProcess, "ask", wrong)
    hub = hub_with(2)
    assert set(check(hub)) == {"measured"}
    assert {(w.template, w.unmeasured_s) for w in hub.report().workloads} == {(None, None)}
    assert [note for note in hub.report().notes if "differs from the default's by 0.5" in note]


def test_processes_that_do_not_start_leave_the_compile_as_it_was(
    hub_with: Any, check: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process.sys, "executable", "/no/such/python")
    with pytest.warns(HubWarning, match="measuring failed") as caught:
        assert set(check(hub_with(2))) == {"template"}
    assert len(caught) == 1
    assert not store.exists()


def test_processes_without_tvm_leave_the_compile_as_it_was(
    hub_with: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_BOOT", "raise SystemExit(3)")
    with pytest.warns(HubWarning, match=r"cannot start: .*exit code 3") as caught:
        assert set(check(hub_with(2))) == {"template"}
    assert len(caught) == 1


def test_records_that_cannot_be_kept_serve_this_compile(hub_with: Any, check: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    hub = hub_with(1, user_records=tmp_path / "file" / "mine.jsonl")
    with pytest.warns(HubWarning, match="cannot be kept") as caught:
        assert set(check(hub)) == {"measured"}
    assert len(caught) == 1


def test_problems_are_errors_in_strict_mode(
    net: Any, target: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hub = open_hub(target, user_records=store, measure=1)
    monkeypatch.setattr(hub.policy, "strict", True)
    monkeypatch.setattr(worker_process.sys, "executable", "/no/such/python")
    with pytest.raises(HubError, match="measuring failed"):
        compile_module(net, target, hub)


@pytest.mark.parametrize(
    "host",
    [
        TargetDescriptor(kind="llvm", model="cortex-a76", arch="riscv64"),
        TargetDescriptor(kind="llvm", model="other", arch="x86_64", features=("avx512fp16", "amx-int8", "sve")),
        TargetDescriptor(kind="cuda", model="h200", arch="sm_90"),
    ],
    ids=lambda host: str(host.arch),
)
def test_only_code_for_this_machines_cpu_is_measured(host: TargetDescriptor) -> None:
    with pytest.raises(MeasureError, match="measured"):
        measure._check_machine(host)


@pytest.mark.usefixtures("_no_processes")
def test_code_for_another_machine_is_compiled_as_without_measuring(
    hub_with: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = hub_with(2)
    other = TargetDescriptor(kind="llvm", model="other", arch="riscv64")
    monkeypatch.setattr(measure, "host_descriptor", lambda: other)
    with pytest.warns(HubWarning, match="cannot be measured on this machine"):
        assert set(check(hub)) == {"template"}


SCRIPT = """
import sys, warnings
sys.path[:0] = {path!r}
from pathlib import Path
import tvm
import tunehub
from tunehub.registries import configured as registries
warnings.simplefilter("ignore")
registries.embedded_registry = lambda: Path({none!r})
net = tvm.ir.load_json(Path({net!r}).read_text())
target = tvm.target.Target({{"kind": "llvm", "num-cores": 2}})
with tunehub.context(target) as hub:
    tvm.compile(net, target)
print(*(workload.rung for workload in hub.report().workloads))
"""


def test_compiles_at_the_same_time_share_a_store(
    net: Any, hub_with: Any, check: Any, store: Path, tmp_path: Path
) -> None:
    """The script has no main guard, and its setting is the environment's."""
    saved, script = tmp_path / "net.json", tmp_path / "compile.py"
    saved.write_text(str(tvm.ir.save_json(net)))
    places = [place for place in sys.path if place]
    script.write_text(SCRIPT.format(path=places, none=str(tmp_path / "none"), net=str(saved)))
    environment = {**os.environ, "TUNEHUB_MEASURE": "2", "TUNEHUB_RECORDS": str(store)}
    other = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
    rungs = [check(hub_with(2)), other.communicate(timeout=240)[0].split()]
    assert other.returncode == 0
    assert all(set(found) <= {"measured", "user"} for found in rungs)
    assert {type(record) for record in kept(store)} <= {ScheduleRecord, TemplateRecord}
    assert set(check(hub_with(0))) == {"user"}


# --- candidates


def workload(mod: Any, target: Any, layout: str) -> tuple[str, Any]:
    """The workload of a network with the most text: its heavy one."""
    functions = prepare(mod, target, layout=layout).functions.items()
    found = [(str(v.name_hint), f) for v, f in functions if isinstance(f, tvm.tirx.PrimFunc)]
    return max(found, key=lambda item: len(item[1].script()))


def task(mod: Any, target: Any, hub: Any, limit: int, layout: str = "keep") -> Task:
    name, function = workload(mod, target, layout)
    outcome, _ = schedule_function(function, target, hub.lookup)
    alone = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    found = task_of(name, alone, target, hub.lookup, outcome, limit)
    assert found is not None
    return found


def test_knobs_of_the_template_start_with_its_own_choice(nets: Nets, target: Any, make_hub: Any) -> None:
    found = task(nets.conv(64, 64, 14), target, make_hub(), 5, "auto")
    assert (len(found.records), found.chosen, found.tolerance) == (5, True, 1e-4)
    own = found.records[0]
    assert isinstance(own, TemplateRecord)
    distances = [knob_distance(record.knobs, own.knobs) for record in found.records]
    assert distances == sorted(distances)
    assert len({str(record.knobs) for record in found.records}) == 5


def test_neighbours_take_turns_with_knobs(nets: Nets, target: Any, make_hub: Any, record_for: Any) -> None:
    records = [record for m in (32, 48, 64) for record in record_for(nets.matmul(m=m, n=64, k=64))]
    found = task(nets.matmul(m=16, n=64, k=64), target, make_hub(records), 4)
    kinds = [type(record).__name__ for record in found.records]
    assert sorted(set(kinds)) == ["ScheduleRecord", "TemplateRecord"]
    assert {record.exact for record in found.records} == {found.exact}
    assert task(nets.matmul(m=16, n=64, k=64), target, make_hub(records), 1).records == found.records[:1]


def test_every_candidate_is_built_and_right(nets: Nets, target: Any, make_hub: Any, record_for: Any) -> None:
    """In this process, as a worker does it: adapted traces, with packed weights, and knobs."""
    records = [record for m in (32, 48) for record in record_for(nets.matmul(m=m, n=64, k=64))]
    found = task(nets.matmul(m=16, n=64, k=64), target, make_hub(records), 4)
    session = CandidateSession()
    session.task(found.exact, measure_workload.workload_text(found.mod["main"]))
    session.build_default(0, found.exact, str(target))
    for number, record in enumerate(found.records):
        session.build_record(number, found.exact, str(target), encode_any_record(record))
        assert session.difference(unpacked(number), 0, 2) <= found.tolerance
    with pytest.raises(ValueError, match="key of this workload"):
        other = default_record("0" * 32, "other", 1.0)
        session.build_record(9, found.exact, str(target), encode_any_record(other))


def test_half_floats_may_differ_by_more(nets: Nets, target: Any, make_hub: Any) -> None:
    assert task(nets.matmul(m=16, n=64, k=64, dtype="float16"), target, make_hub(), 1).tolerance == 1e-2


# --- who wins

SAMPLES: dict[str, tuple[dict[int, tuple[float, ...]], int, int]] = {  # samples, what is chosen without, the winner
    "clearly_faster": ({NONE: (9.0,), 0: (2.0, 2.1, 2.2), 1: (1.0, 1.1, 1.2)}, 0, 1),
    "hardly_faster": ({NONE: (9.0,), 0: (1.01, 1.01, 1.01), 1: (1.0, 1.0, 1.0)}, 0, 0),
    "within_the_noise": ({NONE: (9.0,), 0: (2.0, 2.1, 9.0), 1: (1.0, 1.1, 9.0)}, 0, 0),
    "the_default_is_faster": ({NONE: (1.0,), 0: (1.5,), 1: (1.2,)}, 0, NONE),
    "the_default_is_hardly_faster": ({NONE: (1.0,), 0: (1.01,)}, 0, 0),
    "chosen_was_left_out": ({NONE: (9.0,), 1: (2.0,), 2: (1.0,)}, 0, 2),
    "nothing_is_left": ({NONE: (9.0,)}, 0, NONE),
    "default_is_what_is_used": ({NONE: (1.0,), 0: (1.1,)}, NONE, NONE),
    "better_than_the_default": ({NONE: (1.0,), 0: (0.5,)}, NONE, 0),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_winner(name: str) -> None:
    samples, chosen, winner = SAMPLES[name]
    assert fastest(samples, chosen) == winner


def test_the_winners_record_beats_the_default(nets: Nets, target: Any, make_hub: Any) -> None:
    found = task(nets.conv(64, 64, 14), target, make_hub(), 2, "auto")
    choice = measure.choice_of(
        found, CandidateTimes(samples={NONE: (3.0, 4.0, 5.0), 0: (2.0, 2.5, 3.0), 1: (1.0, 1.0, 1.5)})
    )
    assert (choice.record.run_s, choice.record.default_s, choice.unmeasured_s) == ((1.0,), 4.0, 2.5)
    assert choice.record.mean_s == median(choice.record.run_s)
    assert choice.record.anchor is not None
    equal = measure.choice_of(found, CandidateTimes(samples={NONE: (1.0,), 0: (1.01,)}))
    assert (equal.record.run_s, equal.record.default_s, equal.unmeasured_s) == ((1.01,), None, 1.01)
