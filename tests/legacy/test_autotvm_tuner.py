"""AutoTVM behind the port: tasks and their counts, every algorithm, resuming, failures by reason, real measurements."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tvm
from click.testing import CliRunner
from tvm import autotvm, relay

from tunehub_builder.backends.relay import autotvm_tuner
from tunehub_builder.backends.relay.autotvm_history import since_best, transfer_history
from tunehub_builder.backends.relay.autotvm_search import PLAN, make_search
from tunehub_builder.backends.relay.autotvm_session import AutotvmSession, CandidateError, TaskSource
from tunehub_builder.backends.relay.autotvm_tasks import AutotvmTask, network_tasks
from tunehub_builder.backends.relay.measure import AutotvmTrial, _error_no
from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.networks import get as get_network
from tunehub_builder.backends.relay.tuner import RelayOptions, RelaySession, get_tuner
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.progress import Progress
from tunehub_builder.tuning.runner.messages import MeasureOptions
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.tuning_log import parse_line

pytestmark = pytest.mark.legacy

TARGET = f"llvm -mcpu={tvm.target.codegen.llvm_get_system_cpu()} -num-cores=1"
CHANNELS = 8


def conv_module(convolutions: int, channels: int = CHANNELS) -> tuple[Any, dict[str, Any]]:
    """Equal convolutions one after the other, and a matrix product."""
    body = relay.var("data", shape=(1, channels, 7, 7))
    for number in range(convolutions):
        weight = relay.var(f"w{number}", shape=(channels, channels, 3, 3))
        body = relay.nn.relu(relay.nn.conv2d(body, weight, padding=(1, 1), kernel_size=(3, 3), channels=channels))
    body = relay.nn.dense(relay.nn.batch_flatten(body), relay.var("d", shape=(4, channels * 49)))
    return tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body)), {}


def network(name: str, convolutions: int = 2, channels: int = CHANNELS) -> RelayNetwork:
    return RelayNetwork(
        name=name, source="test", inputs={"data": (1, channels, 7, 7)},
        definition=lambda: conv_module(convolutions, channels),
    )  # fmt: skip


class FakeMeasurer:
    """Times that depend on the index alone; every call is noted. An index in ``errors`` fails."""

    def __init__(self, errors: dict[int, int] | None = None) -> None:
        self.measured: list[tuple[str, int]] = []
        self.errors = errors or {}
        self.stop_after = 10**9

    def __enter__(self) -> FakeMeasurer:
        return self

    def __exit__(self, *_details: object) -> None:
        return None

    def measure(self, task: AutotvmTask, indices: Sequence[int], best_s: float | None) -> list[AutotvmTrial]:
        if len(self.measured) >= self.stop_after:
            raise KeyboardInterrupt
        self.measured += [(task.key, index) for index in indices]
        return [self._of(index) for index in indices]

    def _of(self, index: int) -> AutotvmTrial:
        if index in self.errors:
            return AutotvmTrial(error_no=self.errors[index], took_s=0.1, timestamp=1.0)
        return AutotvmTrial(run_s=(1e-3 * (1 + index % 97), 1e-3 * (1 + index % 97)), took_s=0.1, timestamp=1.0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasurer:
    measurer = FakeMeasurer()
    monkeypatch.setattr(autotvm_tuner, "make_measurer", lambda session: measurer)
    return measurer


def session(folder: Path, *networks: RelayNetwork, show: Any = None, **options: Any) -> RelaySession:
    folder.mkdir(exist_ok=True)
    return RelaySession(
        target=TARGET, networks=networks, work=RelayWork(WorkDirectory(folder)), options=RelayOptions(**options),
        threads=1, workers=1, show=show or (lambda progress: None),
    )  # fmt: skip


def trials_of(folder: Path) -> list[tuple[str, int]]:
    records = map(parse_line, (folder / "autotvm.log").read_bytes().splitlines())
    return [(record.key, record.config["index"]) for record in records]


def test_every_call_is_counted_and_shared_tasks_are_one(tmp_path: Path, fake: FakeMeasurer) -> None:
    given = session(tmp_path, network("three", 3), network("two", 2), trials=1)
    outcome = get_tuner("autotvm").tune(given)
    tasks = list(given.work.tasks("autotvm"))
    convolutions = [task for task in tasks if task.name.startswith("conv2d")]
    assert [task.counts for task in convolutions] == [{"three": 3, "two": 2}]
    assert {task.name.partition(" ")[0] for task in tasks} == {"conv2d_NCHWc.x86", "dense_nopack.x86", "dense_pack.x86"}
    dense = [task for task in tasks if task.name.startswith("dense")]
    assert dense[0].operator == dense[1].operator != convolutions[0].operator
    assert outcome.tasks == len(tasks) == 3
    assert outcome.trials == outcome.measured_now == 3


def test_the_tasks_are_those_that_tvm_extracts_with_weights() -> None:
    found = get_network("dqn")
    module, params = found.module()
    expected = autotvm.task.extract_from_program(module["main"], params=params, target=tvm.target.Target(TARGET))
    ours = network_tasks(found, tvm.target.Target(TARGET))
    assert {task.task.workload for task in ours} == {task.workload for task in expected}


@pytest.mark.parametrize("algorithm", ["xgb", "ga", "random", "gridsearch"])
def test_an_ended_tuning_goes_on_and_measures_nothing_twice(tmp_path: Path, fake: FakeMeasurer, algorithm: str) -> None:
    options = {"trials": 40, "algorithm": algorithm, "seed": 3}
    fake.stop_after = 20
    with pytest.raises(KeyboardInterrupt):
        get_tuner("autotvm").tune(session(tmp_path, network("net"), **options))
    first = list(fake.measured)
    log = tmp_path / "autotvm.log"
    assert trials_of(tmp_path) == first
    log.write_bytes(log.read_bytes() + b'{"input": ["llvm", "conv2d_NCH')  # killed while writing
    again = session(tmp_path, network("net"), **options)
    again.work.heal()
    fake.stop_after = 10**9
    outcome = get_tuner("autotvm").tune(again)
    assert trials_of(tmp_path) == fake.measured
    assert len(set(fake.measured)) == len(fake.measured) == outcome.trials
    assert outcome.measured_now == len(fake.measured) - len(first)
    most = {task.key: min(40, task.space or 0) for task in again.work.tasks()}
    assert Counter(key for key, _ in fake.measured) == most
    assert get_tuner("autotvm").tune(again).measured_now == 0
    assert len(list(autotvm.record.load_from_file(str(log)))) == len(fake.measured)


@pytest.mark.parametrize("algorithm", ["random", "gridsearch", "ga"])
def test_the_same_seed_measures_the_same(tmp_path: Path, fake: FakeMeasurer, algorithm: str) -> None:
    for name in ("a", "b"):
        get_tuner("autotvm").tune(session(tmp_path / name, network("net", 1), trials=18, algorithm=algorithm))
    assert trials_of(tmp_path / "a") == trials_of(tmp_path / "b")


def test_failures_are_counted_by_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measurer = FakeMeasurer(errors={0: 6, 1: 7, 2: 7, 3: 4})
    monkeypatch.setattr(autotvm_tuner, "make_measurer", lambda session: measurer)
    steps: list[Progress] = []
    given = session(tmp_path, network("net", 1), show=steps.append, trials=8, algorithm="gridsearch")
    outcome = get_tuner("autotvm").tune(given)
    expected = {"BUILD_TIMEOUT": 3, "RUN_TIMEOUT": 6, "RUNTIME_DEVICE": 3}
    assert outcome.failures == expected
    assert (steps[-1].failed, steps[-1].failures, steps[-1].finished) == (12, expected, True)
    assert [step.position for step in steps if step.finished] == [1, 2, 3]
    assert outcome.trials == steps[-1].done == steps[-1].planned == 24
    again = get_tuner("autotvm").tune(given)
    assert (again.failures, again.measured_now) == (expected, 0)
    assert "few trials for 3 of 3 tasks" in outcome.notes[0]


def test_early_stopping_ends_a_task_and_stays_ended(tmp_path: Path, fake: FakeMeasurer) -> None:
    given = session(tmp_path, network("net", 1), trials=200, algorithm="gridsearch", early_stopping=20)
    steps: list[Progress] = []
    given = session(
        tmp_path, network("net", 1), show=steps.append, trials=200, algorithm="gridsearch", early_stopping=20
    )
    outcome = get_tuner("autotvm").tune(given)
    counts = Counter(key for key, _ in fake.measured)
    assert all(20 <= count <= 20 + 16 for count in counts.values())  # the first is the best; batches are whole
    assert steps[-1].planned == outcome.trials == len(fake.measured)
    assert get_tuner("autotvm").tune(given).measured_now == 0


def test_a_time_that_is_none_is_a_failure(tmp_path: Path, fake: FakeMeasurer) -> None:
    fake._of = lambda index: AutotvmTrial(run_s=(float("nan"),))  # type: ignore[method-assign]
    outcome = get_tuner("autotvm").tune(session(tmp_path, network("net", 1), trials=2))
    assert outcome.failures == {"UNKNOWN_ERROR": 6}
    assert b"NaN" not in (tmp_path / "autotvm.log").read_bytes()


def test_what_other_shapes_taught_is_used_from_the_start(tmp_path: Path, fake: FakeMeasurer) -> None:
    get_tuner("autotvm").tune(session(tmp_path / "old", network("net", 1), trials=30))
    log = tmp_path / "old" / "autotvm.log"
    plain = session(tmp_path / "plain", network("wide", 1, 16), trials=8)
    taught = session(tmp_path / "taught", network("wide", 1, 16), trials=8, transfer_from=(log,))
    for given in (plain, taught):
        get_tuner("autotvm").tune(given)
    assert trials_of(tmp_path / "plain") != trials_of(tmp_path / "taught")
    tasks = network_tasks(network("wide", 1, 16), tvm.target.Target(TARGET))
    (convolution,) = (task for task in tasks if task.name.startswith("conv2d"))
    history = transfer_history([log], convolution)
    assert len(history) == 30  # TVM's own transfer does nothing with fewer than 500
    assert max(speed for _, speed in history) == 1.0
    empty = tmp_path / "empty.log"
    empty.write_text("nothing\n")
    with pytest.raises(TuningError, match=r"empty\.log: holds no AutoTVM record"):
        transfer_history([empty], convolution)


def test_records_of_a_changed_template_do_not_count(tmp_path: Path, fake: FakeMeasurer) -> None:
    given = session(tmp_path, network("net", 1), trials=4)
    get_tuner("autotvm").tune(given)
    log = tmp_path / "autotvm.log"
    log.write_bytes(
        log.read_bytes().replace(b'"sp"', b'"an"').replace(b'"config": {"index": ', b'"config": {"index": 9')
    )
    assert get_tuner("autotvm").tune(given).measured_now == 12


def test_a_large_space_is_climbed() -> None:
    @autotvm.template("tests/large")
    def large(size: int) -> Any:
        config = autotvm.get_config()
        for name in "abcd":
            config.define_knob(name, list(range(24)))
        a = tvm.te.placeholder((size,), name="a")
        b = tvm.te.compute((size,), lambda i: a[i] + 1.0, name="b")
        return tvm.te.create_schedule(b.op), [a, b]

    task = autotvm.task.create("tests/large", (8,), target=tvm.target.Target(TARGET))
    search = make_search("xgb", task, 0, "0" * 32)
    costs: list[float] = []
    for _ in range(8):
        configs = search.next_batch(PLAN)
        inputs = [autotvm.MeasureInput(task.target, task, config) for config in configs]
        times = [1.0 + sum(config[name].val for name in "abcd") for config in configs]
        search.update(inputs, [autotvm.MeasureResult((time,), 0, 0.0, 0.0) for time in times])
        costs += times
    assert min(costs) <= 3.0  # of 1 to 93; 331,776 configurations, 128 trials
    assert len(set(search.xs)) == len(search.xs) == 8 * PLAN


def test_trials_since_the_best() -> None:
    trials = {i: AutotvmTrial(run_s=(cost,)) for i, cost in enumerate((3.0, 1.0, 2.0, 4.0))}
    assert since_best(trials.values()) == 2
    assert since_best([AutotvmTrial(error_no=4)]) == 1
    assert since_best([]) == 0


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (None, 0),
        ("INSTANTIATION_ERROR: too many threads", 1),
        ("COMPILE_HOST: LLVM says no", 2),
        ("RUNTIME_DEVICE: CUDA says no", 4),
        ("the build took longer than its limit", 6),
        ("the build crashed its process (exit code -11)", 2),
        ("the measure took longer than its limit", 7),
        ("the measure crashed its process (exit code -11)", 4),
    ],
)
def test_what_became_of_a_candidate_has_tvm_s_number(error: str | None, number: int) -> None:
    assert _error_no(error) == number


def test_an_unknown_tuner_is_named() -> None:
    with pytest.raises(TuningError, match="autotvm, auto_scheduler, graph_tuner"):
        get_tuner("metaschedule")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> AutotvmSession:
    """A session in this process; it leaves a mark that is for worker processes only."""
    monkeypatch.setattr(autotvm.GLOBAL_SCOPE, "in_tuning", False)
    return AutotvmSession()


@pytest.mark.parametrize("cache_flush", [False, True])
def test_a_worker_builds_and_times_one_candidate(worker: AutotvmSession, cache_flush: bool) -> None:
    tasks = network_tasks(network("net", 1), tvm.target.Target(TARGET))
    (task,) = (task.task for task in tasks if task.name.startswith("conv2d"))
    source = TaskSource(task=task.name, args=task.args, target=TARGET, cache_flush=cache_flush)
    worker.task("key", msgspec.json.encode(source).decode())
    worker.build(0, "key", None, 1)
    options = MeasureOptions(repeats=4, min_repeat_s=1e-4)
    times = worker.measure(0, None, options)
    assert len(times) == (10 if cache_flush else 2)
    assert all(0 < seconds < 1 for seconds in times)
    worker.build(1, "key", None, 1)
    if not cache_flush:
        assert len(worker.measure(1, 1e-12, options)) == 1  # far from the best: no more runs
    worker.drop()
    with pytest.raises(KeyError):
        worker.measure(1, None, options)


def test_a_worker_says_which_step_failed(worker: AutotvmSession) -> None:
    @autotvm.template("tests/broken")
    def broken(size: int) -> Any:
        config = autotvm.get_config()
        config.define_knob("how", [0, 1, 2])
        a = tvm.te.placeholder((size,), name="a")
        b = tvm.te.compute((size,), lambda i: a[i] + 1.0, name="b")
        schedule = tvm.te.create_schedule(b.op)
        if config["how"].val == 1:
            raise autotvm.task.space.InstantiationError("not this one")
        if config["how"].val == 2:
            schedule[b].bind(b.op.axis[0], tvm.te.thread_axis("threadIdx.x"))  # no such thing on a CPU
        return schedule, [a, b]

    source = TaskSource(task="tests/broken", args=(8,), target=TARGET)
    worker.task("key", msgspec.json.encode(source).decode())
    worker.build(0, "key", None, 0)
    with pytest.raises(CandidateError, match=r"^INSTANTIATION_ERROR: .*not this one"):
        worker.build(1, "key", None, 1)
    with pytest.raises(CandidateError, match=r"^COMPILE_HOST: "):
        worker.build(2, "key", None, 2)


@pytest.fixture
def command() -> Callable[..., list[str]]:
    def make(*arguments: object) -> list[str]:
        code = f"import sys; sys.path[:0] = {sys.path!r}; from tunehub.cli import main; main()"
        return [sys.executable, "-c", code, *map(str, arguments)]

    return make


def wait_for_lines(process: subprocess.Popen[str], log: Path, lines: int) -> None:
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_bytes().count(b"\n") < lines:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"tuning ended too early: {process.communicate()}")
        time.sleep(0.02)


@pytest.mark.long
def test_killed_and_resumed_by_the_command(
    command: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    work = tmp_path / "work"
    call = ["--target", "host", "--network", "mlp", "--trials", 1, "--work", work, "--threads", 1, "--workers", 1]
    process = subprocess.Popen(command("tune", *call), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_lines(process, work / "autotvm.log", 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    killed = (work / "autotvm.log").read_bytes()
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # the command sets it; this restores it
    monkeypatch.setenv("TOPHUB_LOCATION", "NONE")
    done = CliRunner().invoke(tune_command, [*map(str, call), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = (work / "autotvm.log").read_bytes()
    assert lines.startswith(killed)
    (summary,) = json.loads(done.stdout)["targets"]
    assert summary["tuner"] == "autotvm"
    assert (summary["tasks"], summary["trials"]) == (6, 6)
    assert summary["measured_now"] == 6 - killed.count(b"\n")
    assert len(set(trials_of(work))) == 6
    assert "[6/6] finished dense_pack.x86 1x64 10x64" in capfd.readouterr().err
    run = WorkDirectory(work).existing_run()
    assert run.relay_target is not None
    assert run.relay_target.startswith("llvm -mcpu=")
    assert run.runs[-1].command.startswith(
        "tunehub tune --target host --network mlp --tuner autotvm --trials 1 --algorithm xgb --seed 0 --threads 1"
    )
    assert str(tmp_path) not in (work / "run.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--tuner", "meta_schedule"], 1, "meta_schedule needs TVM 0.25 to 0.27"),
        (["--rpc", "127.0.0.1:1", "--rpc-key", "x"], 1, "no RPC tracker answers at 127.0.0.1:1"),
        (["--rpc", "127.0.0.1:1"], 1, "needs both --rpc HOST:PORT and --rpc-key KEY"),
        (["--rpc", "nowhere"], 2, "expected HOST:PORT"),
        (["--transfer-from", "missing.log"], 1, "missing.log: no such log"),
        (["--template-args", "{}"], 2, "expected a JSON list"),
        (["--network", "resnet-19"], 2, "unknown network 'resnet-19'"),
        (["--target", "cuda -model=titanx"], 1, "cannot tune for cuda -model=titanx"),
        (["--target", "toaster -model=x"], 2, "unknown target 'toaster -model=x'"),
        (["--template", "m:f", "--tuner", "graph_tuner"], 1, "--template is for the tuner autotvm"),
    ],
)
def test_wrong_usage_is_found_before_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    given = [] if "--target" in arguments else ["--target", "host"]
    given += [] if "--network" in arguments else ["--network", "mlp"]
    result = CliRunner().invoke(tune_command, [*given, *arguments, "--work", str(tmp_path / "work")])
    assert result.exit_code == code
    assert message in result.output
