"""Warm start: the first trials of a task are what a registry's records propose for it.

Records of the very workload come first, then those with its anchor block, then those of its operator class at other
shapes, adapted as a compile adapts them. All are measured like any other candidate: what does not carry over costs a
trial and nothing else. The searches that follow count them among their trials: knob search and sketches go on around
the best of them, and evolutionary search has them in its population.

Records come from the port of compiling, :class:`tunehub.records.lookup.RecordLookup`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.compiler.schedule.apply import apply_candidate
from tunehub.compiler.schedule.transfer_sources import most_efficient, nearest
from tunehub.kernels.template_fit import TemplateFit
from tunehub.records.lookup import Candidate, Neighbour, RecordLookup
from tunehub.tir.operator_class import OperatorClass, anchor_class_of, class_of
from tunehub.tir.traces import export_trace
from tunehub_builder.tuning.journal import KnobChoice, Trial
from tunehub_builder.tuning.search.knobs import choice_id
from tunehub_builder.tuning.search.strategy import REGISTRY, SearchStrategy, trace_id
from tunehub_builder.tuning.space.register_tiles import register_tile
from tunehub_builder.tuning.tasks import TuningTask
from tunehub_builder.tuning.trial_record import candidate_of
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.template_record import TemplateRecord
from tunehub_registry.trace_rules import validate_trace

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PortableTrace

ANCHORED, TRANSFERRED = 4, 4  # most candidates of a task by its anchor block, and by its operator class
_TRIED = 6  # times as many records are read: some cannot be adapted, and many agree


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownCandidates:
    """Records that were found in one way, ``how``; at most ``most`` of them become seeds."""

    how: str
    most: int
    candidates: Iterable[Candidate]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seed:
    """A candidate for a task, a trace or a choice of knobs; ``source`` is what the journal says of its trial."""

    candidate: Any
    source: str


class SeedSearch:
    """Seeds of one source as a search: each is proposed once."""

    def __init__(self, name: str, candidates: Sequence[Any]) -> None:
        self.name = name
        self._candidates = {candidate_id(candidate): candidate for candidate in candidates}

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """As the port of the searches says."""
        known = {candidate_id(trial.candidate) for trial in trials}
        return [candidate for key, candidate in self._candidates.items() if key not in known][:limit]


def searches(seeds: Iterable[Seed]) -> list[tuple[SearchStrategy, int]]:
    """The seeds as the first searches of a task, one for each source, each with its most trials."""
    by_source: dict[str, list[Any]] = defaultdict(list)
    for seed in seeds:
        by_source[seed.source].append(seed.candidate)
    return [(SeedSearch(source, candidates), len(candidates)) for source, candidates in by_source.items()]


def seeds_of(task: TuningTask, target: Target, records: RecordLookup, *, knobs: bool) -> list[Seed]:
    """What ``records`` propose for ``task``, the most promising first and each design once: of sketches with the same
    register tile the search that follows measures the variations.

    ``knobs``: choices of knobs for the task's template, made of the records of the tuner `template`; otherwise traces,
    made of records of either tuner. A record that does not fit the task is left out.
    """
    return adapted(task.exact, task.mod, target, known_of(task, records, knobs=knobs), knobs=knobs)


def known_of(task: TuningTask, records: RecordLookup, *, knobs: bool) -> list[KnownCandidates]:
    """The records that may suit ``task``, not adapted yet; they can be pickled when their candidates are made lists."""
    return [
        KnownCandidates(how="exact", most=1, candidates=_exact(task, records)),
        KnownCandidates(how="anchor", most=ANCHORED, candidates=_anchored(task, records)),
        KnownCandidates(how="transfer", most=TRANSFERRED, candidates=_transferred(task, records, knobs=knobs)),
    ]


def adapted(exact: str, mod: IRModule, target: Target, known: Iterable[KnownCandidates], *, knobs: bool) -> list[Seed]:
    """The seeds that ``known`` makes for the workload ``mod``, whose exact key is ``exact``: see :func:`seeds_of`."""
    fit = TemplateFit(mod, target)
    found: dict[str, Seed] = {}
    for group in known:
        before = len(found)
        for item in group.candidates:
            candidate = _adapted(exact, mod, item, target, fit, knobs=knobs)
            if candidate is not None:
                seed = Seed(candidate=candidate, source=source_of(item.package, group.how))
                found.setdefault(_design(candidate), seed)
            if len(found) - before == group.most:
                break
    return list(found.values())


def ranked(own: OperatorClass, neighbours: Iterable[Neighbour]) -> list[Neighbour]:
    """The neighbours that are of this class indeed, each once: in turns the one with the most steps a second on its own
    shape, and the nearest. Where the two disagree, measuring decides."""
    comparable = [other for other in neighbours if own.same_shape(other.extents) is not None]
    pairs = zip(most_efficient(own, comparable), nearest(own, comparable), strict=True)
    return list({id(other): other for pair in pairs for other in pair}.values())


def source_of(package: str, how: str) -> str:
    """What the journal says of a seed's trial: `registry llvm-znver5 0.3.0, anchor`. A file of records is named without
    its folder, because sources are published."""
    return f"{REGISTRY} {Path(package).name[:200]}, {how}"


def candidate_id(candidate: Any) -> str:
    """A text that is equal for equal candidates, traces or choices of knobs."""
    return choice_id(candidate) if isinstance(candidate, KnobChoice) else trace_id(candidate)


def _design(candidate: Any) -> str:
    tile = None if isinstance(candidate, KnobChoice) else register_tile(candidate)
    return candidate_id(candidate) if tile is None else str(tile)


def _exact(task: TuningTask, records: RecordLookup) -> Iterator[Candidate]:
    found = records.by_exact(task.exact)
    if found is not None:
        yield found


def _anchored(task: TuningTask, records: RecordLookup) -> Iterator[Candidate]:
    for found in records.by_anchor(task.anchor) if task.anchor else ():
        if found.record.exact != task.exact:
            yield found


def _transferred(task: TuningTask, records: RecordLookup, *, knobs: bool) -> Iterator[Candidate]:
    """Records of the function's class, then of its anchor block's; not those that its keys find."""
    chosen: list[Neighbour] = []
    for own in (class_of(task.mod), anchor_class_of(task.mod)):
        if own is not None:
            chosen += ranked(own, (other for other in records.by_class(own.key) if other.knobs or not knobs))
    for neighbour in chosen[: _TRIED * TRANSFERRED]:
        found = neighbour.read()
        if found is not None and found.record.exact != task.exact and (found.record.anchor or "") != task.anchor:
            yield found


def _adapted(
    exact: str, mod: IRModule, found: Candidate, target: Target, fit: TemplateFit, *, knobs: bool
) -> Any | None:
    """The record as a candidate of the workload; None when it does not fit it, or could not be published afterwards."""
    record = found.record
    if knobs and not isinstance(record, TemplateRecord):
        return None
    try:
        schedule = apply_candidate(mod, found, target, fit)
        if knobs and isinstance(record, TemplateRecord):
            return candidate_of(record)
        trace: PortableTrace = export_trace(schedule.trace)
        if isinstance(record, ScheduleRecord) and record.exact == exact:
            trace = candidate_of(record)  # as it was measured
        validate_trace(trace)
        return trace
    except Exception:  # TVM raises many kinds for a trace that does not fit
        return None
