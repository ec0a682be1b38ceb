"""What `tunehub distill` says about logs of TVM <= 0.19."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.logs.distill import Comparison, Distillation, DistilledWorkload, LogFile, distill_logs
from tunehub_builder.tuning.journal import write_atomically

_LOGS = ("autotvm.log", "auto_scheduler.json")
_BAD_LINES_SHOWN = 10


def logs_in(paths: Sequence[Path]) -> list[Path] | None:
    """The logs that ``paths`` are or have: files, and work directories of TVM <= 0.19.

    None when the one path is another directory (of modern TVM, or none). Raises WorkDirectoryError when a path is
    missing, or a directory among several has no log.
    """
    found: list[Path] = []
    for path in paths:
        logs = [path / name for name in _LOGS if (path / name).is_file()] if path.is_dir() else [path]
        if not logs and len(paths) == 1:
            return None
        if not logs:
            reason = f"holds no log of TVM <= 0.19 ({', '.join(_LOGS)})"
            raise WorkDirectoryError(path, reason, "give logs, or one work directory alone")
        found += logs
    return found


def distill_to(logs: Sequence[Path], top: int, output: Path | None) -> Distillation:
    """Distil ``logs``, and write the lines to ``output``. Raises WorkDirectoryError.

    A file holds the lines of one tuner: TVM reads no others from it.
    """
    found = distill_logs(logs, top)
    tuners = sorted({workload.tuner for workload in found.workloads})
    if not tuners:
        reasons = [f"line {bad.line}: {bad.reason}" for file in found.files for bad in file.bad_lines[:1]]
        raise WorkDirectoryError(
            logs[0], f"holds no record ({'; '.join(reasons) or 'it is empty'})", "give a log of TVM"
        )
    if output is not None:
        if len(tuners) > 1:
            reason = f"would mix records of {' and '.join(tuners)}, which TVM cannot read from one file"
            raise WorkDirectoryError(output, reason, "distil the logs of each tuner on their own")
        write_atomically(output, found.lines())
    return found


def as_json(found: Distillation) -> dict[str, Any]:
    """``{"files": […], "records": […], "operators": […]}``; times in seconds."""
    return {
        "files": [_file_json(file) for file in found.files],
        "records": [_workload_json(workload) for workload in found.workloads],
        "operators": [_comparison_json(comparison) for comparison in found.comparisons()],
    }


def text(found: Distillation) -> str:
    """A line a workload, then the operators with several implementations, then what was wrong."""
    lines = [_workload_text(workload) for workload in found.workloads]
    for comparison in found.comparisons():
        first, *others = comparison.implementations
        rest = ", ".join(f"{way.name.split()[0]} {_ms(way)}" for way in others)
        lines.append(f"{comparison.package}: {first.name} {_ms(first)} is chosen over {rest}")
    for file in found.files:
        lines += [f"{file.path}:{bad.line}: skipped: {bad.reason}" for bad in file.bad_lines[:_BAD_LINES_SHOWN]]
        if file.bad > _BAD_LINES_SHOWN:
            lines.append(
                f"{file.path}: {file.bad - _BAD_LINES_SHOWN} more lines skipped (--json lists the first hundred)"
            )
    records = sum(file.records for file in found.files)
    lines.append(f"{records} records, {len(found.workloads)} workloads. Times are those of tuning.")
    return "\n".join(lines)


def _workload_text(workload: DistilledWorkload) -> str:
    unusable = f", {workload.unusable} unusable" if workload.unusable else ""
    trials = f"{workload.trials:>6} trials ({workload.failed} failed{unusable})"
    return f"{workload.package:<22} {workload.name:<64} {trials}  {_ms(workload)}"


def _ms(workload: DistilledWorkload) -> str:
    return "no trial succeeded" if workload.best_s is None else f"{workload.best_s * 1e3:.4g} ms"


def _file_json(file: LogFile) -> dict[str, Any]:
    bad = [{"line": line.line, "reason": line.reason} for line in file.bad_lines]
    return {"file": str(file.path), "records": file.records, "bad": file.bad, "bad_lines": bad}


def _workload_json(workload: DistilledWorkload) -> dict[str, Any]:
    return {
        "target": workload.package,
        "tuner": workload.tuner,
        "key": workload.key,
        "operator": workload.operator,
        "name": workload.name,
        "trials": workload.trials,
        "failed": workload.failed,
        "unusable": workload.unusable,
        "best_s": workload.best_s,
        "top_s": [record.mean_s for record in workload.best],
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    ways = [{"name": way.name, "key": way.key, "best_s": way.best_s} for way in comparison.implementations]
    return {
        "target": comparison.package,
        "operator": comparison.operator,
        "winner": ways[0]["name"],
        "implementations": ways,
    }
