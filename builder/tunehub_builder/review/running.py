"""The checks of a submission that need TVM, in a worker process: keys, replay, outputs, and times beside the roofline.

Functions and records pass the rules first (:mod:`tunehub.tir.workload`, the allow-list). Code that passes can still
leave its buffers: review what strangers send on a machine without secrets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.comparison.difference import difference_reason
from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, WorkerProcess
from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.exceptions import TuningError
from tunehub_builder.review.contents import SubmittedContents
from tunehub_builder.review.roofline import ceiling_of
from tunehub_builder.submission.session import (
    ComputedOutputs,
    SubmissionSession,
    WorkloadFacts,
    record_line,
    samples_apart,
    sizes_to_run,
)
from tunehub_builder.tuning.target import HOST
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.review import ReviewFinding
from tunehub_registry.submission import NetworkTimes, OutputDigest, Values, WorkloadComparison

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike

_LIMIT_S = 240.0
_MOST_OPERATIONS = 2e10  # of plain loops, which do about 1e9 a second


@dataclass(kw_only=True)
class RunChecks:
    """Findings by check; ``compared`` outputs, of which ``by_record`` were computed by the record here, and ``whole``
    in all their numbers beside those of TVM's default here, or of a schedule of tunehub's own rules."""

    workloads: list[ReviewFinding]
    replay: list[ReviewFinding]
    roofline: list[ReviewFinding]
    outputs: list[ReviewFinding]
    compared: int = 0
    by_record: int = 0
    whole: int = 0
    nearest: float = 0.0

    @property
    def by_name(self) -> Mapping[str, Sequence[ReviewFinding]]:
        """The findings by the check's name."""
        return {name: getattr(self, name) for name in ("workloads", "replay", "roofline", "outputs")}


def run_checks(contents: SubmittedContents, threads: int, show: Callable[[int, int], None]) -> RunChecks:
    """Check every record in a process of its own. Raises OSError when no process can be started."""
    found = RunChecks(workloads=[], replay=[], roofline=[], outputs=[])
    worker = WorkerProcess(SubmissionSession, threads=threads, log=os.devnull, without=SLOW_OPTIONAL_MODULES)
    floors: dict[str, float] = {}
    try:
        for position, record in enumerate(contents.records, 1):
            try:
                _RecordCheck(contents, record, worker, found).run(floors)
            except _FindingError as error:
                error.checked.append(ReviewFinding(where=record.exact, reason=str(error)[:1000]))
            show(position, len(contents.records))
    finally:
        worker.stop(at_once=True)
    found.roofline += _impossible_networks(contents, floors)
    return found


class _FindingError(Exception):
    def __init__(self, checked: list[ReviewFinding], reason: object) -> None:
        super().__init__(str(reason))
        self.checked = checked


