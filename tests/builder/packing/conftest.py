"""A work directory with verdicts, and a package of two records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub_builder.backends.relax.workload_gate import Verdict, verdict_journal
from tunehub_builder.gate.comparison import Finalist
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.packing.pack import pack_directory
from tunehub_builder.tuning.journal import Journal
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory
from tunehub_registry.manifest import NetworkEntry
from tunehub_registry.package import EVIDENCE, pack

from .directories import files_of, one_run


@pytest.fixture
def directory(
    tmp_path: Path, target: dict[str, Any], task: TaskEntry, entry: Callable[..., Distilled], good_traces: list[Any]
) -> WorkDirectory:
    """A work directory with one admitted, one rejected and one unchecked workload."""
    work = WorkDirectory(tmp_path / "work")
    work.path.mkdir()
    inputs: dict[str, tuple[int, ...]] = {"data": (1, 3, 8, 8)}
    run = RunFile(
        target_name=f"llvm-{target['mcpu']}",
        target=target,
        tvm_version="0.27.0.post1",
        tvm_ffi_version="0.1.14.post1",
        networks=(NetworkEntry(name="tiny", source="test", inputs=inputs, dtype="float32"),),
        runs=(one_run("2026-01-01T00:00:00Z", 1), one_run("2026-01-02T00:00:00Z", 2)),
    )
    work.save_run(run)
    others = [msgspec.structs.replace(task, exact=key * 32) for key in "ab"]
    work.save_tasks([task, *others])
    for trial in entry(*good_traces).best:
        Journal(work.path).append(trial)
    finalist = Finalist(source="sketch", tuning_s=1e-4, run_s=(1e-4, 1.1e-4, 1.2e-4), difference=1e-7)
    verdict = Verdict(
        exact=task.exact, name="matmul", digest="d", threads=2, admitted=True,
        default_s=(1e-3, 1.1e-3), finalists=(finalist,), winner=0, trace=good_traces[0],
    )  # fmt: skip
    verdict_journal(work).append(verdict)
    verdict_journal(work).append(
        msgspec.structs.replace(verdict, exact="a" * 32, admitted=False, reason="within the noise")
    )
    return work


@pytest.fixture
def two(directory: WorkDirectory, task: TaskEntry, tmp_path: Path) -> Path:
    """A package of two records: of ``task``, and of a key of zeros."""
    built = pack_directory(directory, "0.1.0")
    path, file = tmp_path / "two.tunepkg", "records/meta_schedule.jsonl"
    path.write_bytes(built.data)
    files = files_of(path)
    for name in (file, EVIDENCE):
        own = [line for line in files[name].splitlines(keepends=True) if task.exact.encode() in line]
        files[name] += b"".join(own).replace(task.exact.encode(), b"0" * 32)
    sets = (msgspec.structs.replace(built.manifest.record_sets[0], count=2),)
    path.write_bytes(pack(msgspec.structs.replace(built.manifest, record_sets=sets), files))
    return path
