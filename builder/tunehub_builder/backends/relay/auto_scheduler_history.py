"""What earlier runs measured, as the auto-scheduler can go on from it: one pass over ``auto_scheduler.json``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tunehub_builder.backends.relay.gpu_tuner import RelayTrial
from tunehub_builder.backends.relay.work import failure_name, failure_number
from tunehub_registry.tuning_log import BadLine, LogRecord, read_log

_FAILED_S = 1e10  # what TVM writes for a failure (auto_scheduler/measure.py)
_VERSION = "v0.6"


@dataclass(kw_only=True, slots=True)
class TaskHistory:
    """The trials of one task: how many, the failed ones by reason, and the best time in seconds."""

    trials: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    best_s: float = math.inf

    def add(self, error_no: int, seconds: float) -> None:
        """Count one trial; ``seconds`` says something where ``error_no`` is 0."""
        self.trials += 1
        reason = failure_name(error_no)
        if reason is not None:
            self.failures[reason] += 1
        elif 0 < seconds < self.best_s:
            self.best_s = seconds


def read_history(log: Path, target: str, keys: Collection[str], good: Path) -> dict[str, TaskHistory]:
    """The trials in ``log`` for ``target`` (TVM's text of it) of the workloads with ``keys``, by key.

    Their lines are copied to ``good``: TVM's own reader stops at a bad line, takes a truncated one for the fastest of
    all, and cannot train its model on workloads that it was not told about.
    """
    found = {key: TaskHistory() for key in keys}
    with good.open("wb") as copy:
        for record in _records(log, target, keys):
            found[record.key].add(record.error_no, record.mean_s)
            copy.write(record.line + b"\n")
    return found


def known_programs(log: Path, target: str, keys: Collection[str]) -> dict[str, list[RelayTrial]]:
    """As :func:`read_history`, the trials themselves, the oldest first."""
    found: dict[str, list[RelayTrial]] = {key: [] for key in keys}
    for record in _records(log, target, keys):
        found[record.key].append(
            RelayTrial(
                task=record.key,
                trace=bytes(msgspec.json.decode(record.line, type=_Program).i).decode(),
                source="log",
                run_s=record.costs if record.error_no == 0 else (),
                failure=failure_name(record.error_no),
            )
        )
    return found


def program_line(trial: RelayTrial) -> bytes:
    """The line that the auto-scheduler writes for a trial (``measure_record.cc``, WriteMeasureRecords)."""
    error_no = failure_number(trial.failure)
    result = [trial.run_s or (_FAILED_S,), error_no, 0, round(trial.at)]
    version = msgspec.json.encode(_VERSION)
    return b'{"i": %s, "r": %s, "v": %s}' % (str(trial.trace).encode(), msgspec.json.encode(result), version)


class _Program(msgspec.Struct):
    """A line, of which the input is kept as it is written."""

    i: msgspec.Raw


def _records(log: Path, target: str, keys: Collection[str]) -> Iterator[LogRecord]:
    if not log.exists():
        return
    with log.open("rb") as stream:
        for record in read_log(stream, str(log)):
            if isinstance(record, BadLine) or record.key not in keys or record.target != target:
                continue
            if record.error_no or record.is_measured:
                yield record