class _RecordCheck:
    """One record in the worker."""

    def __init__(
        self, contents: SubmittedContents, record: AnyRecord | LadderRecord, worker: WorkerProcess, found: RunChecks
    ) -> None:
        self._contents, self._record, self._worker, self._found = contents, record, worker, found

    def run(self, floors: dict[str, float]) -> None:
        """All checks; the first that speaks against the record ends them. Raises _FindingError."""
        record, found = self._record, self._found
        workload = self._contents.workloads.get(record.exact)
        if workload is None:
            raise _FindingError(found.workloads, "its workload is missing")
        key = self._ask(found.workloads, "open", workload.function)
        if key != record.exact:
            raise _FindingError(found.workloads, f"the function's key is {key}")
        facts = self._checked_facts(floors)
        target = _target_of(self._contents)
        if target is not None:
            self._ask(found.replay, "replay", target, record_line(record))
        for at in sizes_to_run(record):
            self._check_outputs(facts[at], target, at)

    def _checked_facts(self, floors: dict[str, float]) -> dict[Values, WorkloadFacts]:
        """Of a static workload, or of a symbolic one at each size that its ladder was measured at. Raises _FindingError
        for a time that is too short, and for another workload than the ladder names."""
        record, found = self._record, self._found
        if not isinstance(record, LadderRecord):
            facts = self._ask(found.workloads, "facts")
            floors[record.exact] = self._check_time(facts, min(record.run_s), record)
            return {(): facts}
        sized: dict[Values, WorkloadFacts] = {}
        for times in record.times:
            facts = sized[times.at] = self._ask(found.workloads, "facts", times.at)
            if times.exact not in (None, facts.exact):
                raise _FindingError(found.workloads, f"at {times.at} the function's key is {facts.exact}")
            self._check_time(facts, times.run_s, None)
        return sized

    def _check_time(self, facts: WorkloadFacts, run_s: float, record: AnyRecord | None) -> float:
        """The least seconds of the workload. Raises _FindingError for a time below it."""
        contents, exact = self._contents, self._record.exact
        comparison = next(
            (c for c in contents.comparisons if isinstance(c, WorkloadComparison) and c.exact == exact), None
        )
        threads = max(contents.manifest.provenance.threads, comparison.threads if comparison else 1)
        ceiling = ceiling_of(contents.manifest.target, threads, facts.types, contents.profile)
        winograd = "winograd" in str(getattr(record, "template", ""))
        least_s = ceiling.least_s(facts.operations, facts.moved, winograd=winograd)
        trials = [min(t.run_s) for t in contents.trials if t.exact == exact and t.run_s and record is not None]
        fastest = min([run_s, *trials])
        if fastest < least_s:
            reason = f"{fastest:.3g} s is faster than physically possible: {least_s:.3g} s ({ceiling.source})"
            raise _FindingError(self._found.roofline, reason)
        return least_s

    def _check_outputs(self, facts: WorkloadFacts, target: TargetLike, at: Values) -> None:
        record, found = self._record, self._found
        stated = self._contents.outputs.get((record.exact, at))
        if stated is None:
            raise _FindingError(found.outputs, f"there are no outputs of it{f' at {at}' if at else ''}")
        if target is not None:
            computed = self._computed(target, record_line(record), stated)
            self._compare(computed, stated, facts, "the record gives here")
            found.by_record += 1
        if facts.operations <= _MOST_OPERATIONS:
            host = find_relax_target(HOST).config
            computed = self._computed(host, None, stated)
            self._compare(computed, stated, facts, "TVM's default gives")
            self._check_whole(computed.apart, facts, "TVM's default")
        elif target is not None:
            by_rules = self._ask(found.outputs, "outputs_by_rules", target, at, stated.kind)
            self._check_whole(by_rules and by_rules.apart, facts, "tunehub's own schedule")
        found.compared += target is not None or facts.operations <= _MOST_OPERATIONS

    def _computed(self, target: TargetLike, line: bytes | None, stated: OutputDigest) -> ComputedOutputs:
        computed: ComputedOutputs = self._ask(self._found.outputs, "outputs", target, line, stated.at, stated.kind)
        if computed.inputs != stated.inputs:
            raise _FindingError(self._found.outputs, "its inputs are not those of the seed")
        return computed

    def _compare(self, computed: ComputedOutputs, stated: OutputDigest, facts: WorkloadFacts, who: str) -> None:
        if len(computed.outputs) != len(stated.outputs):
            raise _FindingError(self._found.outputs, f"{len(stated.outputs)} outputs are stated")
        apart = max(map(samples_apart, stated.outputs, computed.outputs))
        self._found.nearest = max(self._found.nearest, apart)
        if difference_reason(apart, facts.tolerance) is not None:
            reason = f"the stated output differs by {apart:.2g} from what {who}; the most is {facts.tolerance:.2g}"
            raise _FindingError(self._found.outputs, reason)

    def _check_whole(self, apart: float | None, facts: WorkloadFacts, other: str) -> None:
        """A submission states some numbers of each output; what was computed here is compared in all of them."""
        if apart is None:
            return
        self._found.whole += 1
        self._found.nearest = max(self._found.nearest, apart)
        if difference_reason(apart, facts.tolerance) is not None:
            reason = f"all numbers compared, what the record gives here differs by {apart:.2g} from {other}"
            raise _FindingError(self._found.outputs, f"{reason}; the most is {facts.tolerance:.2g}")

    def _ask(self, checked: list[ReviewFinding], request: str, *arguments: Any) -> Any:
        if not self._worker.alive:
            self._worker.start()
        kind, value = self._worker.ask((request, self._record.exact, *arguments), _LIMIT_S)
        if kind != "ok":
            raise _FindingError(checked, value)
        return value


def _target_of(contents: SubmittedContents) -> Any:
    """The package's target as TVM's JSON where this machine can run its code; None elsewhere."""
    try:
        return find_relax_target(contents.manifest.name).config
    except TuningError:
        return None


def _impossible_networks(contents: SubmittedContents, floors: Mapping[str, float]) -> list[ReviewFinding]:
    """Networks that took less than the least times of their workloads together."""
    found = []
    for each in contents.comparisons:
        if not isinstance(each, NetworkTimes) or not each.tuned_s:
            continue
        counts = {w.exact: w.counts.get(each.network, 0) for w in contents.workloads.values()}
        least_s = sum(floors.get(exact, 0.0) * count for exact, count in counts.items())
        if min(each.tuned_s) < least_s:
            reason = f"{min(each.tuned_s):.3g} s is faster than its workloads can be: {least_s:.3g} s"
            found.append(ReviewFinding(where=each.network, reason=reason))
    return found
