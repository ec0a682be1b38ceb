"""Whether a GPU could launch the kernels of a package: arithmetic anywhere, machine code where NVRTC is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.tir.cuda.nvrtc import KernelUse
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.launch_check import check_launches, excess, threads_of

pytestmark = pytest.mark.slow

FITS = KernelUse(registers=64, stack=0, shared_memory=48 << 10)


@pytest.mark.parametrize(
    ("threads", "use", "reason"),
    [
        (1024, FITS, None),
        (1056, FITS, "1056 threads"),
        (32, replace(FITS, shared_memory=(48 << 10) + 1), "49153 bytes of shared memory"),
        (1024, replace(FITS, registers=65), "73728 registers"),
        (512, replace(FITS, registers=128), None),
        (513, replace(FITS, registers=121), "69632 registers"),  # a warp more, and registers in units
    ],
)
def test_what_a_block_may_take(threads: int, use: KernelUse, reason: str | None) -> None:
    found = excess(threads, use)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_threads_stand_in_the_source() -> None:
    source = (
        'extern "C" __global__ void __launch_bounds__(256) main_kernel(float* x);\n'
        'extern "C" __global__ void __launch_bounds__(128, 2) main_kernel_1(float* x) {\n'
        'extern "C" __global__ void main_kernel_2(float* x) {\n'
    )
    assert threads_of(source) == {"main_kernel": 256, "main_kernel_1": 128, "main_kernel_2": 1024}


def test_what_is_no_package_is_explained(tmp_path: Path) -> None:
    with pytest.raises(BuilderError, match="give a package file"):
        check_launches(tmp_path / "none.tunepkg", tmp_path, "sm_80", io.StringIO())


def test_every_kernel_of_a_package_is_compiled(cuda_package: tuple[Path, Path]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    path, work = cuda_package
    lines = io.StringIO()
    outcome = check_launches(path, work, "sm_80", lines)
    assert (outcome.admitted, [item.name for item in outcome.rejected]) == (1, ["of another workload"])
    assert "no such workload" in outcome.rejected[0].reason
    assert "fits" in lines.getvalue()


@pytest.fixture
def cuda_package(tmp_path: Path) -> tuple[Path, Path]:
    """A package with a record of a workload in a work directory, and one of another."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    from tunehub.tir.keys import workload_key
    from tunehub.tir.traces import export_trace
    from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory

    data = te.placeholder((256,), name="data")
    mod = tvm.IRModule({"main": te.create_prim_func([data, te.compute((256,), lambda i: data[i] + 1.0)])})
    schedule = Schedule(mod)
    (loop,) = schedule.get_loops(schedule.get_sblock("compute"))
    for part, tag in zip(schedule.split(loop, [None, 64]), ("blockIdx.x", "threadIdx.x"), strict=True):
        schedule.bind(part, tag)
    exact = workload_key(mod)
    entry = TaskEntry(name="add", exact=exact, anchor=None, counts={}, module=str(tvm.ir.save_json(mod)))
    with WorkDirectory(tmp_path / "work").locked(create=True) as work:
        work.save_tasks([entry])
    path = tmp_path / "cuda-h200-0.1.0.tunepkg"
    path.write_bytes(_package(exact, export_trace(schedule.trace)))
    return path, tmp_path / "work"


def _package(exact: str, trace: list[Any]) -> bytes:
    from tunehub.registries.key_scheme import KEY_SCHEME
    from tunehub_registry.manifest import Manifest, Provenance, RecordSet
    from tunehub_registry.package import pack
    from tunehub_registry.record import ScheduleRecord, encode_record
    from tunehub_registry.target import TargetDescriptor

    record = ScheduleRecord(exact=exact, op="add", run_s=(1e-6,), source="test", trace=(trace[0], trace[1]))
    other = ScheduleRecord(
        exact="0" * 32, op="of another workload", run_s=(1e-6,), source="test", trace=(trace[0], trace[1])
    )
    file = "records/meta_schedule.jsonl"
    manifest = Manifest(
        name="cuda-h200",
        version="0.1.0",
        target=TargetDescriptor(kind="cuda", model="h200", arch="sm_90", features=("sm_90",)),
        record_sets=(RecordSet(tuner="meta_schedule", file=file, tvm=">=0.25", key_scheme=KEY_SCHEME, count=2),),
        provenance=Provenance(
            machine={}, tvm_version="0.27.0", tvm_ffi_version="0.1.14", tuner_options={}, trials=1, seed=0,
            command="test", started="2026-01-01T00:00:00Z", finished="2026-01-01T00:00:00Z", threads=1,
        ),
    )  # fmt: skip
    return pack(manifest, {file: encode_record(record) + encode_record(other)})
