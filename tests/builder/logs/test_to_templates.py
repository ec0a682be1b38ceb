"""Logs of AutoTVM as records of templates: what is written, and real compiles that they serve."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.compiler.hub import open_hub  # noqa: E402
from tunehub.kernels.cpu import KnobError, dense, read_knobs  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402
from tunehub_builder.cli.check import check as check_command  # noqa: E402
from tunehub_builder.cli.import_logs import import_logs as command_of_import  # noqa: E402
from tunehub_builder.cli.pack import pack as pack_command  # noqa: E402
from tunehub_builder.cli.tune import tune as tune_command  # noqa: E402
from tunehub_builder.exceptions import BuilderError, WorkDirectoryError  # noqa: E402
from tunehub_builder.gate.check import check_file  # noqa: E402
from tunehub_builder.logs.autotvm_to_knobs import MAX_STEPS, MAX_UNROLLED  # noqa: E402
from tunehub_builder.logs.to_templates import import_as_templates  # noqa: E402
from tunehub_builder.tuning.run import Resources  # noqa: E402
from tunehub_builder.tuning.search.proposals import proposals  # noqa: E402
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory  # noqa: E402
from tunehub_registry.package import open_package  # noqa: E402
from tunehub_registry.template_record import TemplateRecord, read_template_records  # noqa: E402

from ...cpu_features import AVX512, cpu, skip_unless_runs  # noqa: E402
from .autotvm_lines import CONV, conv_line, dense_line, depthwise_line, pointwise_line  # noqa: E402

pytestmark = pytest.mark.slow

PLACES = (
    os.environ.get("TUNEHUB_TOPHUB_LOGS"),
    Path.home() / ".tvm/tophub",
    Path(__file__).parents[3] / "shared/tophub",
)
LOGS = next((Path(place) for place in PLACES if place and (Path(place) / "llvm_v0.04.log").exists()), None)
DEVICE = "llvm-skylake-avx512"
TARGET = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1}


def write(folder: Path, *lines: bytes, name: str = "tuned.log") -> Path:
    path = folder / name
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def took(line: bytes, *costs: float, target: str | None = None) -> bytes:
    """The line with other costs, or for another target."""
    value = json.loads(line)
    value["result"][0] = list(costs)
    value["input"][0] = target or value["input"][0]
    return json.dumps(value).encode()


def records_of(path: Path) -> list[TemplateRecord]:
    with path.open("rb") as stream:
        found = list(read_template_records(stream, str(path)))
    assert all(isinstance(record, TemplateRecord) for record in found), found
    return found  # type: ignore[return-value]


def test_every_device_has_a_file_with_one_record_for_a_workload(tmp_path: Path) -> None:
    haswell = took(conv_line(CONV), 2e-4, target="llvm -mcpu=core-avx2")
    log = write(
        tmp_path, took(conv_line(CONV), 1e-4, 3e-4), took(conv_line({**CONV, "tile_ow": [-1, 14]}), 1e-3), haswell
    )
    report = import_as_templates([log], tmp_path / "records")
    assert [path.name for path in report.written.values()] == ["llvm-haswell.jsonl", f"{DEVICE}.jsonl"]
    record, half = records_of(report.written[DEVICE])  # for inputs in blocks of 16 and of 8
    assert record.knobs == half.knobs and record.anchor != half.anchor
    assert (record.template, record.knobs["columns"], record.knobs["blocks"]) == ("conv2d", 7, 2)
    assert record.run_s == (1e-4, 3e-4) and record.default_s is None
    assert record.source == "AutoTVM, tuned.log:1" and record.op == "conv2d_NCHWc.x86 1x64x56x56 64x64x3x3 s1 p1"
    narrow = records_of(report.written["llvm-haswell"])[0]
    assert narrow.knobs["blocks"] == 4 and narrow.anchor != record.anchor


def test_a_slower_trial_serves_when_it_is_nearly_as_fast(tmp_path: Path) -> None:
    best = took(conv_line({**CONV, "tile_oc": [-1, 4]}), 1.0e-4)
    lines = best, took(conv_line(CONV), 1.1e-4)
    (item,) = import_as_templates([write(tmp_path, *lines)], tmp_path / "a").translated
    assert item.line == 2 and item.notes == (
        "takes 1.10 times as long as line 1 (tile_oc: 4 is no multiple of a block, which is 16 or 8)",
    )
    report = import_as_templates([write(tmp_path, best, took(conv_line(CONV), 1.5e-4))], tmp_path / "b")
    assert not report.translated and not report.written and report.refused[0].line == 1


def test_the_template_has_the_last_word(tmp_path: Path) -> None:
    whole = pointwise_line(7, tile_oh=7, tile_ow=[-1, 7])
    unrolled = conv_line({**CONV, "tile_oc": [-1, 64], "tile_ow": [-1, 28]})
    gpu = took(conv_line(CONV), 1e-4, target="cuda -model=titanx")
    report = import_as_templates([write(tmp_path, whole, unrolled, gpu)], tmp_path / "records")
    reasons = [item.reason for item in report.refused]
    assert not report.translated and len(reasons) == 3
    assert "template conv2d does not take it" in reasons[0] and "columns" in reasons[0]
    assert "at most 256" in reasons[1] and "for cuda" in reasons[2]


def test_the_bounds_are_those_of_the_template() -> None:
    fields = {"columns": 8, "blocks": 2, "lanes": 16, "row": 8}
    assert read_knobs(dense.KNOBS, {**fields, "step": MAX_STEPS}).step == MAX_STEPS
    with pytest.raises(KnobError):
        read_knobs(dense.KNOBS, {**fields, "step": MAX_STEPS + 1})


def test_a_product_is_unrolled_as_far_as_the_template_does(tmp_path: Path) -> None:
    line = dense_line(tile_y=[-1, 1, 8], tile_x=[-1, 1, 64], tile_k=[-1, 128])
    (item,) = import_as_templates([write(tmp_path, line)], tmp_path / "records").translated
    knobs = item.records[0].knobs
    assert knobs["step"] == 8 and knobs["columns"] * knobs["blocks"] * 8 == MAX_UNROLLED
    assert item.notes == ("tile_k 128: 8 steps are unrolled here",)


def test_a_file_of_other_records_is_not_replaced(tmp_path: Path) -> None:
    log, records = write(tmp_path, conv_line(CONV)), tmp_path / "records"
    path = import_as_templates([log], records).written[DEVICE]
    before = path.read_bytes()
    assert import_as_templates([log], records).written[DEVICE].read_bytes() == before
    write(tmp_path, pointwise_line())
    with pytest.raises(BuilderError, match="has other records"):
        import_as_templates([log], records)
    assert path.read_bytes() == before


def test_the_command(tmp_path: Path) -> None:
    log = write(tmp_path, conv_line(CONV), b"<html>", dense_line("dense_nopack.x86"))
    arguments = [str(log), "--as", "template", "-o", str(tmp_path / "records")]
    result = CliRunner().invoke(command_of_import, arguments)
    assert result.exit_code == 0, result.output
    assert "tuned.log: 3 lines, 1 of them skipped" in result.output
    assert "1 of 2 workloads" in result.output and "tuned.log:3" in result.output
    report = json.loads(CliRunner().invoke(command_of_import, [*arguments, "--json"]).output)
    assert [item["line"] for item in report["refused"]] == [3] and report["records"][0]["knobs"]["columns"] == 7
    assert CliRunner().invoke(command_of_import, [*arguments, "--version", "1.0"]).exit_code == 2
    nothing = write(tmp_path, dense_line("dense_nopack.x86"), name="nothing.log")
    assert CliRunner().invoke(command_of_import, [str(nothing), *arguments[1:]]).exit_code == 1


def test_the_gate_reads_the_records(tmp_path: Path) -> None:
    log = write(tmp_path, conv_line(CONV), depthwise_line(), dense_line())
    path = import_as_templates([log], tmp_path / "records").written[DEVICE]
    outcome = check_file(path, None, Resources(threads=1, workers=1))
    assert (outcome.admitted, outcome.rejected, outcome.measured) == (4, (), False)


def network(data: Any, weight: Any, operator: Any) -> Any:
    """Two layers with bias and relu behind them."""
    kind = tensor_class()
    builder, variable = relax.BlockBuilder(), relax.Var("x", kind(data.shape, "float32"))
    bias = np.linspace(-1, 1, data.shape[1], dtype="float32").reshape((1, -1, 1, 1)[: data.ndim])
    with builder.function("main", [variable]):
        with builder.dataflow():
            result = variable
            for _ in range(2):
                result = builder.emit(operator(result, relax.const(weight)))
                result = builder.emit(relax.op.add(result, relax.const(bias)))
                result = builder.emit(relax.op.nn.relu(result))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return builder.get()


def array(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).uniform(-0.1, 0.1, shape).astype("float32")


def run(executable: Any, data: Any) -> Any:
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()


CASES: dict[str, tuple[bytes, Any, Any, Any]] = {
    "conv2d": (
        conv_line(CONV, data=(1, 64, 14, 14)), array(1, 64, 14, 14), array(64, 64, 3, 3),
        lambda x, w: relax.op.nn.conv2d(x, w, padding=1),
    ),
    "conv2d of joined rows": (
        pointwise_line(14, channels=256, tile_oh=2), array(1, 256, 14, 14), array(256, 256, 1, 1),
        lambda x, w: relax.op.nn.conv2d(x, w),
    ),
    "depthwise": (
        depthwise_line(72, tile_oc=[-1, 8]), array(1, 72, 56, 56), array(72, 1, 3, 3),
        lambda x, w: relax.op.nn.conv2d(x, w, padding=1, groups=72),
    ),
    "dense": (dense_line(outputs=128), array(8, 128), array(128, 128), relax.op.matmul),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_line_serves_a_real_compile(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, data, weight, operator = CASES[name]
    host, target = AVX512, cpu(AVX512, cores=1)
    skip_unless_runs(AVX512)  # the lines have blocks for it
    line = took(line, 1e-4, target=f"llvm -mcpu={host}")
    ((_, path),) = import_as_templates([write(tmp_path, line)], tmp_path / "records").written.items()
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    mod = network(data, weight, operator)
    hub = open_hub(target, registry=[], user_records=path.parent)
    assert hub.layout == "auto"
    found = run(tunehub.compile(mod, target, hub=hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    served = [item for item in hub.report().workloads if item.rung == "user"]
    assert {(item.template, item.package, item.skipped) for item in served} == {(name.split()[0], str(path), ())}
    hub.close()


def test_knobs_are_proposed_by_anchor_once(tmp_path: Path) -> None:
    work = WorkDirectory(tmp_path / "work")
    target = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1}
    log = write(tmp_path, conv_line(CONV), depthwise_line())
    first = import_as_templates([log], tmp_path / "records")
    anchor = first.translated[0].records[0].anchor
    versions: dict[str, Any] = {"tvm_version": "0.27.0", "tvm_ffi_version": "0.1.12"}
    run = RunFile(target_name=DEVICE, target=target, tuner="template", **versions)
    tasks = [TaskEntry(name=key, exact=key * 32, anchor=anchor, counts={"net": 1}, module="") for key in "ab"]
    with work.locked(create=True):
        work.save_run(run)
        work.save_tasks([*tasks, TaskEntry(name="c", exact="c" * 32, anchor=None, counts={"net": 1}, module="")])
    assert first.proposed is None and proposals(work.path) == {}
    assert import_as_templates([log], tmp_path / "records", work.path).proposed == 2
    assert import_as_templates([log], tmp_path / "records", work.path).proposed == 0
    found = proposals(work.path)
    assert found.keys() == {"a" * 32, "b" * 32}
    assert [choice.knobs for choice in found["a" * 32]] == [first.translated[0].records[0].knobs]
    with work.locked():
        work.save_run(msgspec.structs.replace(run, tuner=None))
    with pytest.raises(WorkDirectoryError, match="tuner template"):
        import_as_templates([log], tmp_path / "records", work.path)


@pytest.mark.long
def test_from_a_log_to_a_package(blocked_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Knobs of a log are measured by the tuner, judged by the gate, and packed with times of this machine."""
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # commands set it; this restores it
    host = str(tvm.target.codegen.llvm_get_system_cpu())
    work, resources = tmp_path / "work", ["--threads", 1, "--workers", 1]
    options = ["--tuner", "template", "--target", "host", "--model", blocked_model, "--trials", 1, *resources]
    options += ["--no-warm-start", "--work", work]
    call(tune_command, *options)
    knobs = {**CONV, "tile_oc": [-1, 48], "tile_ow": [-1, 2], "unroll_kw": False}
    line = conv_line(knobs, data=(1, 32, 14, 14), kernel=(48, 32, 3, 3))
    log = write(tmp_path, took(line, 1e-9, target=f"llvm -mcpu={host}"))
    imported = call(command_of_import, log, "--as", "template", "-o", tmp_path / "records", "--work", work, "--json")
    assert json.loads(imported)["proposed"] == 1, imported
    before = (work / "trials.jsonl").read_bytes()
    call(tune_command, *options)
    after = (work / "trials.jsonl").read_bytes()
    (trial,) = [json.loads(line) for line in after[len(before) :].splitlines()]
    assert after.startswith(before) and trial["choice"]["knobs"]["columns"] == 2 and trial["run_s"][0] > 1e-8
    call(check_command, work, *resources)
    packed = json.loads(call(pack_command, work, "--version", "1.0", "-o", tmp_path, "--json"))
    with open_package(Path(packed["package"])) as package:
        assert package.manifest.provenance.tuner_options["proposed"] == 1
        with package.open("records/template.jsonl") as stream:
            records = list(read_template_records(stream, "test"))
    assert records and all(isinstance(r, TemplateRecord) and "AutoTVM" not in r.source for r in records)


def call(command: Any, *arguments: object) -> str:
    """What a command that succeeds prints, called in this process."""
    done = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


@pytest.mark.skipif(LOGS is None, reason="no TopHub logs here (TUNEHUB_TOPHUB_LOGS)")
@pytest.mark.parametrize("name", ["llvm_v0.01.log", "llvm_v0.04.log"])
def test_tophubs_own_file(name: str, tmp_path: Path) -> None:
    """As the table in docs/import-export.md says."""
    assert LOGS is not None
    report = import_as_templates([LOGS / name], tmp_path)
    assert report.files[0].lines == 35 and len(report.translated) == 31
    assert len({record.anchor for item in report.translated for record in item.records}) == 60
    assert {item.reason.partition(":")[0] for item in report.refused} == {"tile_oh, tile_ow"}
    assert {note.split()[0] for item in report.translated for note in item.notes} == {"tile_ic"}
