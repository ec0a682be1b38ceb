"""The end-to-end gate: what decides on a network, and a small network that goes through it into a package."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
from click.testing import CliRunner
from tests.tiny_networks import tiny_mobilenet

from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder.backends.relax import network_gate, network_worker
from tunehub_builder.backends.relax.network_gate import RecordFile, RelaxNetworks, network_cases, network_journal
from tunehub_builder.backends.relax.network_worker import RelaxNetworkCase, RelaxNetworkSession
from tunehub_builder.backends.relax.workload_gate import Verdict
from tunehub_builder.bench.gpu_runs import GpuRunner
from tunehub_builder.cli.check import check as check_command
from tunehub_builder.cli.tune import tune as tune_command
from tunehub_builder.exceptions import BuilderError, PackingError
from tunehub_builder.gate.again_networks import network_again
from tunehub_builder.gate.apart import Apart
from tunehub_builder.gate.check import _result
from tunehub_builder.gate.disturbance import UNJUDGED
from tunehub_builder.gate.evidence import network_evidence
from tunehub_builder.gate.journal import is_due, judge_due, latest
from tunehub_builder.gate.network_session import BuiltNetwork
from tunehub_builder.gate.network_times import NetworkJob, NetworkVariant, VariantTimes
from tunehub_builder.gate.networks import NetworkVerdict, judge_networks
from tunehub_builder.gate.report import shown_on
from tunehub_builder.networks import UnknownNetworkError
from tunehub_builder.networks import get as get_network
from tunehub_builder.networks.onnx_model import to_half
from tunehub_builder.packing.pack import pack_directory
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.runner.pool import PoolOptions
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.evidence import NetworkEvidence, encode_evidence, evidence_in, read_evidence
from tunehub_registry.machine_profile import MachineProfile
from tunehub_registry.manifest import NetworkEntry
from tunehub_registry.package import EVIDENCE, open_package

from ..small_packages import rows_of_network

pytestmark = pytest.mark.slow

GOOD = {
    "default": VariantTimes(run_s=(1.0, 1.1, 1.0), difference=0.0),
    "plain": VariantTimes(run_s=(0.011, 0.012, 0.011), difference=1e-6),
    "tuned": VariantTimes(run_s=(0.010, 0.010, 0.011), difference=2e-6, told={"exact": 3}),
}
QUICK = MeasuringPlan(rounds=5, sample_s=0.02, warm_up_s=0.01, pause_s=0.05, budget_s=0.2)
CASE = RelaxNetworkCase(name="net", target={"kind": "llvm"}, records="r", layout="keep")


def decided(**changes: VariantTimes) -> NetworkVerdict:
    return verdict_on({**GOOD, **changes})


def verdict_on(measured: dict[str, VariantTimes]) -> NetworkVerdict:
    (verdict,) = RelaxNetworks(digest="d").verdicts(CASE, measured, 2)
    return verdict


def test_a_network_that_gets_faster_is_admitted() -> None:
    verdict = decided()
    assert (verdict.admitted, verdict.reason, verdict.rungs) == (True, None, {"exact": 3})
    evidence = network_evidence(verdict)
    assert evidence == NetworkEvidence(
        network="net",
        default_s=1.0,
        tuned_s=0.010,
        repeats=3,
        threads=2,
        output_max_rel_diff=2e-6,
        over_rules=0.011 / 0.010,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tuned": replace(GOOD["tuned"], run_s=(1.2, 1.2, 1.2))}, "0.833 times as fast as the default"),
        ({"default": replace(GOOD["default"], run_s=(0.011, 0.2, 0.4))}, "within the noise"),
        (
            {"tuned": replace(GOOD["tuned"], run_s=(0.02, 0.02, 0.021))},
            "takes 20 ms with the records and 11 ms without",
        ),
        ({"tuned": VariantTimes(reason="its output differs", difference=0.1)}, "its output differs"),
        ({"default": VariantTimes(reason="does not build")}, "does not build"),
    ],
)
def test_others_are_rejected_with_the_reason(changes: dict[str, VariantTimes], reason: str) -> None:
    verdict = decided(**changes)
    assert not verdict.admitted
    assert reason in (verdict.reason or "")
    assert network_evidence(verdict) is None


@pytest.mark.parametrize(
    ("plain_s", "admitted", "known"),
    [
        ((0.02, 0.02, 0.02), True, 2.0),
        ((0.0099, 0.0099, 0.0099), True, 0.99),
        ((0.005, 0.005, 0.005), False, 0.5),
        ((0.01, 0.02, 0.09), True, None),
    ],
)
def test_a_published_network_may_be_no_slower_with_the_records_than_by_rules_alone(
    plain_s: tuple[float, ...], admitted: bool, known: float | None
) -> None:
    """What other programs disturbed says nothing."""
    verdict, line = network_again(decided(plain=replace(GOOD["plain"], run_s=plain_s)))
    assert verdict.admitted == admitted
    assert (None if line is None else line.over_rules) == (None if known is None else pytest.approx(known))


def test_a_published_network_that_computes_something_else_is_no_evidence() -> None:
    verdict, line = network_again(decided(tuned=VariantTimes(reason="its output differs", difference=0.1)))
    assert (verdict.admitted, verdict.reason, line) == (False, "its output differs", None)


def test_without_a_plain_compile_the_default_decides() -> None:
    assert decided(plain=VariantTimes(reason="does not build")).admitted
    assert verdict_on({"default": GOOD["default"]}).reason == "was not measured"


@pytest.mark.parametrize(("apart", "admitted"), [(1e-3, True), (9e-3, True), (1.1e-2, False)])
def test_in_half_precision_outputs_may_be_as_far_off_as_the_defaults_own(apart: float, admitted: bool) -> None:
    """All are compared with float32; TVM's default adds up in half precision itself."""
    measured = {
        **GOOD,
        "default": replace(GOOD["default"], difference=1e-2),
        "tuned": replace(GOOD["tuned"], difference=apart),
    }
    (verdict,) = RelaxNetworks(digest="d").verdicts(msgspec.structs.replace(CASE, half=True), measured, 2)
    assert (verdict.admitted, verdict.tolerance) == (admitted, 1e-2), verdict.reason
    wrong = measured | {"plain": VariantTimes(reason="differs", difference=0.5), "default": GOOD["default"]}
    (verdict,) = RelaxNetworks(digest="d").verdicts(msgspec.structs.replace(CASE, half=True), wrong, 2)
    assert (verdict.admitted, verdict.tolerance) == (apart <= 2e-3, 2e-3)


