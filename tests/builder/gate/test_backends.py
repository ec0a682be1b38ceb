"""What the gate does with the backend of each generation of TVM; no TVM is needed, the workers are played."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub.compiler.measure.session import packed, unpacked
from tunehub_builder.backends.relax import network_gate as relax_networks
from tunehub_builder.backends.relax.network_worker import RelaxNetworkCase
from tunehub_builder.backends.relax.workload_gate import RelaxWorkloads, Verdict
from tunehub_builder.backends.relay import network_gate as relay_networks
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.backends.relay.workload_gate import RelayVerdict, RelayWorkloads
from tunehub_builder.gate import network_times
from tunehub_builder.gate import networks as gate_networks
from tunehub_builder.gate.disturbance import UNJUDGED
from tunehub_builder.gate.networks import NetworkVerdict, check_networks
from tunehub_builder.gate.workloads import check_workloads
from tunehub_builder.tuning.journal import Journal, LineJournal, Trial
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import PoolOptions
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory
from tunehub_registry.evidence import Accuracy
from tunehub_registry.tuning_log import parse_line

pytestmark = pytest.mark.fast

TARGET = "llvm -keys=cpu -mcpu=znver5 -num-cores=2"
DEFAULT_S = 1e-3
NOISY = (8e-4, 3e-4, 1.5e-3, 8e-4)  # of which the median shows a gain


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is disturbed is judged once a call."""
    monkeypatch.setenv("TUNEHUB_PATIENCE", "0")


class PlayedWorker:
    """A worker whose candidates take as long as they are told; ``math.nan`` ends the process.

    ``run_s``: seconds by the tuning time in microseconds of a candidate, which tells candidates apart.
    """

    def __init__(self, run_s: dict[int, float | Sequence[float]], difference: dict[int, Any]) -> None:
        self.run_s, self.apart = run_s, difference
        self.default: Sequence[float] = (DEFAULT_S,)
        self.alive = True
        self.built: list[int] = []
        self.loaded: list[str] = []
        self._samples: Counter[Any] = Counter()

    def load(self, task: str, _module: str) -> None:
        self.loaded.append(task)
        self.alive = True

    def send(self, request: tuple[Any, ...]) -> None:
        assert request[0] == "build_case"
        self.built = [tuning_us(candidate) for candidate in request[-1]]

    def receive(self, _limit_s: float, _what: str) -> tuple[str, Any]:
        return "ok", [None] * (1 + len(self.built))

    def ask(self, request: tuple[Any, ...], _limit_s: float) -> tuple[str, Any]:
        name, number, *_ = request
        if name == "difference":
            places = {unpacked(i): us for i, us in enumerate(self.built)}
            return "ok", self.apart.get(places[number], 0.0)
        places = {packed(i): us for i, us in enumerate(self.built)}
        run_s = self.run_s[places[number]] if number else self.default
        if isinstance(run_s, float):
            run_s = (run_s,)
        self._samples[number] += 1
        value = run_s[self._samples[number] % len(run_s)]
        if math.isnan(value):
            self.alive = False
            return "error", "the time crashed its process (exit code 3)"
        return "ok", value


def tuning_us(candidate: Any) -> int:
    """The number that :func:`trace` or :func:`line` has written into a candidate."""
    if isinstance(candidate, str):
        return int(json.loads(candidate)["config"]["index"])
    return len(candidate[1])


def trace(us: int) -> Any:
    """Differs from others by its decisions."""
    return [["EnterPostproc", [], [], []]], [[0, us]] * us


def line(us: int, width: int = 64) -> str:
    arguments = [["TENSOR", [1, width], "float32"], ["TENSOR", [8, width], "float32"], None, "float32"]
    config = {"index": us, "code_hash": None, "entity": [["tile_y", "sp", [-1, 1]], ["tile_x", "sp", [-1, us]]]}
    row = {"input": [TARGET, "dense_nopack.x86", arguments, {}], "config": config, "result": [[us * 1e-6], 0, 0.5, 1.0]}
    return json.dumps({**row, "version": 0.2, "tvm_version": "0.19.0"})


