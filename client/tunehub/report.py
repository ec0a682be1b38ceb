"""What the hub did for each workload: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

RUNGS = ("user", "exact", "anchor", "family", "reference", "template", "dlight", "default")
HIT_RUNGS = frozenset({"user", "exact", "anchor", "family"})
_BOTTLENECKS = 3
# Where fewer configurations of a larger space were tried, more tuning is likely to pay (TVM's tutorials use 1000-2000).
MIN_TRIALS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """An implementation of an operator that was not chosen: its record's time in seconds, None without a record."""

    implementation: str
    run_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadReport:
    """One workload of a compiled module.

    `rung` (one of `RUNGS`) says what serves it, `package` where its record came from, `exact` and `anchor` are its
    keys (None when not needed). `run_s` and `default_s` are the record's measured times in seconds on the machine it
    was tuned on, `count` the number of calls, `skipped` says why records that were tried did not serve. `template`
    names the template that schedules it: with a record's knobs, or on the rung `template` with those of its own rule.

    For Relay, `tuner` made the record, `implementation` is the one that TVM chose for the operator, and `rejected` are
    the others; `trials` were spent on a space of `space` configurations, where that is known.
    """

    name: str
    op: str
    rung: str
    package: str | None = None
    exact: str | None = None
    anchor: str | None = None
    run_s: float | None = None
    default_s: float | None = None
    count: int = 1
    skipped: tuple[str, ...] = ()
    template: str | None = None
    tuner: str | None = None
    implementation: str | None = None
    rejected: tuple[Alternative, ...] = ()
    trials: int | None = None
    space: int | None = None

    @property
    def hit(self) -> bool:
        """Whether a record serves it."""
        return self.rung in HIT_RUNGS

    @property
    def total_s(self) -> float | None:
        """The known time of all its calls in seconds."""
        return None if self.run_s is None else self.run_s * self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The workloads of all modules that a hub compiled, with what the hub had to say.

    `package` is the resolved package or None, `notes` are warnings and remarks.
    """

    target: str
    package: str | None
    workloads: tuple[WorkloadReport, ...] = ()
    notes: tuple[str, ...] = ()

    def hits(self) -> tuple[WorkloadReport, ...]:
        """The workloads that records serve."""
        return tuple(item for item in self.workloads if item.hit)

    def misses(self) -> tuple[WorkloadReport, ...]:
        """The workloads without a record: on templates' default knobs, or on TVM's default schedules."""
        return tuple(item for item in self.workloads if not item.hit)

    def rung_counts(self) -> dict[str, int]:
        """The number of workloads on each rung."""
        counts = Counter(item.rung for item in self.workloads)
        return {rung: counts[rung] for rung in RUNGS}

    def bottlenecks(self, limit: int = _BOTTLENECKS) -> tuple[WorkloadReport, ...]:
        """The workloads with the greatest known time of all calls; times of misses are not known."""
        known = [item for item in self.workloads if item.total_s is not None]
        return tuple(sorted(known, key=lambda item: -(item.total_s or 0.0))[:limit])

    def share(self, item: WorkloadReport) -> float | None:
        """The part of the known time of all workloads that `item` takes, 0 to 1; None when its time is not known."""
        total = sum(other.total_s or 0.0 for other in self.workloads)
        return item.total_s / total if item.total_s is not None and total else None

    def summary(self) -> str:
        """The report in one to three lines."""
        total = len(self.workloads)
        steps = ", ".join(f"{rung} {count}" for rung, count in self.rung_counts().items() if count)
        served = f"{len(self.hits())} of {total} workloads served by records" if total else "no workloads compiled yet"
        lines = [f"{self.target} with {self.package or 'no package'}: {served}{f' ({steps})' if steps else ''}"]
        slowest = self.bottlenecks()
        if slowest:
            parts = [f"{item.name} {_ms(item.total_s)} ms ({self.share(item) or 0:.0%})" for item in slowest]
            lines.append(f"most time: {', '.join(parts)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The report in JSON's types."""
        return {
            "target": self.target,
            "package": self.package,
            "rungs": self.rung_counts(),
            "hits": len(self.hits()),
            "misses": len(self.misses()),
            "bottlenecks": [item.name for item in self.bottlenecks()],
            "notes": list(self.notes),
            "workloads": [{**asdict(item), "share": self.share(item)} for item in self.workloads],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON. Raises OSError."""
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def save_misses(self, path: str | os.PathLike[str]) -> int:
        """Append the misses to a JSONL file, each exact key once in the file; returns how many. Raises OSError."""
        file = Path(path)
        known = _known_keys(file)
        fresh = list(_unique(self.misses(), known))
        with file.open("a", encoding="utf-8") as stream:
            for item in fresh:
                row = {
                    "target": self.target, "name": item.name, "op": item.op, "exact": item.exact,
                    "anchor": item.anchor, "count": item.count,
                }  # fmt: skip
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        return len(fresh)

    def table(self) -> Table:
        """The report as a table of rich."""
        from rich.table import Table

        table = Table(title=self.summary(), title_justify="left", caption="\n".join(self.notes) or None)
        numbers = ("calls", "ms", "share", "× default")
        for heading in ("workload", "calls", "rung", "record of", "ms", "share", "× default", "remarks"):
            table.add_column(heading, justify="right" if heading in numbers else "left")
        for item in self.workloads:
            share = self.share(item)
            figures = (_ms(item.run_s), "" if share is None else f"{share:.0%}", _speedup(item))
            table.add_row(item.name, str(item.count), item.rung, item.package or "", *figures, _remarks(item))
        return table

    def print(self) -> None:
        """Print the table on standard output."""
        from rich.console import Console

        Console().print(self.table())

    def __str__(self) -> str:
        return self.summary()


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"


def _speedup(item: WorkloadReport) -> str:
    return f"{item.default_s / item.run_s:.1f}" if item.run_s and item.default_s else ""


def _remarks(item: WorkloadReport) -> str:
    """The template, skipped records, the implementation that was chosen over others, and tuning that was too short."""
    parts = [f"template {item.template}"] if item.template else []
    parts += [f"{len(item.skipped)} skipped: {item.skipped[0]}"] if item.skipped else []
    if item.rejected:
        others = [f"{other.implementation} {_ms(other.run_s) or 'without a record'}" for other in item.rejected]
        parts.append(f"{item.implementation} chosen over {', '.join(others)}")
    if item.trials is not None and item.space is not None and item.trials < min(item.space, MIN_TRIALS):
        parts.append(f"only {item.trials} trials of {item.space:.3g} configurations")
    return "; ".join(parts)


def _unique(items: Iterable[WorkloadReport], known: set[str]) -> Iterable[WorkloadReport]:
    for item in items:
        if item.exact is not None and item.exact not in known:
            known.add(item.exact)
            yield item


def _known_keys(file: Path) -> set[str]:
    """The exact keys in a file of misses; lines that are not JSON (a torn last one) do not count."""
    keys: set[str] = set()
    if not file.exists():
        return keys
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("exact"), str):
            keys.add(row["exact"])
    return keys
