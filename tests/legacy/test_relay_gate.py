"""The gate for TVM <= 0.19 on a template whose configurations are good, wrong, crashing or slow by construction."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tunehub.comparison.protocol import MeasuringPlan, is_lost_in_noise
from tunehub_builder.backends.relay.check import Networks, auto_scheduler_dags
from tunehub_builder.backends.relay.network_gate import RelayNetworks, network_journal, record_uses
from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.backends.relay.workload_gate import RelayVerdict, RelayWorkloads, verdict_journal
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.disturbance import UNJUDGED
from tunehub_builder.gate.networks import check_networks
from tunehub_builder.gate.workloads import check_workloads
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import PoolOptions
from tunehub_builder.tuning.work_directory import RunFile, TuningRun, WorkDirectory
from tunehub_registry.manifest import NetworkEntry
from tunehub_registry.package import open_package
from tunehub_registry.tuning_log import parse_line

pytestmark = pytest.mark.legacy

TARGET = "llvm -num-cores=2"
MODULE = "gated_template"
# The first of each knob's values is the default: it does everything 200 times. "last_words" ends the process.
TEMPLATE = f"""
import os
from tvm import autotvm, te

@autotvm.template("{MODULE}/sums")
def sums(size):
    cfg = autotvm.get_config()
    cfg.define_knob("times", [200, 1])
    cfg.define_knob("what", ["right", "wrong", "refused", "last_words"])
    data = te.placeholder((size, 64), name="data")
    k, again = te.reduce_axis((0, 64)), te.reduce_axis((0, cfg["times"].val))
    factor = 2.0 if cfg["what"].val == "wrong" else 1.0
    out = te.compute((size,), lambda i: te.max(data[i, k] * factor, axis=[k, again]), name="out")
    if cfg["what"].val == "refused":
        raise ValueError("a knob that does not fit")
    if cfg["what"].val == "last_words":
        os._exit(3)
    return te.create_schedule(out.op), [data, out]
"""
QUICK = MeasuringPlan(rounds=9, sample_s=0.002, budget_s=1.0)
QUICK_NETWORK = MeasuringPlan(rounds=3, sample_s=0.01, warm_up_s=0.02, pause_s=0.05)
RESOURCES = Resources(threads=2, workers=1)


def make_work(path: Path, networks: Sequence[RelayNetwork] = (), template: str | None = None) -> RelayWork:
    directory = WorkDirectory(path)
    path.mkdir()
    entries = [NetworkEntry(name=n.name, source=n.source, inputs=dict(n.inputs), dtype=n.dtype) for n in networks]
    options: dict[str, str | int | float | bool] = {"tuner": "autotvm", **({"template": template} if template else {})}
    run = TuningRun(
        command="tunehub tune", started="2026-01-01", updated="2026-01-01", seed=0, threads=2,
        networks=tuple(entry.name for entry in entries), options=options, machine={},
    )  # fmt: skip
    import tvm

    run = RunFile(
        target_name="llvm-generic", target={"text": TARGET}, tvm_version=str(tvm.__version__),
        tvm_ffi_version="none", networks=tuple(entries), runs=(run,),
    )  # fmt: skip
    directory.save_run(run)
    return RelayWork(directory)


def add_lines(work: RelayWork, log: Path, lines: Sequence[str], network: str) -> None:
    """Append records and the tasks that they are of."""
    with log.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    for record in map(parse_line, (line.encode() for line in lines)):
        task = RelayTask(
            tuner=record.tuner, name=record.name, key=record.key, operator=record.operator,
            workload=record.workload, counts={network: 1}, flop=1.0,
        )  # fmt: skip
        work.save_tasks(record.tuner, (), [task])


def autotvm_line(task: Any, config: Any, cost: float) -> str:
    from tvm import autotvm
    from tvm.autotvm.measure import MeasureInput, MeasureResult

    return str(autotvm.record.encode(MeasureInput(task.target, task, config), MeasureResult((cost,), 0, 0.1, 1.7e9)))


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], str]:
    """Writes the template's module; makes records: what a configuration does, its time while tuning."""
    from tunehub_builder.backends.relay.templates import load_template

    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(folder)
    place = load_template(f"{MODULE}:sums")

    def line(what: str, cost: float) -> str:
        import tvm
        from tvm import autotvm

        task = autotvm.task.create(place.task, (512,), target=tvm.target.Target(TARGET))
        space = task.config_space
        found = (space.get(i) for i in range(len(space)))
        wanted = (200, "right") if what == "slow" else (1, what)
        config = next(c for c in found if (c["times"].val, c["what"].val) == wanted)
        return autotvm_line(task, config, cost)

    return line