class Played:
    """A backend with played workers; ``add`` a candidate, by its tuning time in microseconds."""

    def __init__(self, backend: Any, add: Callable[[int], None]) -> None:
        self._backend, self.add = backend, add
        self.worker = PlayedWorker({}, {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @contextmanager
    def workers(self, count: int) -> Iterator[Sequence[Sequence[PlayedWorker]]]:
        assert count == 1
        yield [[self.worker]]

    def check(self, threads: int = 2, **played: Any) -> tuple[Any, int]:
        """The verdict on the one workload, and how many new ones there are."""
        self.worker = PlayedWorker(played.pop("run_s", {}), played.pop("difference", {}))
        vars(self.worker).update(played)
        self._backend = replace(self._backend, threads=threads)
        shown: list[Any] = []
        (verdict,) = check_workloads(
            self, Resources(threads=threads, workers=4), lambda v, position, count: shown.append((v, position, count))
        )
        assert shown in ([], [(verdict, 1, 1)])
        return verdict, len(shown)


def relax_backend(directory: WorkDirectory) -> Played:
    run = RunFile(target_name="t", target={"kind": "llvm"}, tvm_version="0.27", tvm_ffi_version="1")
    task = TaskEntry(name="dense", exact="0" * 32, anchor=None, counts={"net": 1}, module="{}")
    directory.save_tasks([task])

    def add(us: int) -> None:
        Journal(directory.path).append(Trial(task=task.exact, trace=trace(us), source="sketch", run_s=(us * 1e-6,)))

    return Played(RelaxWorkloads(directory=directory, run=run, threads=2), add)


def relay_backend(directory: WorkDirectory) -> Played:
    run = RunFile(target_name="t", target={"text": TARGET}, tvm_version="0.19", tvm_ffi_version="none")
    work = RelayWork(directory)

    def add(us: int) -> None:
        with work.autotvm_log.open("a", encoding="utf-8") as file:
            file.write(line(us) + "\n")
        found = parse_line(line(us).encode())
        task = RelayTask(
            tuner=found.tuner, name=found.name, key=found.key, operator=found.operator, workload=found.workload,
            counts={"net": 1}, flop=1.0,
        )  # fmt: skip
        work.save_tasks("autotvm", (), [task])

    return Played(RelayWorkloads(work=work, run=run, threads=2, dags=lambda _: {}), add)


@pytest.fixture(params=[relax_backend, relay_backend], ids=["relax", "relay"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    from tunehub_builder.backends.relax import workload_gate

    monkeypatch.setattr(workload_gate, "static_reason", lambda _: None)
    made: Played = request.param(WorkDirectory(tmp_path))
    return made


def test_the_fastest_here_wins_whatever_tuning_said_and_is_judged_once(backend: Played) -> None:
    for us in (1, 2, 3):
        backend.add(us)
    verdict, new = backend.check(run_s={1: 5e-4, 2: 4e-4, 3: 6e-4})
    assert (verdict.admitted, verdict.winner, verdict.reason, new) == (True, 1, None, 1)
    assert verdict.speedup == pytest.approx(2.5)
    assert backend.check() == (verdict, 0)
    assert backend.worker.loaded == []


def test_new_finalists_and_other_threads_are_judged_again(backend: Played) -> None:
    backend.add(2)
    first, _ = backend.check(run_s={2: 5e-4})
    backend.add(1)
    second, new = backend.check(run_s={2: 5e-4, 1: 4e-4})
    assert (second.winner, new) == (0, 1)
    assert first.digest != second.digest
    assert backend.check(threads=8, run_s={2: 5e-4, 1: 4e-4})[1] == 1


def test_a_gain_that_noise_hid_is_judged_again_until_it_shows(backend: Played) -> None:
    backend.add(1)
    noisy, _ = backend.check(run_s={1: NOISY})
    assert (noisy.admitted, noisy.reason) == (False, UNJUDGED)
    quiet, new = backend.check(run_s={1: 9e-4})
    assert (quiet.admitted, new) == (True, 1)
    assert backend.check()[1] == 0


def test_what_is_clearly_slower_is_not_judged_again(backend: Played) -> None:
    backend.add(1)
    slow, _ = backend.check(run_s={1: 2e-3})
    assert "times as fast as the default" in slow.reason
    assert backend.check() == (slow, 0)


def test_a_crash_and_a_wrong_output_cost_only_their_finalists(backend: Played) -> None:
    for us in (1, 2, 3):
        backend.add(us)
    verdict, _ = backend.check(run_s={1: math.nan, 2: 1e-4, 3: 5e-4}, difference={2: math.inf})
    reasons = [finalist.reason or "" for finalist in verdict.finalists]
    assert (verdict.admitted, verdict.winner) == (True, 2)
    assert "crashed its process" in reasons[0]
    assert "output differs" in reasons[1]


def test_a_default_that_ends_the_process_admits_nothing(backend: Played) -> None:
    backend.add(1)
    verdict, _ = backend.check(run_s={1: 1e-4}, default=(math.nan,))
    assert not verdict.admitted
    assert "crashed" in verdict.reason or "twice" in verdict.reason


def test_a_torn_line_is_mended_and_what_was_written_stays(backend: Played) -> None:
    backend.add(1)
    verdict, _ = backend.check(run_s={1: 5e-4})
    with backend.journal.path.open("ab") as file:
        file.write(b'{"exact": "torn')
    assert backend.check() == (verdict, 0)
    backend.add(2)
    assert backend.check(run_s={1: 5e-4, 2: 4e-4})[1] == 1
    assert len(backend.journal.path.read_bytes().splitlines()) == 2


def test_without_finalists_there_is_nothing_to_judge(tmp_path: Path) -> None:
    backend = relax_backend(WorkDirectory(tmp_path))
    assert check_workloads(backend, Resources(threads=2, workers=1), lambda *_: None) == []


class PlayedNetworks:
    """Plays the worker of a network: seconds by variant, NaN ends the process, a text is the error of its build."""

    def __init__(self, run_s: dict[str, Any]) -> None:
        self.run_s = run_s
        self.alive = True
        self.starts = 0
        self._samples: Counter[Any] = Counter()

    def __call__(self, _options: PoolOptions, _session: Any) -> PlayedNetworks:
        return self

    def load(self, _name: str, _case: str) -> None:
        self.starts += 1
        self.alive = True

    def stop(self, *, at_once: bool) -> None:
        assert at_once

    def ask(self, request: tuple[Any, ...], _limit_s: float) -> tuple[str, Any]:
        name, variant, *_ = request
        found = self.run_s[variant]
        if name == "build":
            return ("error", found) if isinstance(found, str) else ("ok", {"exact": 1})
        if name == "difference":
            return "ok", 1e-6
        if name == "accuracy":
            return "ok", Accuracy(inputs=64, rows=64, same_class=63, max_rel_diff=2e-3)
        samples = found if isinstance(found, tuple) else (found,)
        self._samples[variant] += 1
        value = samples[self._samples[variant] % len(samples)]
        if math.isnan(value):
            self.alive = False
            return "error", "the time crashed its process (exit code 3)"
        return "ok", value


class NetworkCheck:
    """Networks at the gate with a played worker; ``variant`` is the one with records."""

    def __init__(self, backend: Any, case: Any, journal: LineJournal[NetworkVerdict], variant: str) -> None:
        self.backend, self.case, self.journal, self.variant = backend, case, journal, variant
        self.worker = PlayedNetworks({})

    def check(self, monkeypatch: pytest.MonkeyPatch, **run_s: Any) -> tuple[NetworkVerdict, int]:
        self.worker = PlayedNetworks({"plain": 9e-4, "graph": 8e-4, **run_s})
        if "tuned" in run_s:
            self.worker.run_s[self.variant] = run_s["tuned"]
        monkeypatch.setattr(gate_networks, "Worker", self.worker)
        monkeypatch.setattr(network_times, "in_turns", lambda *args, **kw: in_turns(*args, lambda _: None, **kw))
        shown: list[NetworkVerdict] = []
        options = PoolOptions(workers=1, threads=2)
        found = check_networks(self.backend, self.journal, [self.case], options, lambda v, *_: shown.append(v))
        (verdict,) = (verdict for verdict in found if verdict.variant in ("", self.variant))
        return verdict, len(shown)


in_turns = network_times.in_turns


@pytest.fixture(params=["relax", "relay"])
def network(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NetworkCheck:
    directory = WorkDirectory(tmp_path)
    if request.param == "relax":
        case = RelaxNetworkCase(name="net", target={"kind": "llvm"}, records="r", layout="keep")
        backend = relax_networks.RelaxNetworks(digest="d")
        return NetworkCheck(backend, case, relax_networks.network_journal(directory), "tuned")
    monkeypatch.setattr(relay_networks, "_saved", lambda *_: "{}")
    run = RunFile(target_name="t", target={"text": TARGET}, tvm_version="0.19", tvm_ffi_version="none")
    uses = tuple(relay_networks.RecordUse(variant=variant, lines=(variant,)) for variant in ("history", "graph"))
    networks = relay_networks.RelayNetworks(run=run, network_of=lambda _: None)  # type: ignore[arg-type, return-value]
    case_of_uses = relay_networks.NetworkUses(network="net", uses=uses)
    return NetworkCheck(networks, case_of_uses, relay_networks.network_journal(RelayWork(directory)), "history")


def test_a_network_is_judged_once(network: NetworkCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, new = network.check(monkeypatch, default=1e-3, tuned=5e-4)
    assert (verdict.admitted, verdict.reason, new > 0) == (True, None, True)
    assert network.check(monkeypatch) == (verdict, 0)


def test_a_network_whose_gain_noise_hid_is_judged_again(network: NetworkCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy, _ = network.check(monkeypatch, default=1e-3, tuned=NOISY, plain=2e-3, graph=5e-4)
    assert noisy.reason == UNJUDGED
    verdict, new = network.check(monkeypatch, default=1e-3, tuned=5e-4)
    assert (verdict.admitted, new > 0) == (True, True)


def test_a_variant_that_ends_the_process_does_not_cost_the_others(
    network: NetworkCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, _ = network.check(monkeypatch, default=1e-3, tuned=5e-4, plain=math.nan, graph=math.nan)
    assert verdict.admitted
    assert network.worker.starts == 2


@pytest.mark.parametrize(
    ("run_s", "reason"),
    [
        ({"default": "no memory", "tuned": 5e-4}, "does not build (default): no memory"),
        ({"default": 1e-3, "tuned": "no memory"}, "no memory"),
        ({"default": math.nan, "tuned": 5e-4}, "cannot be timed"),
        ({"default": 1e-3, "tuned": math.nan}, "cannot be timed"),
    ],
)
def test_what_does_not_work_is_rejected_with_the_reason(
    network: NetworkCheck, monkeypatch: pytest.MonkeyPatch, run_s: dict[str, Any], reason: str
) -> None:
    verdict, _ = network.check(monkeypatch, **run_s)
    assert not verdict.admitted
    assert reason in str(verdict.reason)


FINALIST = '{"source":"sketch","tuning_s":0.0001,"run_s":[0.1,0.2],"difference":1e-7}'
WRITTEN = [
    (
        Verdict,
        '{"exact":"a","name":"conv","digest":"d","threads":2,"admitted":true,"default_s":[1.0,1.5],"finalists":['
        + FINALIST
        + '],"winner":0,"trace":[[],[]],"trials":64}',
    ),
    (
        Verdict,
        '{"exact":"a","name":"conv","digest":"d","threads":2,"admitted":false,"reason":"no","finalists":[],"winner":0,'
        '"choice":{"template":"dense","version":2,"knobs":{"rows":4}}}',
    ),
    (
        RelayVerdict,
        '{"tuner":"autotvm","key":"k","operator":"o","name":"dense","digest":"d","threads":2,"admitted":true,'
        '"default_s":[1.0],"finalists":[' + FINALIST + '],"winner":0,"line":"{}"}',
    ),
    (
        NetworkVerdict,
        '{"network":"vgg19","digest":"d","threads":2,"admitted":true,"default_s":[1.0],"plain_s":[0.5],"tuned_s":[0.4],'
        '"difference":1e-6,"rungs":{"exact":3}}',
    ),
    (
        NetworkVerdict,
        '{"network":"vgg19","variant":"graph","digest":"d","threads":2,"admitted":false,"reason":"no",'
        '"default_s":[1.0],"tuned_s":[0.4],"difference":1e-6,"tolerance":0.001,"keys":["k"]}',
    ),
]


@pytest.mark.parametrize(("kind", "text"), WRITTEN)
def test_journals_of_before_are_read_and_written_in_the_same_way(kind: type[Any], text: str) -> None:
    assert msgspec.json.encode(msgspec.json.decode(text, type=kind)).decode() == text.replace(',"finalists":[]', "")
