"""Rows of a package measured on this machine, each beside TVM's default and what a client has without it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder.backends.relax.ladder_gate import LadderVerdict
from tunehub_builder.backends.relax.workload_gate import LIMITS, Verdict, case_of, evidence
from tunehub_builder.gate.again_ladders import compared_ladder, is_ladder_disturbed, ladder_line, ladder_verdict
from tunehub_builder.gate.again_rows import PackagedRow
from tunehub_builder.gate.comparison import ComparedFinalists, plan_for
from tunehub_builder.gate.disturbance import UNJUDGED, is_disturbed
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.gate.places import judge_at_once
from tunehub_builder.gate.workloads import WorkloadCase, judge, stop_workers
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.again_worker import AgainSession, CudaAgainSession
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker, WorkerPool, warm_up
from tunehub_builder.tuning.search.knobs import RULE
from tunehub_builder.tuning.target import TuningTarget
from tunehub_builder.tuning.trial_record import as_trial
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.ladder_record import LadderRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """The verdict on a row, and the evidence: none where other programs disturbed it, and where nothing was measured of
    it and never was."""

    row: PackagedRow
    verdict: LadderVerdict | Verdict
    line: RecordEvidence | None

    @classmethod
    def of(
        cls, row: PackagedRow, verdict: LadderVerdict | Verdict, line: RecordEvidence | None, *, disturbed: bool
    ) -> MeasuredRow:
        """What was measured, and whether others disturbed it."""
        if disturbed:
            return cls(row=row, verdict=msgspec.structs.replace(verdict, admitted=False, reason=UNJUDGED), line=None)
        return cls(row=row, verdict=verdict, line=line)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measuring:
    """How rows are measured: for ``target``, by so many threads, where ``places`` are the workers of each device."""

    target: TuningTarget
    threads: int
    places: Sequence[Sequence[Worker]]

    def rows(self, rows: Sequence[PackagedRow]) -> Iterator[MeasuredRow]:
        """What was measured of each row as it comes."""
        return judge_at_once(rows, self.places, self._each, partial(stop_workers, self.places))

    def _each(self, rows: Iterable[PackagedRow], workers: Sequence[Worker]) -> Iterator[MeasuredRow]:
        for are_ladders, some in groupby(rows, lambda row: isinstance(row.record, LadderRecord)):
            if are_ladders:
                yield from (self._ladder(row, workers) for row in some)
            else:
                yield from self._static(some, workers)

    def _static(self, rows: Iterable[PackagedRow], workers: Sequence[Worker]) -> Iterator[MeasuredRow]:
        for row, verdict in judge(map(self._case, rows), workers, LIMITS):
            yield MeasuredRow.of(row, verdict, judged_line(verdict, row), disturbed=is_verdict_disturbed(verdict))

    def _case(self, row: PackagedRow) -> WorkloadCase[tuple[PackagedRow, Verdict]]:
        assert not isinstance(row.record, LadderRecord)
        entry = Distilled(task=row.task, best=(as_trial(row.record),), trials=1, beside_rule=True)
        plan = plan_for(str(self.target.config.get("kind")))
        case = case_of(entry, self.target.config, self.threads, plan)

        def verdict(compared: ComparedFinalists) -> tuple[PackagedRow, Verdict]:
            return row, case.verdict(compared)

        return replace(case, verdict=verdict)  # type: ignore[return-value, arg-type]

    def _ladder(self, row: PackagedRow, workers: Sequence[Worker]) -> MeasuredRow:
        assert isinstance(row.record, LadderRecord)
        compared = compared_ladder(row.record, row.task, self.target.config, workers)
        verdict = ladder_verdict(row.record, compared, self.threads)
        line = ladder_line(verdict, row.rule, row.known)
        return MeasuredRow.of(row, verdict, line, disturbed=is_ladder_disturbed(compared))


def candidates_of(row: PackagedRow) -> list[Any]:
    """What is measured beside TVM's default: the row, and what a client has without it."""
    own = row.record if isinstance(row.record, LadderRecord) else as_trial(row.record).candidate
    return [own, RULE]


@contextmanager
def again_pool(
    target: TuningTarget,
    folder: Path,
    published: PublishedProfile | None,
    resources: Resources,
    built: Path | None = None,
) -> Iterator[WorkerPool]:
    """Workers that build records of any kind, and what rules have by the ``published`` rates; on a GPU they load what
    was ``built`` ahead. Raises TuningError."""
    from tunehub_builder.tuning.runner.cuda_worker import gpu_lock

    on_cuda = target.config.get("kind") == "cuda"
    on_gpu = partial(CudaAgainSession, gpu_lock(folder), folder=built)
    session: Any = on_gpu if on_cuda else partial(AgainSession, published)
    options = PoolOptions(workers=resources.workers, threads=resources.threads, log=str(folder / "native.log"))
    with WorkerPool(options, target.config, make_session=session) as pool:
        warm_up(pool.workers, target.config)
        yield pool


def again_places(kind: str, pool: WorkerPool) -> Sequence[Sequence[Worker]]:
    """Who judges apart from the others: on a GPU, which whoever measures has locked, each worker."""
    return [[worker] for worker in pool.workers] if kind == "cuda" else [pool.workers]


def is_verdict_disturbed(verdict: Verdict) -> bool:
    """Whether times were so far apart that they say nothing for or against a row: it is judged another time."""
    samples = [verdict.default_s, *(finalist.run_s for finalist in verdict.finalists)]
    return any(map(is_disturbed, samples))


def judged_line(verdict: Verdict, row: PackagedRow) -> RecordEvidence | None:
    """The evidence on a row: what was measured with its rule's time, or that it is not admitted, and why; None where
    nothing was measured of it, and never was."""
    line = evidence(verdict)
    if line is None:
        return None if row.known is None else msgspec.structs.replace(row.known, admitted=False, reason=verdict.reason)
    own_s = verdict.finalists[-1].run_s or verdict.default_s  # without a rule a client has TVM's default
    rule = msgspec.structs.replace(row.rule, run_s=statistics.median(own_s))
    said = {} if row.known is None else {name: getattr(row.known, name) for name in ("trials", "space", "template")}
    untuned = {"untuned_s": rule.run_s} if said.get("template") else {}
    tuner = UNSET if row.tuner == META_SCHEDULE else row.tuner
    return msgspec.structs.replace(line, tuner=tuner, rule=rule, **said, **untuned)