def test_on_a_gpu_networks_are_measured_for_a_shorter_time(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"")
    plans = [
        RelaxNetworks.of(RecordFile(path=tmp_path / "r", target={"kind": kind}, layout="keep")).plan
        for kind in ("cuda", "llvm")
    ]
    assert plans[0].sample_s < plans[1].sample_s


def test_on_a_gpu_runs_are_recorded_and_launched_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def runner(executable: str, _inputs: Any) -> GpuRunner:
        return GpuRunner(lambda: events.append(executable), lambda: events.append("wait"), lambda _: [0.0])

    session = RelaxNetworkSession()
    session._target, session._inputs = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}), {}
    monkeypatch.setattr(session, "_executable", lambda variant: (variant, {"exact": 2}))
    monkeypatch.setattr(network_worker, "gpu_runner", runner)
    assert session.build("tuned") == {"exact": 2}
    assert session.time("tuned", 2, False) > 0
    assert events == ["tuned", "wait", "wait", "tuned", "tuned", "wait"]


def test_a_network_in_half_precision_is_compared_with_float32(tmp_path: Path, target: dict[str, Any]) -> None:
    import onnx

    model = tiny_mobilenet().onnx_model()
    to_half(model)
    path = tmp_path / "half.onnx"
    onnx.save(model, path)
    records = RecordFile(path=tmp_path / "r", target=target, layout="keep")
    (case,) = network_cases((), (), [path], records)
    assert case.half
    session = RelaxNetworkSession()
    session.task("half", msgspec.json.encode(case).decode())
    (expected,) = session.expected()
    assert expected.dtype == "float32"
    session.build("default")
    assert 0 < session.difference("default") < 1e-1