def judge(work: RelayWork, network_of: Callable[[str], RelayNetwork] | None = None) -> tuple[list[RelayVerdict], int]:
    """The verdicts on workloads, and how many of them are new."""
    shown: list[RelayVerdict] = []

    def dags(tasks: Sequence[RelayTask]) -> dict[str, tuple[str, str]]:
        return auto_scheduler_dags(tasks, work.graphs(), network_of, TARGET) if network_of else {}

    run = work.directory.existing_run()
    backend = RelayWorkloads(work=work, run=run, threads=RESOURCES.threads, dags=dags, plan=QUICK)
    verdicts = check_workloads(backend, RESOURCES, lambda v, *_: shown.append(v))
    return verdicts, len(shown)


def judge_in_quiet(work: RelayWork) -> tuple[RelayVerdict, int]:
    """The verdict on the only workload once a busy machine's noise hides no gain (the gate judges such again)."""
    for _ in range(10):
        (verdict,), new = judge(work)
        if verdict.reason != UNJUDGED and not is_lost_in_noise(verdict.default_s, verdict.tuned_s):
            break
    return verdict, new


def test_what_crashes_is_wrong_or_does_not_build_loses_alone(
    tmp_path: Path, template: Callable[[str, float], str]
) -> None:
    work = make_work(tmp_path / "work", template=f"{MODULE}:sums")
    kinds = ["last_words", "wrong", "refused", "slow", "right"]
    add_lines(work, work.autotvm_log, [template(what, i * 1e-6 + 1e-6) for i, what in enumerate(kinds)], "own")
    verdict, new = judge_in_quiet(work)
    reasons = [finalist.reason or "" for finalist in verdict.finalists]
    assert (verdict.admitted, verdict.winner, new) == (True, 4, 1), verdict
    assert "crashed its process (exit code 3)" in reasons[0]
    assert "output differs" in reasons[1]
    assert "a knob that does not fit" in reasons[2]
    assert reasons[3:] == ["", ""]
    assert verdict.line == work.autotvm_log.read_text().splitlines()[4]
    assert (verdict.speedup or 0) > 5
    assert judge(work) == ([verdict], 0), "a second check has nothing to do"


def test_a_killed_check_goes_on_with_what_is_not_judged(tmp_path: Path, template: Callable[[str, float], str]) -> None:
    work = make_work(tmp_path / "work", template=f"{MODULE}:sums")
    add_lines(work, work.autotvm_log, [template("wrong", 1e-6)], "own")
    (verdict,), _ = judge(work)
    assert not verdict.admitted
    journal = verdict_journal(work).path
    with journal.open("ab") as file:
        file.write(b'{"tuner": "autot')  # torn
    add_lines(work, work.autotvm_log, [template("right", 2e-6)], "own")
    again, new = judge_in_quiet(work)
    assert (again.admitted, again.winner, new) == (True, 1, 1), again
    assert len(journal.read_text().splitlines()) >= 2


def convolutions() -> Any:
    from tvm import relay

    x = relay.var("data", shape=(1, 16, 14, 14))
    for number in range(2):
        weight = relay.var(f"w{number}_weight", shape=(16, 16, 3, 3))
        x = relay.nn.relu(relay.nn.conv2d(x, weight, padding=(1, 1), channels=16, kernel_size=(3, 3)))
    from tvm.relay.testing import create_workload

    return create_workload(relay.Function(relay.analysis.free_vars(x), x))


def images_last() -> Any:
    from tunehub_builder.backends.relay.networks import to_nhwc

    module, weights = convolutions()
    return to_nhwc(module), weights


NCHW = RelayNetwork(name="tiny", source="test", inputs={"data": (1, 16, 14, 14)}, definition=convolutions)
NHWC = RelayNetwork(name="tiny-nhwc", source="test", inputs={"data": (1, 16, 14, 14)}, definition=images_last)


