"""What the best records of logs of TVM <= 0.19 are, for programs and for people. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tunehub_registry.printable import plain
from tunehub_registry.tuning_log import BadLine, LogRecord

_BAD_LINES_SHOWN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFile:
    """What a file held: its records, and its bad lines (the first hundred, and how many there are)."""

    path: Path
    records: int
    bad_lines: tuple[BadLine, ...]
    bad: int

    def as_json(self) -> dict[str, object]:
        """The file's part of the report."""
        bad = [{"line": line.line, "reason": line.reason} for line in self.bad_lines]
        return {"file": str(self.path), "records": self.records, "bad": self.bad, "bad_lines": bad}

    def text(self) -> Iterator[str]:
        """A line for each of the first bad lines."""
        yield from (f"{self.path}:{bad.line}: skipped: {bad.reason}" for bad in self.bad_lines[:_BAD_LINES_SHOWN])
        if self.bad > _BAD_LINES_SHOWN:
            yield f"{self.path}: {self.bad - _BAD_LINES_SHOWN} more lines skipped (--json lists the first hundred)"


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilledWorkload:
    """One workload on one device, with its best records, the fastest first (none when no trial can be used).

    ``package`` is the name of the device's package. ``trials`` counts all records; ``failed`` those without a possible
    time; ``unusable`` those that cost less than the best and whose configuration cannot be one.
    """

    package: str
    tuner: str
    key: str
    operator: str
    name: str
    best: tuple[LogRecord, ...]
    trials: int
    failed: int
    unusable: int

    @property
    def best_s(self) -> float | None:
        """The mean time of the best record in seconds."""
        return self.best[0].mean_s if self.best else None

    @property
    def best_text(self) -> str:
        """The same for people."""
        return "no trial succeeded" if self.best_s is None else f"{self.best_s * 1e3:.4g} ms"

    def as_json(self) -> dict[str, object]:
        """The workload's part of the report."""
        return {
            "target": self.package,
            "tuner": self.tuner,
            "key": self.key,
            "operator": self.operator,
            "name": self.name,
            "trials": self.trials,
            "failed": self.failed,
            "unusable": self.unusable,
            "best_s": self.best_s,
            "top_s": [record.mean_s for record in self.best],
        }

    def text(self) -> str:
        """One line."""
        unusable = f", {self.unusable} unusable" if self.unusable else ""
        trials = f"{self.trials:>6} trials ({self.failed} failed{unusable})"
        return f"{self.package:<22} {self.name:<64} {trials}  {self.best_text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedImplementations:
    """The implementations of one operator on one device that were tuned, the fastest first."""

    package: str
    operator: str
    implementations: tuple[DistilledWorkload, ...]

    def as_json(self) -> dict[str, object]:
        """The operator's part of the report."""
        ways = [{"name": way.name, "key": way.key, "best_s": way.best_s} for way in self.implementations]
        return {
            "target": self.package,
            "operator": self.operator,
            "winner": ways[0]["name"],
            "implementations": ways,
        }

    def text(self) -> str:
        """One line."""
        first, *others = self.implementations
        rest = ", ".join(f"{way.name.split()[0]} {way.best_text}" for way in others)
        return f"{self.package}: {first.name} {first.best_text} is chosen over {rest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Distillation:
    """What a pass over logs found; workloads are in the order in which they first occur."""

    files: tuple[LogFile, ...]
    workloads: tuple[DistilledWorkload, ...]

    def lines(self) -> Iterator[bytes]:
        """The best records' lines as they were read, each ended by a newline."""
        return (record.line + b"\n" for workload in self.workloads for record in workload.best)

    def operators(self) -> tuple[TunedImplementations, ...]:
        """Every operator that has more than one tuned implementation (winograd and direct, NCHW and NCHWc …)."""
        found: dict[tuple[str, str], list[DistilledWorkload]] = {}
        for workload in self.workloads:
            if workload.best:
                found.setdefault((workload.package, workload.operator), []).append(workload)
        return tuple(
            TunedImplementations(
                package=package,
                operator=operator,
                implementations=tuple(sorted(ways, key=lambda way: way.best[0].mean_s)),
            )
            for (package, operator), ways in found.items()
            if len(ways) > 1
        )

    def as_json(self) -> dict[str, object]:
        """``{"files": […], "records": […], "operators": […]}``; times in seconds."""
        return {
            "files": [file.as_json() for file in self.files],
            "records": [workload.as_json() for workload in self.workloads],
            "operators": [operator.as_json() for operator in self.operators()],
        }

    def text(self) -> str:
        """A line a workload, then the operators with several implementations, then what was wrong."""
        lines = [workload.text() for workload in self.workloads]
        lines += [operator.text() for operator in self.operators()]
        lines += [line for file in self.files for line in file.text()]
        records = sum(file.records for file in self.files)
        lines.append(f"{records} records, {len(self.workloads)} workloads. Times are those of tuning.")
        return "\n".join(map(plain, lines))