def test_one_step_of_an_output_in_8_bits_may_be_off_however_few_it_has(
    tmp_path: Path, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (float[1, 8] x) => (float[1, 8] y) <float scale = {0.5}, uint8 zero = {128}>
        { q = QuantizeLinear(x, scale, zero)
          y = DequantizeLinear(q, scale, zero) }
    """)
    onnx.save(model, tmp_path / "quantised.onnx")
    records = RecordFile(path=tmp_path / "r", target=target, layout="keep")
    (case,) = network_cases((), (), [tmp_path / "quantised.onnx"], records)
    session = RelaxNetworkSession()
    session.task("quantised", msgspec.json.encode(case).decode())
    session.build("default")
    assert session.difference("default") == 0.0
    expected = [np.array([[0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]], "float32")]
    monkeypatch.setattr(session, "_expected", expected)
    for off, most in ((0.5, 0.1), (1.0, 0.2)):
        found = BuiltNetwork(outputs=lambda off=off: [expected[0] + np.float32(off)], time=lambda runs: 1.0)
        monkeypatch.setitem(session._built, "tuned", found)
        assert session.difference("tuned") == pytest.approx(most)


def test_rules_go_by_the_profile_that_comes_with_the_records(
    tmp_path: Path, tiny_model: Path, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hubs: list[Any] = []

    def compiled(_mod: Any, _target: Any, hub: Any) -> None:
        hubs.append(hub)

    monkeypatch.setattr("tunehub.compiler.pipeline.compile_module", compiled)
    (tmp_path / "r").write_bytes(b"")
    profile = MachineProfile(
        cpu="znver4", mattr=(), cores=2, measured="2026-11-23", multiply_add_s=2.8e-10, dependent_s=1.04e-9,
        memory_bytes=24e9, region_s=3e-6,
    )  # fmt: skip
    without = RecordFile(path=tmp_path / "r", target=target, layout="keep")
    records = replace(without, profile=profile)
    (case,) = network_cases((), (), [tiny_model], records)
    session = RelaxNetworkSession()
    session.task("tiny", msgspec.json.encode(case).decode())
    for variant in ("plain", "tuned"):
        session.generate(variant)
    assert [hub.published_profile.profile for hub in hubs] == [profile, profile]
    assert records.digest != without.digest


def test_rows_stand_at_the_gate_as_those_of_a_package_and_give_way_where_a_clients_would(tmp_path: Path) -> None:
    """A user's own records stay whatever rules say: stale ones of a package must not."""
    published = Path(__file__).parents[3] / "packages" / "llvm-znver4-0.5.0.tunepkg"
    path, keys = rows_of_network(published, "squeezenet", 1, tmp_path / "one.tunepkg")
    with open_package(path) as package:
        lines = package.read("records/template.jsonl")
        evidence = [line for line in evidence_in(package) if getattr(line, "exact", None) == keys[0]]
    (tmp_path / "r").write_bytes(lines)
    (tmp_path / "e").write_bytes(b"".join(map(encode_evidence, evidence)))
    target = {"kind": "llvm", "mcpu": "znver4"}
    records = RecordFile(path=tmp_path / "r", target=target, layout="auto", evidence=tmp_path / "e")
    (case,) = network_cases((), ["squeezenet"], (), records)
    lookup = network_worker._hub(case, tvm.target.Target(target), get_network("squeezenet")).lookup
    found, judged = lookup.by_exact(keys[0]), lookup.measured("template", keys[0])
    assert (found.rung, found.package, judged.package, found.foreign) == ("exact", "llvm-znver4", found.package, False)


def test_verdicts_on_other_records_do_not_count() -> None:
    first, second = decided(), msgspec.structs.replace(decided(), digest="other")
    assert latest([first, second]) == [second]
    assert latest([second, first]) == [first]
    assert [is_due(verdict, "d", 2) for verdict in (first, second, None)] == [False, True, True]
    assert is_due(first, "d", 8)


def test_a_gain_that_was_lost_in_the_noise_is_looked_at_again() -> None:
    noisy = decided(default=replace(GOOD["default"], run_s=(0.011, 0.2, 0.4)))
    assert "within the noise" in str(noisy.reason)
    assert is_due(noisy, "d", 2)
    slower = decided(tuned=replace(GOOD["tuned"], run_s=(1.2, 1.2, 1.2)))
    assert not slower.admitted and not is_due(slower, "d", 2)


@pytest.mark.parametrize(("patience", "quiet_from", "judged"), [("1", 2, 2), ("1", 9, 3), ("0", 2, 1)])
def test_what_other_programs_disturbed_is_judged_again_behind_all_others(
    patience: str, quiet_from: int, judged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEHUB_PATIENCE", patience)
    steady = decided()
    slower = msgspec.structs.replace(steady, network="slower", tuned_s=(2.0, 2.0), admitted=False, reason="slow")
    noisy = msgspec.structs.replace(slower, network="noisy", tuned_s=(1.0, 1.5, 2.0))
    rounds: list[list[str]] = []

    def judge(cases: Sequence[NetworkVerdict]) -> Iterator[list[NetworkVerdict]]:
        rounds.append([case.network for case in cases])
        for case in cases:
            is_quiet = case is noisy and len(rounds) >= quiet_from
            yield [msgspec.structs.replace(steady, network="noisy") if is_quiet else case]

    journal = LineJournal(tmp_path / "networks.jsonl", NetworkVerdict)
    said = StringIO()
    cases = [noisy, steady, slower]
    found = judge_due(journal, cases, lambda case: {case.subject: "d"}, 2, judge, shown_on(said))
    assert rounds == [["noisy", "net", "slower"], *[["noisy"]] * (judged - 1)]
    unjudged = judged < quiet_from
    assert (found[0].reason == UNJUDGED, found[0].admitted) == (unjudged, not unjudged)
    assert [verdict.reason for verdict in found[1:]] == [None, "slow"]
    assert is_due(found[0], "d", 2) == unjudged
    assert f"not judged: noisy: 1000 ms → 1500 ms (0.67×), {UNJUDGED}" in said.getvalue()


def test_what_is_not_judged_is_neither_rejected_nor_evidence() -> None:
    common: dict[str, Any] = {"name": "f", "digest": "d", "threads": 1, "admitted": False}
    verdicts = [Verdict(exact=key * 32, reason=reason, **common) for key, reason in (("a", "slow"), ("b", UNJUDGED))]
    result = _result(verdicts)
    assert ([item.where for item in result.rejected], [item.where for item in result.unjudged]) == (
        ["a" * 32],
        ["b" * 32],
    )
    assert f"not judged: f ({'b' * 32}): {UNJUDGED}" in result.text() and "1 rejected, 1 not judged" in result.text()
    assert result.as_json()["unjudged"] == [{"where": "b" * 32, "name": "f", "reason": UNJUDGED}]


def entry(name: str, source: str) -> NetworkEntry:
    return NetworkEntry(name=name, source=source, inputs={"x": (1, 3)}, dtype="float32")


def test_which_networks_are_measured(tmp_path: Path, tiny_model: Path) -> None:
    records = RecordFile(path=tmp_path / "r", target={"kind": "llvm"}, layout="keep")
    entries = [
        entry("squeezenet", "onnx"),
        entry("misses", "misses in misses.jsonl"),
        entry("resnet-18", "tvm.relay.testing.resnet"),
    ]
    assert [case.name for case in network_cases(entries, (), (), records)] == ["squeezenet"]
    mine = [*entries, entry("mine", "onnx file mine.onnx")]
    with pytest.raises(BuilderError, match="'mine' was tuned from a file: give it with --model FILE"):
        network_cases(mine, (), (), records)
    (case,) = network_cases(mine, (), [tmp_path / "mine.onnx"], records)
    assert (case.name, case.file, case.shapes) == ("mine", str(tmp_path / "mine.onnx"), {"x": (1, 3)})
    assert [c.name for c in network_cases(mine, ["vgg19"], [tiny_model], records)] == ["vgg19", tiny_model.stem]
    both = [*mine, entry("mine_bf16", "onnx file mine.onnx, bf16"), entry("vgg19_int8", "onnx, int8")]
    cases = network_cases(both, ["vgg19_int8"], [tmp_path / "mine.onnx"], records)
    found = [(case.name, case.precision) for case in cases]
    assert found == [("vgg19_int8", "int8"), ("mine", "float32"), ("mine_bf16", "bf16")]
    with pytest.raises(UnknownNetworkError):
        network_cases(entries, ["resnet51"], (), records)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.tunepkg"], "--end-to-end judges networks with it"),
        (["records.jsonl", "--end-to-end"], "is for a work directory or a package"),
        (["records.jsonl", "--network", "vgg19"], "--network is for --end-to-end"),
        (["work", "--processes", "2"], "--processes is for --end-to-end"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(check_command, arguments)
    assert (result.exit_code, message in " ".join(result.output.split())) == (2, True), result.output


def test_a_package_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    result = CliRunner().invoke(check_command, [str(tmp_path / "x.tunepkg"), "--end-to-end"])
    assert (result.exit_code, "No such file" in result.output) == (1, True), result.output


def test_a_network_that_does_not_compile_is_rejected(tmp_path: Path, tiny_model: Path, target: dict[str, Any]) -> None:
    """Records that cannot be read end the compile, because the gate's hubs are strict."""
    (tmp_path / "records.jsonl").write_bytes(b"no record\n")
    records = RecordFile(path=tmp_path / "records.jsonl", target=target, layout="keep")
    found = network_cases((), (), [tiny_model], records)
    backend = RelaxNetworks(digest=records.digest, plan=QUICK)
    options = PoolOptions(workers=1, threads=1, log=str(tmp_path / "log"))
    ((verdict,),) = judge_networks(backend, found, options)
    assert not verdict.admitted
    assert "does not build (tuned)" in (verdict.reason or "")


class FakeWorker:
    """Answers for libraries by the number of the process that it is: what it is asked stands in ``asked``."""

    made, asked = 0, list[tuple[int, Any]]()

    def __init__(self, _options: object = None, _session: object = None) -> None:
        FakeWorker.made += 1
        self.number = FakeWorker.made

    def load(self, _name: str, _case: str) -> None: ...

    def stop(self, *, at_once: bool) -> None: ...

    def ask(self, request: tuple[Any, ...], _limit_s: float) -> tuple[str, Any]:
        self.asked.append((self.number, request[:2]))
        if request[0] != "time":
            return ("error", "no linker") if request[1] == "unwritten" else ("ok", None)
        return ("ok", 0.0 if request[1] == "untimed" else float(self.number))


@pytest.mark.parametrize(
    ("apart", "run_s", "reason"),
    [
        (("plain", "tuned"), {"plain": (2.0, 5.0), "tuned": (3.0, 4.0)}, None),
        (("plain", "unwritten"), {"plain": (1.0,), "unwritten": (1.0,)}, "cannot be written (unwritten): no linker"),
        (("plain", "untimed"), {"plain": (1.0,), "untimed": (1.0,)}, "cannot be timed: 0.0"),
        (("plain", "wrong"), {"plain": (1.0,), "wrong": ()}, "differs"),
    ],
)
def test_each_variant_is_timed_in_new_processes_in_turns(
    apart: tuple[str, str], run_s: dict[str, Any], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunehub_builder.gate.apart.Worker", FakeWorker)
    FakeWorker.made, FakeWorker.asked = 0, []
    measured = {name: VariantTimes(run_s=(1.0,), difference=0.0) for name in apart} | {
        "wrong": VariantTimes(reason="differs")
    }
    job = NetworkJob(name="n", case="{}", variants=[NetworkVariant(name=n) for n in apart], apart=apart, processes=2)
    options = PoolOptions(workers=1, threads=1)
    timing = Apart(
        options=options,
        session=RelaxNetworkSession,
        plan=MeasuringPlan(rounds=2, sample_s=0.1),
        limits=network_gate.LIMITS,
    )
    first: Any = FakeWorker()
    found = timing.timed(first, job, measured)
    assert {name: found[name].run_s for name in apart} == run_s
    assert found[apart[1]].reason == reason
    assert {request[0] for number, request in FakeWorker.asked if number == 1} <= {"keep"}


@pytest.mark.alone
def test_from_tuning_to_a_package_with_the_networks_times(
    tmp_path: Path,
    blocked_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    monkeypatch.setattr(network_gate, "PLAN", QUICK)
    monkeypatch.setattr("tunehub_builder.gate.disturbance.DISTURBED", 1e9)  # other tests are at work
    monkeypatch.setattr("tunehub_builder.gate.journal.is_lost_in_noise", lambda *_: False)
    # One trial finds what a client does by itself: which of the two is faster is noise.
    monkeypatch.setattr(network_gate, "is_faster", lambda plain, tuned: False)
    work = tmp_path / "work"
    alone = ["--threads", 1, "--workers", 1]
    tune = ["--target", "host", "--model", blocked_model, "--tuner", "template", "--no-warm-start", "--trials", 1]
    tuned = CliRunner().invoke(tune_command, [*map(str, tune), "--work", str(work), *map(str, alone)])
    assert tuned.exit_code == 0, tuned.output
    options = ["--end-to-end", "--model", str(blocked_model), "--json", *map(str, alone)]
    first = CliRunner().invoke(check_command, [str(work), *options, "--processes", "1"], catch_exceptions=False)
    assert first.exit_code == 0, first.output
    (network,) = json.loads(first.stdout)["networks"]
    assert (network["network"], network["admitted"]) == ("tiny", True), network
    if importlib.util.find_spec("onnxruntime"):
        accuracy = network["accuracy"]
        assert (accuracy["inputs"], accuracy["same_class"] > 0.99 * accuracy["rows"]) == (64, True)
        assert accuracy["max_rel_diff"] < 1e-4
    again = CliRunner().invoke(check_command, [str(work), *options, "--processes", "1"], catch_exceptions=False)
    assert json.loads(again.stdout)["networks"] == [network]  # not measured twice

    built = pack_directory(WorkDirectory(work), "0.1.0")
    package = tmp_path / "llvm.tunepkg"
    package.write_bytes(built.data)
    with open_package(package) as opened, opened.open(EVIDENCE) as stream:
        lines = list(read_evidence(stream, EVIDENCE))
    (line,) = (line for line in lines if isinstance(line, NetworkEvidence))
    assert (line.network, msgspec.to_builtins(line.accuracy or None)) == ("tiny (template)", network["accuracy"])

    judged = CliRunner().invoke(check_command, [str(package), *options, "--processes", "2"], catch_exceptions=False)
    assert judged.exit_code == 0, judged.output
    (network,) = json.loads(judged.stdout)["networks"]
    assert (network["admitted"], network["processes"], network["plain_s"] > 0) == (True, 2, True)

    _reject(work)
    with pytest.raises(PackingError, match="the gate admitted no record"):
        pack_directory(WorkDirectory(work), "0.1.0")


def _reject(work: Path) -> None:
    journal = network_journal(WorkDirectory(work))
    (verdict,) = journal.entries()
    journal.append(msgspec.structs.replace(verdict, admitted=False, reason="takes longer"))


def test_records_of_rejected_networks_say_why() -> None:
    from tunehub_builder.backends.relax.contents import outvoted
    from tunehub_builder.tuning.work_directory import TaskEntry

    task = TaskEntry(name="conv", exact="0" * 32, anchor=None, counts={"a": 1, "b": 1}, module="")
    bad = msgspec.structs.replace(decided(), admitted=False, reason="takes longer")
    assert outvoted(task, {}) is None
    assert outvoted(task, {"a": bad}) is None  # b was not judged
    assert outvoted(task, {"a": bad, "b": decided()}) is None
    assert outvoted(task, {"a": bad, "b": bad}) == "net takes longer, and 1 more"
