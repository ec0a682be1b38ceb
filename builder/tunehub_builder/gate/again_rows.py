"""Rows of a package with their workloads, and what rules have for these today."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder.gate.places import judge_at_once
from tunehub_builder.gate.workloads import stop_workers
from tunehub_builder.replay.records import Record
from tunehub_builder.replay.workloads import MatchedRecord
from tunehub_builder.tuning.runner.again_worker import LookingSession
from tunehub_builder.tuning.runner.kept_builds import KeptBuilds
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker, WorkerPool, warm_up
from tunehub_builder.tuning.work_directory import TaskEntry
from tunehub_registry.evidence import JudgedRule, RecordEvidence

_LIMIT_S = 240.0
Found = tuple[str, str, str]  # see `looked`


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchedRow:
    """A row with its workload."""

    tuner: str
    record: Record
    task: TaskEntry
    known: RecordEvidence | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedRow:
    """A row with its workload, and what rules have for it today; ``rule`` has no time yet. ``same``: that is the very
    schedule of the row."""

    tuner: str
    record: Record
    task: TaskEntry
    rule: JudgedRule
    known: RecordEvidence | None
    same: bool

    @property
    def as_rules(self) -> RecordEvidence | None:
        """What is known of a row that rules have, too: its time is theirs. None where it has to be measured."""
        if not self.same or self.known is None or not self.known.admitted:
            return None
        rule = msgspec.structs.replace(self.rule, run_s=self.known.tuned_s)
        return msgspec.structs.replace(self.known, rule=rule)


def matched_row(matched: MatchedRecord, known: RecordEvidence | None) -> MatchedRow:
    """A row as the gate has workloads."""
    import tvm

    from tunehub.tir.element_types import written_types

    record = matched.record
    task = TaskEntry(  # of open sizes without those that it was tuned for: the record has them
        name=record.op,
        exact=record.exact,
        anchor=record.anchor,
        counts=dict.fromkeys(record.networks, 1),
        module=str(tvm.ir.save_json(matched.mod)),
        types=tuple(sorted(written_types(matched.mod["main"]))),
    )
    return MatchedRow(tuner=matched.tuner, record=record, task=task, known=known)


def in_order(rows: Sequence[MatchedRow], names: Sequence[str]) -> list[MatchedRow]:
    """Those of the networks that are named first come first; of one network those that were never judged."""
    places = {name: place for place, name in reversed([*enumerate(names)])}

    def place(row: MatchedRow) -> tuple[int, bool]:
        own = (places[name] for name in row.record.networks if name in places)
        return min(own, default=len(places)), row.known is not None and bool(row.known.rule)

    return sorted(rows, key=place)


def drawn(rows: Sequence[PackagedRow], most: int | None) -> list[PackagedRow]:
    """By the hashes of their keys, so that nobody chooses them; all in their order."""

    def place(row: PackagedRow) -> str:
        return hashlib.sha256(f"{row.record.exact} {row.tuner}".encode()).hexdigest()

    return list(rows) if most is None else sorted(rows, key=place)[:most]


@dataclass(frozen=True, kw_only=True, slots=True)
class Looking:
    """How rows are looked at: for ``target``, by the ``published`` rates, by so many processes. ``folder``: where what
    they find is kept."""

    target: dict[str, Any]
    published: PublishedProfile | None
    workers: int
    folder: Path | None

    def rows(self, matched: Sequence[MatchedRow]) -> list[PackagedRow]:
        """The rows with what rules have. Raises TuningError where a process cannot be started."""
        told = [self._told(row) for row in matched]
        others = [row for row, found in zip(matched, told, strict=True) if found is None]
        new = iter(self._looked(others))
        return [_row(row, found or next(new)) for row, found in zip(matched, told, strict=True)]

    def kept_first(self, matched: Sequence[MatchedRow]) -> list[Sequence[MatchedRow]]:
        """Those that were looked at ahead, then the others, each if there are any."""
        if self.folder is None:
            return [matched]
        told = [self._told(row) is not None for row in matched]
        kept, others = (
            [row for row, known in zip(matched, told, strict=True) if known is wanted] for wanted in (True, False)
        )
        return [some for some in (kept, others) if some]

    def row(self, row: MatchedRow, worker: Worker) -> PackagedRow:
        """One with what rules have, of which a worker is asked that has not found it before."""
        worker.load(row.task.exact, row.task.module)
        return _row(row, self._told(row) or self._asked(row, worker))

    @contextmanager
    def pool(self, workers: int, log: str | None = None) -> Iterator[WorkerPool]:
        """Processes that look at rows, and build ahead into the folder. Raises TuningError."""
        session = partial(LookingSession, self.published, self.folder)
        options = PoolOptions(workers=workers, threads=1, log=log)
        with WorkerPool(options, self.target, make_session=session) as pool:
            warm_up(pool.workers, self.target)
            yield pool

    def _looked(self, rows: Sequence[MatchedRow]) -> list[Found]:
        if self.workers == 1 or len(rows) < 2:
            return list(map(self._here, rows))
        with self.pool(min(self.workers, len(rows))) as pool:
            places = [[worker] for worker in pool.workers]
            found = dict(judge_at_once(enumerate(rows), places, self._each, partial(stop_workers, places)))
        return [found[number] for number in range(len(rows))]

    def _each(self, rows: Iterable[tuple[int, MatchedRow]], workers: Sequence[Worker]) -> Iterator[tuple[int, Found]]:
        (worker,) = workers
        for number, row in rows:
            worker.load(row.task.exact, row.task.module)
            yield number, self._asked(row, worker)

    def _asked(self, row: MatchedRow, worker: Worker) -> Found:
        kind, found = worker.ask(("look", row.task.exact, self.target, row.record), _LIMIT_S)
        return self._kept(row, found) if kind == "ok" else ("", "", "")

    def _here(self, row: MatchedRow) -> Found:
        session = LookingSession(self.published, None)
        session.task(row.task.exact, row.task.module)
        return self._kept(row, session.look(row.task.exact, self.target, row.record))

    def _told(self, row: MatchedRow) -> Found | None:
        return None if self.folder is None else KeptBuilds(self.folder).read_found(self._name(row))

    def _kept(self, row: MatchedRow, found: Found) -> Found:
        if self.folder is not None:
            KeptBuilds(self.folder).keep_found(self._name(row), found)
        return found

    def _name(self, row: MatchedRow) -> str:
        assert self.folder is not None
        return KeptBuilds(self.folder).name(self.target, row.tuner, row.record)


def _row(row: MatchedRow, found: Found) -> PackagedRow:
    choice, text, own = found
    rule = JudgedRule(choice=choice, text=text, run_s=1.0)
    same = bool(own) and own == text
    return PackagedRow(tuner=row.tuner, record=row.record, task=row.task, rule=rule, known=row.known, same=same)
