from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunehub_registry.manifest import Manifest, NetworkEntry, Provenance, RecordSet
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.target import TargetDescriptor

DATA = Path(__file__).parent / "data"


def _trace(name: str) -> list[Any]:
    trace: list[Any] = json.loads((DATA / name).read_text())
    return trace


@pytest.fixture
def llvm_trace() -> list[Any]:
    return _trace("trace_matmul_llvm.json")


@pytest.fixture
def cuda_trace() -> list[Any]:
    return _trace("trace_matmul_cuda.json")


@pytest.fixture
def vnni_trace() -> list[Any]:
    return _trace("trace_vnni_llvm.json")


@pytest.fixture
def target() -> TargetDescriptor:
    return TargetDescriptor(
        kind="llvm",
        model="znver5",
        arch="x86_64",
        features=("avx2", "avx512f", "avx512vnni"),
        num_cores=2,
        aliases=("AMD EPYC 9005",),
    )


@pytest.fixture
def manifest(target: TargetDescriptor) -> Manifest:
    return Manifest(
        name=target.name,
        version="1.2.0",
        target=target,
        record_sets=(
            RecordSet(
                tuner="meta_schedule",
                file="records/meta_schedule.jsonl",
                tvm=">=0.25,<0.28",
                key_scheme="script-1",
                count=1,
            ),
        ),
        networks=(NetworkEntry(name="resnet18", source="onnx", inputs={"x": (1, 3, 224, 224)}, dtype="float32"),),
        provenance=Provenance(
            machine={"cpu": "EPYC", "cores": 2, "ghz": 2.5},
            tvm_version="0.27.0.post1",
            tvm_ffi_version="0.1.14.post1",
            tuner_options={"max_trials": 64, "adaptive": True, "space": "post-order-apply"},
            trials=64,
            seed=1,
            command="tunehub tune recipe.toml",
            started="2026-01-31T10:00:00Z",
            finished="2026-01-31T12:00:00+00:00",
            threads=2,
        ),
    )


@pytest.fixture
def record(llvm_trace: list[Any]) -> ScheduleRecord:
    return ScheduleRecord(
        exact="0" * 32,
        anchor="f" * 32,
        op_class="c" * 32,
        extents=(16, 32, 8),
        op="fused_matmul_add",
        trace=(llvm_trace[0], llvm_trace[1]),
        run_s=(1.5e-3, 1.6e-3),
        default_s=0.5,
        networks=("resnet18",),
        source="meta_schedule",
    )
