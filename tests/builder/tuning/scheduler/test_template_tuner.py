"""The tuner `template` from a network to a package and back: killed, resumed, judged, packed, compiled with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tunehub_builder.cli.check import check as check_command
from tunehub_builder.cli.pack import pack as pack_command
from tunehub_builder.cli.tune import tune as tune_command
from tunehub_registry.evidence import RecordEvidence, read_evidence
from tunehub_registry.package import open_package
from tunehub_registry.template_record import TemplateRecord, read_template_records

pytestmark = pytest.mark.slow

Command = Callable[..., list[str]]
EMPTY_INDEX = b'{"schema_version": "1.0", "serial": 0, "names": {}}'
TRIALS = 2
_COMPILE = """
import json, sys
import numpy as np, tvm, tunehub
from tvm import relax
from tunehub_builder import networks

network = networks.from_onnx_file(sys.argv[1])
target = tunehub.host_target()
with tunehub.context(target, registry=sys.argv[2], strict=True) as hub:
    executable = tvm.compile(network.relax_module(), target)
inputs = [tvm.runtime.tensor(value) for value in network.sample_inputs().values()]
result = relax.VirtualMachine(executable, tvm.cpu())["main"](*inputs)
np.save(sys.argv[3], result.numpy())
print(json.dumps([[item.rung, item.template] for item in hub.report().workloads]))
"""


def call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def call_here(command: Any, *arguments: object) -> Any:
    """What a command of ``--json`` says, called in this process."""
    done = CliRunner().invoke(command, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def kill_after(command: list[str], journal: Path, lines: int) -> bytes:
    """Kill a tuning run once ``lines`` trials are written; return the whole lines of its journal."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") >= lines:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    assert process.wait(30) == -signal.SIGKILL
    return journal.read_bytes().rpartition(b"\n")[0]


@pytest.mark.long
@pytest.mark.usefixtures("tvm")
def test_from_a_network_to_a_package_and_back(
    command: Command, blocked_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1")  # commands set it; this restores it
    work, registry = tmp_path / "work", tmp_path / "registry"
    resources = ["--threads", 1, "--workers", 1]
    options = ["--tuner", "template", "--target", "host", "--model", blocked_model, "--trials", TRIALS, *resources]
    options.append("--no-warm-start")
    options += ["--work", work]
    before = kill_after(command("tune", *options), work / "trials.jsonl", 1)
    (summary,) = call_here(tune_command, *options)["targets"]
    lines = (work / "trials.jsonl").read_bytes().splitlines()
    assert b"\n".join(lines).startswith(before)
    trials = [json.loads(line) for line in lines]
    assert summary["measured_now"] == len(trials) - len(before.splitlines())
    assert len({(t["task"], json.dumps(t["choice"], sort_keys=True)) for t in trials}) == len(trials)
    assert {"template", "version", "knobs"} == trials[0]["choice"].keys()

    outcome = call_here(check_command, work, *resources)
    assert outcome["admitted"] >= 1, outcome
    registry.mkdir()
    index = registry / "index.json"
    index.write_bytes(EMPTY_INDEX)
    packed = call_here(pack_command, work, "--version", "99.0", "--index", index)
    records = check_package(Path(packed["package"]))

    found = tmp_path / "found.npy"
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{_COMPILE}"
    rungs = json.loads(call([sys.executable, "-c", code, str(blocked_model), str(registry), str(found)]))
    assert sum(rung == "exact" and template is not None for rung, template in rungs) == records
    assert np.abs(np.load(found) - expected(blocked_model)).max() < 1e-4 * np.abs(expected(blocked_model)).max()


def check_package(path: Path) -> int:
    """Look at the records and the evidence of a package; return the number of records."""
    with open_package(path) as package:
        (records_of,) = package.manifest.record_sets
        assert (records_of.tuner, records_of.file) == ("template", "records/template.jsonl")
        with package.open(records_of.file) as stream:
            records = list(read_template_records(stream, "test"))
        with package.open("evidence.jsonl") as stream:
            evidence = {line.exact: line for line in read_evidence(stream, "test") if isinstance(line, RecordEvidence)}
    assert len(records) == records_of.count
    for record in records:
        assert isinstance(record, TemplateRecord)
        line = evidence[record.exact]
        assert (line.tuner, line.admitted, line.trials) == ("template", True, TRIALS)
        assert line.template == record.template
        assert line.untuned_s and line.untuned_s > 0.9 * line.tuned_s  # the default knobs did not win clearly
        assert line.rule and line.rule.run_s in (line.untuned_s, line.default_s), "what rules choose today, too"
        assert record.default_s == line.default_s
    return len(records)


def expected(model: Path) -> Any:
    """What onnxruntime computes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    from tunehub_builder import networks

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, networks.from_onnx_file(model).sample_inputs())[0]
