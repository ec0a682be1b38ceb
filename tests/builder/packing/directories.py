"""Work directories to pack, and what is in a package."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tunehub_builder.backends.relax.workload_gate import Verdict, verdict_journal
from tunehub_builder.gate.comparison import Finalist
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.work_directory import TaskEntry, TuningRun, WorkDirectory
from tunehub_registry.package import MANIFEST, open_package


def one_run(started: str, seed: int) -> TuningRun:
    return TuningRun(
        command=f"tunehub tune --target host --network tiny --seed {seed} --work work",
        started=started,
        updated="2026-01-02T00:00:00Z",
        seed=seed,
        threads=2,
        networks=("tiny",),
        options={"trials": 4, "batch": 16},
        machine={"cpu": "Some CPU", "physical_cores": 2},
    )


def files_of(path: Path) -> dict[str, bytes]:
    with open_package(path) as package:
        return {name: package.read(name) for name in package.names if name != MANIFEST}


def with_templates(directory: WorkDirectory, task: TaskEntry, path: Path) -> WorkDirectory:
    """A work directory of the tuner template with one admitted workload, of the same network."""
    work = WorkDirectory(path)
    work.path.mkdir()
    work.save_run(msgspec.structs.replace(directory.existing_run(), tuner="template"))
    work.save_tasks([task])
    knobs = {"lanes": 16, "parallel": True}
    verdict = Verdict(
        exact=task.exact, name=task.name, digest="d", threads=2, admitted=True, default_s=(1e-3, 1e-3),
        finalists=(Finalist(source="elementwise 1", tuning_s=1e-4, run_s=(1e-4, 1e-4), difference=0.0),), winner=0,
        choice=KnobChoice(template="elementwise", version=1, knobs=knobs), trials=6,
    )  # fmt: skip
    verdict_journal(work).append(verdict)
    return work
