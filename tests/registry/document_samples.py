"""A sample of every document that is read from others, with a value in every field, and how a client reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tunehub_registry import attestation as attested
from tunehub_registry import (
    compat,
    evidence,
    gpu_profile,
    index,
    lock,
    locked_kernel,
    machine_profile,
    manifest,
    review,
    site_manifest,
    submission,
)
from tunehub_registry._json import encode
from tunehub_registry.any_record import parse_any_record
from tunehub_registry.document import Document, document_path
from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt, parse_ladder_record
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.template_record import TemplateRecord, parse_template_record
from tunehub_registry.trace_rules import validate_trace
from tunehub_registry.trust.attached import attached_files, encode_attached
from tunehub_registry.trust.attestations import read_envelope
from tunehub_registry.trust.layout import TIMESTAMP_PATH
from tunehub_registry.trust.log import LoggedSnapshot, parse_entry
from tunehub_registry.tuning_curves import TuningCurve, encode_curves, parse_curves
from tunehub_registry.tuning_log import parse_line

from .conftest import DATA

KEY, SHA = "a" * 32, "b" * 64
TARGET = TargetDescriptor(
    kind="llvm", model="znver5", arch="x86_64", features=("avx2",), required_features=("avx",), num_cores=2,
    aliases=("AMD EPYC 9005",), max_threads_per_block=4, max_shared_memory_per_block=5,
)  # fmt: skip
CLASSES: dict[str, Any] = {
    "anchor": KEY, "op_class": KEY, "extents": (1, 2), "anchor_class": KEY, "anchor_extents": (3,), "op": "dense",
    "networks": ("bert",), "source": "test", "exact": KEY,
}  # fmt: skip
MEASURED: dict[str, Any] = {**CLASSES, "run_s": (1e-3, 2e-3), "default_s": 5e-3}
TRACE = json.loads((DATA / "trace_matmul_llvm.json").read_text())
DOCUMENT = Document(kind="compat", file=document_path(SHA), sha256=SHA, size=3)
PROVENANCE = manifest.Provenance(
    machine={"cpu": "x", "ghz": 2.5}, driver="d", clocks="c", tvm_version="0.27.0", tvm_ffi_version="0.1.14",
    tuner_options={"trials": 4, "adaptive": True}, trials=1, seed=0, command="x", started="2026-01-31T10:00:00Z",
    finished="2026-01-31T12:00:00Z", threads=2,
)  # fmt: skip
MANIFEST = manifest.Manifest(
    name="llvm-znver5", version="0.1.0", target=TARGET, license="CC0-1.0", provenance=PROVENANCE,
    record_sets=(
        manifest.RecordSet(
            tuner="template", file="records/x.jsonl", tvm=">=0.25", key_scheme="k", count=1, provenance=PROVENANCE
        ),
    ),
    networks=(manifest.NetworkEntry(name="n", source="onnx", inputs={"x": (1, 3)}, dtype="float32"),),
)  # fmt: skip
ENTRY = index.ShardEntry(
    version="0.1.0", file=index.package_path("llvm-znver5", "0.1.0"), sha256=SHA, size=4, yanked="bad",
    record_sets=(index.RecordSetSummary(tuner="template", tvm=">=0.25"),), published="2026-01-31", transaction="t",
    documents=(DOCUMENT,), license="CC0-1.0",
    successor=index.Successor(name="llvm-znver6", versions=">=1", reason="newer"),
)  # fmt: skip
LOCKED = lock.LockedPackage(
    name="llvm-znver5", version="0.1.0", registry="s3://b", url="https://host/x", size=3, sha256=SHA, attested=1,
    url_expires=datetime.fromisoformat("2026-01-31T12:00:00+00:00"), published="2026-01-31", requires=">=0.1",
    license="CC0-1.0", target=TARGET, record_sets=ENTRY.record_sets, documents=(DOCUMENT,),
)  # fmt: skip
LOCKED_MODEL = locked_kernel.LockedModel(
    name="m", target="llvm-znver5", tvm="0.27.0", created_by="x", layout="auto", precision="bf16", winograd=True,
    kernels=(
        locked_kernel.LockedKernel(
            key=KEY, op="o", rung="template", text="0" * 16, template="dense", version=2, knobs={"columns": 4},
            package="llvm-znver5 0.1.0", record=SHA,
        ),
    ),
)  # fmt: skip
TIMES = attested.ComparedTimes(
    default_s=2e-3,
    default_spread_s=1e-5,
    tuned_s=1e-3,
    tuned_spread_s=1e-5,
    repeats=3,
    output_max_rel_diff=1e-7,
    rule_s=1.5e-3,
)
MEASUREMENT = attested.Measurement(
    machine=TARGET, tvm_version="0.27.0", threads=8, started="2026-11-22T10:00:00Z", finished="2026-11-22T10:05:00Z",
    seed=1, drawn_from=40, published=50, draw="ab" * 64,
    networks=(
        attested.SampledNetwork(network="n", fault="wrong"), attested.SampledNetwork(network="m", times=TIMES),
    ),
    records=(
        attested.SampledRecord(exact=KEY, tuner="template", op="o", times=TIMES),
        attested.SampledRecord(exact="c" * 32, tuner="template", op="o", fault="slow"),
    ),
)  # fmt: skip
EVIDENCE = evidence.RecordEvidence(
    exact=KEY, default_s=1.0, tuned_s=0.5, speedup=2.0, repeats=3, spread=0.1, output_max_rel_diff=0.0, threads=1,
    admitted=True, reason="r", tuner="template", baseline="b", trials=3, space=4, template="dense", untuned_s=0.7,
    rule=evidence.JudgedRule(choice="0" * 16, text="1" * 16, run_s=0.6),
)  # fmt: skip
NETWORK_EVIDENCE = evidence.NetworkEvidence(
    network="n", default_s=1.0, tuned_s=0.5, onnxruntime_s=0.7, openvino_s=0.7, llama_cpp_s=0.8, repeats=3, threads=1,
    output_max_rel_diff=0.0,
    tuned_graphs_s=0.4, torch_s=0.5, torch_graphs_s=0.6, device="d", driver="1", max_clocks_mhz=(1, 2), conditions="c",
    precision="int8", accuracy=evidence.Accuracy(inputs=1, rows=2, same_class=1, max_rel_diff=0.1), over_rules=1.1,
    part="step",
)  # fmt: skip
LADDER = LadderRecord(
    **CLASSES, symbols=1,
    ladder=(
        LadderStep(
            up_to=8, template="dense", version=1, knobs={"columns": 4}, trace=None,
            times=(TimesAt(at=(4,), run_s=1e-3, default_s=2e-3, exact=KEY),),
        ),
        LadderStep(up_to=64, trace=(TRACE[0], TRACE[1]), times=(TimesAt(at=(9,), run_s=1e-3, default_s=2e-3),)),
        LadderStep(own="rule"),
    ),
)  # fmt: skip
COMPAT = compat.Compat(
    name="llvm-znver5", version="0.1.0", package=SHA, created_by="t", created="2026-11-23",
    releases=(
        compat.ReleaseReplay(
            tvm="0.27.0",
            records=(
                compat.RecordReplay(tuner="template", key=KEY, outcome="failed", reason="no", text=KEY, ran=True),
            ),
            sample=compat.NetworkSample(
                network="n", outcome="failed", workloads=3, by_record=2, ran=True, reason="no"
            ),
        ),
    ),
)  # fmt: skip
FILE = submission.SubmittedFile(sha256=SHA, size=1)
SUBMISSION = submission.Submission(
    name="llvm-znver5", version="0.1.0", license="CC0-1.0", sign_off="A B <a@b.org>", written_by="x",
    provenance=PROVENANCE, base=submission.SubmittedBase(version="0.0.1", sha256=SHA),
    files=dict.fromkeys([*submission.LINES, "llvm-znver5-0.1.0.tunepkg"], FILE),
)  # fmt: skip
REVIEW = review.Review(
    state="quarantined", submission=SHA, name="llvm-znver5", version="1", package=SHA, registry="r", role="x",
    tvm=("0.27.0",),
    checks=(
        review.ReviewCheck(
            name="files", verdict="refused", reason="no", findings=(review.ReviewFinding(where="x", reason="y"),)
        ),
    ),
)  # fmt: skip
LINE_SAMPLES: dict[str, tuple[Any, ...]] = {
    submission.WORKLOADS: (
        submission.SubmittedWorkload(exact=KEY, name="n", counts={"bert": 2}, function="{}", points=((1, 2),)),
    ),
    submission.TRIALS: (submission.SubmittedTrial(exact=KEY, source="s", candidate="f" * 16, run_s=(1e-3,)),),
    submission.COMPARISONS: (
        submission.WorkloadComparison(
            exact=KEY, threads=1, default_s=(1.0,), winner=0,
            finalists=(submission.SubmittedFinalist(candidate="f" * 16, run_s=(1.0,), difference=0.1),),
        ),
        submission.SizesComparison(exact=KEY, threads=1, at=((4,),), default_s=(1.0,), run_s=((1.0,),)),
        submission.NetworkTimes(
            network="n", threads=1, default_s=(1.0,), plain_s=(1.0,), tuned_s=(1.0,), difference=0.1
        ),
    ),
    submission.OUTPUTS: (
        submission.OutputDigest(
            exact=KEY, at=(4,), candidate="f" * 16, kind="signed", inputs=SHA,
            outputs=(
                submission.ArrayDigest(shape=(2,), dtype="float32", sha256=SHA, largest=1.0, samples=(0.5, None)),
            ),
        ),
    ),
}  # fmt: skip
ENVELOPE = {
    "payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": [{"keyid": "k", "sig": "AAAA"}],
}  # fmt: skip
AUTOTVM = [
    "llvm -mcpu=znver4", "dense_pack.x86",
    [["TENSOR", [1, 512], "float32"], ["TENSOR", [1000, 512], "float32"], None, "float32"], {},
]  # fmt: skip
COSTS = [[1e-3, 2e-3], 0, 0.5, 1600000000.0]
LOG_LINES = {
    "autotvm 0.2": {
        "input": AUTOTVM, "config": {"index": 3, "code_hash": None, "entity": [["tile_x", "sp", [-1, 8]]]},
        "result": COSTS, "version": 0.2, "tvm_version": "0.9",
    },
    "autotvm 0.1": {
        "i": [*AUTOTVM, ["dense", [1, 512, "float32"], [9, 512, "float32"]], {"i": 3, "t": "d", "c": None, "e": []}],
        "r": COSTS, "v": 0.1,
    },
    "auto-scheduler": {
        "i": [['["0123456789abcdef0123456789abcdef", 1, 512]', "llvm -mcpu=znver4", [4, 64, 64]], [[], [["SP", 2, 0]]]],
        "r": COSTS, "v": "v0.6",
    },
}  # fmt: skip
PROFILE = machine_profile.MachineProfile(
    cpu="znver5", mattr=("+avx2",), cores=2, measured="2026-01-31", multiply_add_s=1e-9, dependent_s=1e-9,
    memory_bytes=1e10, region_s=1e-5, pairs_s=1e-9, tiles_s=1e-9, byte_tiles_s=1e-9,
    cached_bytes=1e11, two_tiles=1.1,
)  # fmt: skip
GPU_PROFILE = gpu_profile.GpuProfile(
    gpu="h200", architecture="sm_90", multiprocessors=132, measured="2026-01-31", clock=1.98e9, bandwidth=4e12,
    l2_bandwidth=6e12, flops=6e13, tensor_flops=6e14, launch_s=2e-6,
)  # fmt: skip
CURVE = TuningCurve(exact=KEY, tuner="template", trials=9, steps=((1, 2.0), (3, 1.0)))
Parse = Callable[[bytes, str], object]


def traced(data: bytes, source: str) -> object:
    """As a client reads a record."""
    found = parse_any_record(data, source)
    if isinstance(found, ScheduleRecord):
        validate_trace(found.trace)
    return found


# What is read, and a sample that has every field.
STRUCTURES: dict[str, tuple[Parse, Any]] = {
    "index": (
        index.parse_index,
        index.Index(serial=2, names={"llvm-znver5": index.IndexName(target=TARGET, shard=SHA, shard_size=3)}),
    ),
    "index, lenient": (
        lambda data, source: index.parse_index(data, source, left_out=[]),
        index.Index(serial=2, names={"llvm-znver5": index.IndexName(target=TARGET, shard=SHA, shard_size=3)}),
    ),
    "log entry": (parse_entry, LoggedSnapshot(length=3, sha256=SHA, version=2)),
    "shard": (index.parse_shard, index.Shard(schema_version="1.1", name="llvm-znver5", versions=(ENTRY,))),
    "shard, lenient": (
        lambda data, source: index.parse_shard(data, source, left_out=[]),
        index.Shard(schema_version="1.1", name="llvm-znver5", versions=(ENTRY,)),
    ),
    "manifest": (manifest.parse_manifest, MANIFEST),
    "schedule record": (traced, ScheduleRecord(**MEASURED, trace=(TRACE[0], TRACE[1]))),
    "template record": (
        parse_template_record,
        TemplateRecord(**MEASURED, template="dense", version=1, knobs={"a": 1, "b": "x", "c": (1, 2), "d": True}),
    ),
    "ladder record": (parse_ladder_record, LADDER),
    "record evidence": (evidence.parse_evidence, EVIDENCE),
    "network evidence": (evidence.parse_evidence, NETWORK_EVIDENCE),
    "compat": (compat.parse_compat, COMPAT),
    "attestation": (
        attested.parse_attestation,
        attested.Attestation(
            subject=(attested.PackageSubject.of("llvm-znver5", "0.1.0", SHA),), predicate=MEASUREMENT
        ),
    ),
    "profile": (machine_profile.parse_profile, PROFILE),
    "GPU profile": (gpu_profile.parse_gpu_profile, GPU_PROFILE),
    "submission": (submission.parse_submission, SUBMISSION),
    "review": (review.parse_review, REVIEW),
    "site": (
        site_manifest.parse_site_manifest,
        site_manifest.SiteManifest(
            transaction="t", files={"index.html": site_manifest.SiteFile(sha256=SHA, etag='"e"')}
        ),
    ),
}  # fmt: skip
for name, samples in LINE_SAMPLES.items():
    for number, sample in enumerate(samples):
        STRUCTURES[f"{name} {number}"] = (
            lambda data, source, name=name: submission.parse_submitted_line(name, data, source), sample,
        )  # fmt: skip
DOCUMENTS: dict[str, tuple[Parse, bytes]] = {
    **{name: (parse, encode(sample)) for name, (parse, sample) in STRUCTURES.items()},
    **{name: (lambda data, _: parse_line(data), json.dumps(line).encode()) for name, line in LOG_LINES.items()},
    "envelope": (read_envelope, json.dumps(ENVELOPE).encode()),
    "curves": (parse_curves, encode_curves([CURVE])),
    "attached": (
        lambda data, _: attached_files(TIMESTAMP_PATH, data),
        json.dumps({"signed": {}, **encode_attached({"metadata/2.snapshot.json": b"{}"})}).encode(),
    ),
}