def test_a_network_is_run_with_every_set_in_one_process(tmp_path: Path) -> None:
    import tvm
    from tvm import autotvm

    module, weights = convolutions()
    target = tvm.target.Target(TARGET)
    (task,) = autotvm.task.extract_from_program(module["main"], target=target, params=weights)
    work = make_work(tmp_path / "work", [NCHW])
    line = autotvm_line(task, task.config_space.get(len(task.config_space) // 2), 1e-5)
    add_lines(work, work.autotvm_log, [line], NCHW.name)
    other = autotvm.task.create(task.name, (("TENSOR", (1, 8, 14, 14), "float32"), *task.args[1:]), target=target)
    work.graph_log(NCHW.name).parent.mkdir()
    work.graph_log(NCHW.name).write_text("# of another network\n" + autotvm_line(other, task.config_space.get(0), 1e-5))
    (verdict,), _ = judge(work)
    assert verdict.tuned_s and verdict.default_s
    assert verdict.difference is None, "the layout of the arguments is part of the configuration"
    admitted = RelayVerdict(
        tuner="autotvm", key=verdict.key, operator=verdict.operator, name=verdict.name, digest="", threads=2,
        admitted=True, line=line,
    )  # fmt: skip
    run = work.directory.existing_run()
    uses = record_uses(work, run, [admitted])
    shown: list[str] = []
    backend = RelayNetworks(run=run, network_of=lambda _: NCHW, plan=QUICK_NETWORK)
    options = PoolOptions(workers=1, threads=2, log=str(work.directory.log))
    journal = network_journal(work)
    history, graph = check_networks(backend, journal, uses, options, lambda v, *_: shown.append(v.name))
    assert shown == ["tiny (history)", "tiny (graph)"]
    assert len(history.tuned_s) == len(history.default_s) == 3
    assert history.difference is not None and history.difference < 1e-5
    assert not graph.admitted and "does not build" in (graph.reason or "")


def test_auto_scheduler_records_are_compared_with_the_graph_without_a_schedule(tmp_path: Path) -> None:
    import tvm
    from tvm import auto_scheduler

    from .relay_cases import FEW

    module, weights = images_last()
    tasks, _ = auto_scheduler.extract_tasks(module["main"], weights, tvm.target.Target(TARGET))
    policy = auto_scheduler.SketchPolicy(tasks[0], verbose=0, params=FEW)
    states = policy.sample_initial_population()[:2]
    work = make_work(tmp_path / "work", [NHWC])
    inputs = [auto_scheduler.MeasureInput(tasks[0], state) for state in states]
    results = [auto_scheduler.MeasureResult([1e-5 * (i + 1)], 0, "", 0.1, 1) for i in range(len(inputs))]
    log = tmp_path / "made.json"
    auto_scheduler.save_records(str(log), inputs, results)
    add_lines(work, work.auto_scheduler_log, log.read_text().splitlines(), NHWC.name)
    (verdict,), _ = judge(work, lambda _: NHWC)
    assert verdict.tuned_s and verdict.default_s, verdict
    assert verdict.difference is not None and verdict.difference < 1e-5


def test_a_model_file_that_was_tuned_must_be_given_again() -> None:
    entry = NetworkEntry(name="mine", source="mine.onnx", inputs={}, dtype="float32")
    with pytest.raises(BuilderError, match="give it with --model"):
        Networks([entry], []).get("mine")


def test_the_command_checks_and_packs_and_tvm_itself_reads_the_result(
    tmp_path: Path, template: Callable[[str, float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm
    from click.testing import CliRunner
    from tvm import autotvm

    from tunehub_builder.cli.check import check
    from tunehub_builder.cli.pack import pack

    monkeypatch.setenv("TVM_NUM_THREADS", "2")  # the commands set it
    work = make_work(tmp_path / "work", template=f"{MODULE}:sums")
    good = template("right", 1e-6)
    add_lines(work, work.autotvm_log, [good], "own")
    checked = CliRunner().invoke(check, [str(work.path), "--threads", "2", "--workers", "1", "--json"])
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["admitted"] == 1
    packed = CliRunner().invoke(pack, [str(work.path), "--version", "1", "-o", str(tmp_path), "--json"])
    assert packed.exit_code == 0, packed.output
    with open_package(json.loads(packed.stdout)["package"]) as package:
        data = package.read("records/autotvm.log")
        assert data.decode() == good + "\n"
    file = tmp_path / "autotvm.log"
    file.write_bytes(data)
    with tvm.target.Target(TARGET), autotvm.apply_history_best(str(file)) as history:
        task = autotvm.record.decode(good)[0].task
        assert history.query(tvm.target.Target.current(), task.workload)["times"].val == 1
