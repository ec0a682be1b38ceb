"""What earlier runs measured, as the auto-scheduler can go on from it: one pass over ``auto_scheduler.json``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from tunehub_builder.backends.relay.work import failure_name
from tunehub_registry.tuning_log import BadLine, read_log


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
        if not log.exists():
            return found
        with log.open("rb") as stream:
            for record in read_log(stream, str(log)):
                if isinstance(record, BadLine) or record.key not in found or record.target != target:
                    continue
                if record.error_no == 0 and not record.is_measured:
                    continue
                found[record.key].add(record.error_no, record.mean_s)
                copy.write(record.line + b"\n")
    return found
