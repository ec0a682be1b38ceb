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
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.logs.distillation import Distillation, DistilledWorkload, LogFile
from tunehub_builder.tuning.journal import write_atomically
from tunehub_registry.legacy_target import LegacyTarget, descriptor_of_legacy, parse_target
from tunehub_registry.tuning_log import (
    AUTOTVM,
    BadLine,
    LogLineError,
    LogRecord,
    Tuned,
    config_problem,
    parse_line,
    scan_log_as,
)

_BAD_LINES_KEPT = 100
_LOGS = ("autotvm.log", "auto_scheduler.json")  # of a work directory
_REMEDY = "give a work directory of `tunehub tune`, or a log of TVM"


def distill_logs(paths: Sequence[Path], top: int = 1) -> Distillation:
    """The best ``top`` records of each (device, workload) in the logs ``paths``, of whichever formats.

    A bad line is listed and costs nothing else. Raises WorkDirectoryError when a file cannot be read.
    """
    # Checking only the winners is a good deal faster than checking all that were in the lead for a while.
    for trusting in (True, False) if top == 1 else (False,):
        groups = _Groups(top, trusting=trusting)
        files = tuple(_read(path, groups) for path in paths)
        if groups.settle():
            break
    return Distillation(files=files, workloads=groups.distilled())


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
        raise WorkDirectoryError(logs[0], f"holds no record ({'; '.join(reasons) or 'it is empty'})", _REMEDY)
    if output is not None:
        if len(tuners) > 1:
            reason = f"would mix records of {' and '.join(tuners)}, which TVM cannot read from one file"
            raise WorkDirectoryError(output, reason, "distil the logs of each tuner on their own")
        write_atomically(output, found.lines())
    return found


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


def _read(path: Path, groups: _Groups) -> LogFile:
    bad: list[BadLine] = []
    records = bad_count = 0

    def add_bad(line: BadLine) -> None:
        nonlocal bad_count
        bad_count += 1
        if bad_count <= _BAD_LINES_KEPT:
            bad.append(line)

    try:
        with path.open("rb", buffering=0) as stream:
            for number, line, group, mean_s in scan_log_as(stream, add_bad, groups.of):
                if mean_s < group.limit_s:
                    try:
                        group.add(line, mean_s)
                    except LogLineError as error:
                        add_bad(BadLine(line=number, reason=error.reason))
                        continue
                elif mean_s != mean_s:
                    group.failed += 1
                group.trials += 1
                records += 1
    except OSError as error:
        raise WorkDirectoryError(path, f"cannot be read: {error.strerror or error}", _REMEDY) from error
    return LogFile(path=path, records=records, bad_lines=tuple(bad), bad=bad_count)


class _Groups:
    """The records of all workloads seen so far, the best ``top`` of each, checked at once or (``trusting``) at last."""

    def __init__(self, top: int, *, trusting: bool) -> None:
        self._top = top
        self._trusting = trusting
        self._by_device: dict[tuple[tuple[str, ...], str], _Group] = {}

    def of(self, tuned: Tuned) -> _Group:
        """The group that a record belongs to."""
        device = device_of(tuned.target)
        group = self._by_device.get((device, tuned.key))
        if group is None:
            group = _Group(tuned=tuned, package=device[0], top=self._top, trusting=self._trusting)
            self._by_device[device, tuned.key] = group
        return group

    def settle(self) -> bool:
        """Check what was trusted; False when any of it cannot be used, and all must be read again."""
        return all(group.settle() for group in self._by_device.values())

    def distilled(self) -> tuple[DistilledWorkload, ...]:
        """All workloads, in the order in which they first occurred."""
        return tuple(group.distilled() for group in self._by_device.values())


@dataclass(kw_only=True, slots=True)
class _Group:
    """One workload on one device. A record must cost less than ``limit_s`` to be among the best."""

    tuned: Tuned
    package: str
    top: int
    trusting: bool
    trials: int = 0
    failed: int = 0
    unusable_s: list[float] = field(default_factory=list)
    limit_s: float = math.inf
    leader: bytes | None = None
    best: list[tuple[float, Any, LogRecord]] = field(default_factory=list)

    def add(self, line: bytes, mean_s: float) -> None:
        """Put the record behind its equals; of two with one configuration the faster stays. Raises LogLineError."""
        if self.trusting:
            self.leader, self.limit_s = line, mean_s
            return
        record = parse_line(line)
        config = _configuration(record)
        if config is None:
            self.unusable_s.append(mean_s)
            return
        if self.top > 1:
            if any(known == config and known_s <= mean_s for known_s, known, _ in self.best):
                return
            self.best = [entry for entry in self.best if entry[1] != config]
        insort(self.best, (mean_s, config if self.top > 1 else None, record), key=itemgetter(0))
        del self.best[self.top :]
        if len(self.best) == self.top:
            self.limit_s = self.best[-1][0]

    def settle(self) -> bool:
        """Check the leader that was trusted; False when it cannot be used."""
        if self.leader is None:
            return True
        self.trusting = False
        try:
            self.add(self.leader, self.limit_s)
        except LogLineError:
            return False
        return bool(self.best)

    def distilled(self) -> DistilledWorkload:
        tuned = self.tuned
        return DistilledWorkload(
            package=self.package, tuner=tuned.tuner, key=tuned.key, operator=tuned.operator, name=tuned.name,
            best=tuple(record for _, _, record in self.best), trials=self.trials, failed=self.failed,
            unusable=sum(mean_s < self.limit_s for mean_s in self.unusable_s),
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
