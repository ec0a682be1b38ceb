"""From logs of TVM <= 0.19 to the few best records of each workload: one pass over raw lines, no TVM.

The picks are those of TVM's own tools (``python -m tvm.autotvm.record --mode pick``, auto_scheduler's
``distill_record_file``): the lowest mean of the costs, the first one read of equals. They differ where TVM is wrong:

* TVM keys by (key of the target, workload) and by (model, workload), so that of all devices with an unnamed model, and
  under the key ``cuda`` of all devices, the fastest *device* wins. Here devices stay apart.
* A NaN that is read first wins for ever there, and so does an empty list of costs or a negative one. Here only a
  measured time can win, and only with a configuration that can be one.
* TVM writes the target and its own version anew. Here lines stay as they are, byte for byte.

Memory grows with the number of workloads, not with that of lines.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_registry.legacy_target import LegacyTarget, descriptor_of_legacy, parse_target
from tunehub_registry.tuning_log import (
    AUTOTVM,
    BadLine,
    LogLineError,
    LogRecord,
    Tuned,
    config_problem,
    numbered_lines,
    parse_line,
    scan_line,
)

_BAD_LINES_KEPT = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFile:
    """What a file held: its records, and its bad lines (the first hundred, and how many there are)."""

    path: Path
    records: int
    bad_lines: tuple[BadLine, ...]
    bad: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilledWorkload:
    """One workload on one device, with its best records, the fastest first (none when no trial can be used).

    ``package`` is the name of the device's package. ``trials`` counts all records; ``failed`` those without a possible
    time; ``unusable`` those that would have been among the best if their configuration could be one.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The implementations of one operator on one device that were tuned, the fastest first."""

    package: str
    operator: str
    implementations: tuple[DistilledWorkload, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Distillation:
    """What a pass over logs found; workloads are in the order in which they first occur."""

    files: tuple[LogFile, ...]
    workloads: tuple[DistilledWorkload, ...]

    def lines(self) -> Iterator[bytes]:
        """The best records' lines as they were read, each ended by a newline."""
        return (record.line + b"\n" for workload in self.workloads for record in workload.best)

    def comparisons(self) -> tuple[Comparison, ...]:
        """Every operator that has more than one tuned implementation (winograd and direct, NCHW and NCHWc …)."""
        found: dict[tuple[str, str], list[DistilledWorkload]] = {}
        for workload in self.workloads:
            if workload.best:
                found.setdefault((workload.package, workload.operator), []).append(workload)
        return tuple(
            Comparison(package=package, operator=operator, implementations=tuple(sorted(ways, key=_best_s)))
            for (package, operator), ways in found.items()
            if len(ways) > 1
        )


def distill_logs(paths: Sequence[Path], top: int = 1) -> Distillation:
    """The best ``top`` records of each (device, workload) in the logs ``paths``, of whichever formats.

    A bad line is listed and costs nothing else. Raises WorkDirectoryError when a file cannot be read.
    """
    groups = _Groups(top)
    files = tuple(_read(path, groups.add) for path in paths)
    return Distillation(files=files, workloads=groups.distilled())


@lru_cache(maxsize=1024)
def device_of(target: str) -> tuple[str, ...]:
    """What two targets of logs must have in common for their times to be compared; the package's name comes first.

    Spelled-out defaults, libraries, keys, limits and the number of cores do not matter. Raises FieldError.
    """
    parsed = parse_target(target)
    descriptor = descriptor_of_legacy(parsed)
    return (descriptor.name, descriptor.arch, parsed.device, *_features(parsed, descriptor.arch))


def _features(target: LegacyTarget, arch: str) -> list[str]:
    """LLVM features that are not part of the architecture anyway."""
    implied = {"+neon"} if arch == "aarch64" else set()
    return sorted(set(target.mattr) - implied)


def _read(path: Path, add: Callable[[bytes], None]) -> LogFile:
    bad: list[BadLine] = []
    records = bad_count = 0
    try:
        with path.open("rb") as stream:
            for number, line in numbered_lines(stream):
                try:
                    add(line)
                    records += 1
                except LogLineError as error:
                    bad_count += 1
                    bad += [BadLine(line=number, reason=error.reason)] if bad_count <= _BAD_LINES_KEPT else []
    except OSError as error:
        raise WorkDirectoryError(path, f"cannot be read: {error.strerror or error}", "give a log of TVM") from error
    return LogFile(path=path, records=records, bad_lines=tuple(bad), bad=bad_count)


class _Groups:
    """The records of all workloads seen so far, the best ``top`` of each."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._by_text: dict[tuple[str, str], _Group] = {}
        self._by_device: dict[tuple[tuple[str, ...], str], _Group] = {}

    def add(self, line: bytes) -> None:
        """Count the record in ``line``, and keep it while it is among the best of its workload.

        Raises LogLineError when it is none.
        """
        tuned, mean_s = scan_line(line)
        group = self._by_text.get((tuned.target, tuned.key))
        if group is None:
            group = self._group(tuned)
        if mean_s < group.limit_s:
            group.add(parse_line(line), mean_s)
        elif mean_s != mean_s:
            group.failed += 1
        group.trials += 1

    def _group(self, tuned: Tuned) -> _Group:
        device = device_of(tuned.target)
        group = self._by_device.setdefault((device, tuned.key), _Group(tuned=tuned, package=device[0], top=self._top))
        self._by_text[tuned.target, tuned.key] = group
        return group

    def distilled(self) -> tuple[DistilledWorkload, ...]:
        """All workloads, in the order in which they first occurred."""
        return tuple(group.distilled() for group in self._by_device.values())


@dataclass(kw_only=True, slots=True)
class _Group:
    """One workload on one device. A record must cost less than ``limit_s`` to be among the best."""

    tuned: Tuned
    package: str
    top: int
    trials: int = 0
    failed: int = 0
    unusable: int = 0
    limit_s: float = math.inf
    best: list[tuple[float, Any, LogRecord]] = field(default_factory=list)

    def add(self, record: LogRecord, mean_s: float) -> None:
        """Put ``record`` behind its equals; of two with one configuration the faster stays."""
        config = _configuration(record)
        if config is None:
            self.unusable += 1
            return
        if self.top > 1:
            if any(known == config and known_s <= mean_s for known_s, known, _ in self.best):
                return
            self.best = [entry for entry in self.best if entry[1] != config]
        insort(self.best, (mean_s, config if self.top > 1 else None, record), key=itemgetter(0))
        del self.best[self.top :]
        if len(self.best) == self.top:
            self.limit_s = self.best[-1][0]

    def distilled(self) -> DistilledWorkload:
        tuned = self.tuned
        return DistilledWorkload(
            package=self.package, tuner=tuned.tuner, key=tuned.key, operator=tuned.operator, name=tuned.name,
            best=tuple(record for _, _, record in self.best), trials=self.trials, failed=self.failed,
            unusable=self.unusable,
        )  # fmt: skip


def _configuration(record: LogRecord) -> Any:
    """The knobs or the steps, None when they cannot be any."""
    try:
        config = record.config
    except LogLineError:
        return None
    if record.tuner != AUTOTVM:
        return config[1]
    return None if config_problem(config) is not None else config.get("entity", config.get("e"))


def _best_s(workload: DistilledWorkload) -> float:
    return workload.best[0].mean_s
