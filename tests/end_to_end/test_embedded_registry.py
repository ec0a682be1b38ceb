"""The published data, as a newcomer meets it: a real network, the embedded registry, this machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
onnxruntime = pytest.importorskip("onnxruntime")

import tunehub  # noqa: E402
from tunehub.registries.embedded import embedded_registry  # noqa: E402
from tunehub_builder import networks  # noqa: E402
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence, read_evidence  # noqa: E402
from tunehub_registry.index import IndexName, ShardEntry, parse_index, parse_shard  # noqa: E402
from tunehub_registry.package import open_package, sha256_of  # noqa: E402

from ..sweeps import swept  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the embedded package is for x86-64"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    for name in ("TUNEHUB_REGISTRY", "TUNEHUB_REQUIRE", "TUNEHUB_RECORDS", "TUNEHUB_STRICT"):
        monkeypatch.delenv(name, raising=False)


def outputs(executable: Any, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    from tvm import relax

    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data))
    return np.asarray((result if hasattr(result, "numpy") else result[0]).numpy())


@pytest.mark.parametrize("cpu", swept(["host"], ["x86-64-v2"]))
def test_squeezenet_runs_on_published_records_and_agrees_with_onnxruntime(cpu: str) -> None:
    target = tunehub.host_target()
    if cpu != "host":  # narrower vectors than the package was tuned for: blocks of channels are of another size
        target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    wide = bool(tvm.target.codegen.target_has_features(["avx512f"], target))
    network = networks.get("squeezenet")
    with tunehub.context(target, strict=True) as hub:
        executable = tvm.compile(network.relax_module(), target)
    report = hub.report()
    assert report.package is not None and report.package.startswith("llvm-")
    alone = hub.resolution.chosen is not None and hub.resolution.chosen.entry.evidence_alone  # rules are as good here
    assert report.rung_counts()["exact"] >= (0 if alone else 20 if wide else 1)
    assert {workload.rung for workload in report.misses()} <= {"template", "default"}
    if (
        wide and not alone
    ):  # copies that nothing beats TVM's default at, and convolutions by an algorithm that needs no record
        direct = [workload.op for workload in report.misses() if workload.template != "winograd"]
        assert {name.rstrip("0123456789") for name in direct} <= {"concatenate"}

    (data,) = network.sample_inputs().values()
    session = onnxruntime.InferenceSession(network.onnx_model().SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: data})
    difference = np.abs(outputs(executable, data) - expected).max() / np.abs(expected).max()
    assert difference < 1e-4


def published() -> list[tuple[str, int]]:
    """Each package with the place of its version behind the newest: 0 is the newest."""
    root = embedded_registry()
    names = parse_index((root / "index.json").read_bytes(), "index.json").names
    return [(name, place) for name, entry in names.items() for place in range(len(versions_of(entry)))]


def versions_of(entry: IndexName) -> list[ShardEntry]:
    shard = parse_shard((embedded_registry() / entry.shard_path).read_bytes(), entry.shard_path)
    return list(reversed(shard.versions))


@pytest.mark.parametrize("which", swept([each for each in published() if each[1] == 0], published()), ids=str)
def test_every_published_record_passes_the_rules_and_has_evidence(which: tuple[str, int]) -> None:
    root, (name, place) = embedded_registry(), which
    version = versions_of(parse_index((root / "index.json").read_bytes(), "index.json").names[name])[place]
    assert sha256_of(root / version.file) == version.sha256
    with open_package(root / version.file) as package:
        with package.open("evidence.jsonl") as stream:
            evidence = list(read_evidence(stream, "evidence.jsonl"))
        admitted = {line.exact for line in evidence if isinstance(line, RecordEvidence) and line.admitted}
        for found in package.manifest.record_sets:
            with package.open(found.file) as stream:
                check_records(found.tuner, stream, (found.file, found.count), admitted, newest=place == 0)
    timed = [line for line in evidence if isinstance(line, NetworkEvidence) and not line.is_of_language_model]
    measured = {line.network.partition(" (")[0] for line in timed}
    # Those with open dimensions, and what files of misses name, are judged workload by workload; some have times, and
    # so may a network in another precision than that of its records. What lost to rules alone is left to them.
    sources = {each.name: each.source for each in package.manifest.networks}
    whole = {name for name, source in sources.items() if not source.startswith("misses in ")}
    assert {name for name in whole if networks.OPEN not in sources[name]} - slower_than_rules(evidence) <= measured
    others = set(map(in_any_precision, measured)) - set(map(in_any_precision, sources))
    assert all(map(networks.is_known, others)), others  # rules serve these


def slower_than_rules(evidence: list[Any]) -> set[str]:
    """Networks that were slower with their records, which the package no longer has."""
    reasons = [line.reason or "" for line in evidence if isinstance(line, RecordEvidence) and not line.admitted]
    return {reason.partition(" is ")[0] for reason in reasons if reason.endswith(" as by rules alone")}


def in_any_precision(name: str) -> str:
    return re.sub(r"(_fp16|_bf16|_int8|_open)+$", "", name)


def test_gpus_find_their_packages() -> None:
    """By the name of a package, by a target of TVM for that model, and by one for another model of the family."""
    index = parse_index((embedded_registry() / "index.json").read_bytes(), "index.json")
    published = [name for name in index.names if name.startswith("cuda-")]
    if not published:
        pytest.skip("no package for a GPU is published")
    for name in published:
        model = name.removeprefix("cuda-")
        arch = index.names[name].target.arch
        for target in (name, {"kind": "cuda", "arch": arch, "model": model}, {"kind": "cuda", "arch": arch}):
            chosen = tunehub.resolve(target).chosen
            assert chosen is not None and chosen.name == name, target


def check_records(tuner: str, stream: Any, file: tuple[str, int], admitted: set[str], *, newest: bool) -> None:
    """Every line is a sound record, and the gate admitted it; graph-level records were admitted with their network.

    Those of the newest package are for the templates as they are; older ones may have other versions.
    """
    from tunehub.compiler.current import version_of
    from tunehub_builder.backends.relax.ladder_gate import ladder_reason
    from tunehub_builder.backends.relax.workload_gate import static_reason
    from tunehub_builder.tuning.trial_record import candidate_of
    from tunehub_registry.any_record import read_any_records
    from tunehub_registry.ladder_record import LadderRecord
    from tunehub_registry.record import ScheduleRecord
    from tunehub_registry.template_record import TemplateRecord
    from tunehub_registry.trace_rules import validate_trace
    from tunehub_registry.tuning_log import LogRecord, config_problem, read_log

    source, count = file
    modern = tuner in ("meta_schedule", "template", "ladder")
    records = list(read_any_records(stream, source) if modern else read_log(stream, source))
    assert len(records) == count
    for record in records:
        if tuner == "meta_schedule":
            assert isinstance(record, ScheduleRecord)
            validate_trace(list(record.trace))
            assert record.exact in admitted
        elif tuner == "template":
            assert isinstance(record, TemplateRecord)
            assert static_reason(candidate_of(record)) is None or not newest
            assert record.version <= (version_of(record.template) or 0)
            assert record.exact in admitted
        elif tuner == "ladder":
            assert isinstance(record, LadderRecord)
            assert ladder_reason(record) is None or not newest
            assert record.exact in admitted
        else:
            assert isinstance(record, LogRecord)
            assert record.is_measured
            assert tuner == "auto_scheduler" or config_problem(record.config) is None
            assert tuner == "graph_tuner" or record.key in admitted
