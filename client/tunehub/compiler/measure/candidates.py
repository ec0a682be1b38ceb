"""Which schedules of a workload are worth measuring here: records that are candidates, made for this very workload.

The first is what a compile would use without measuring. Then the other knobs of the template that recognises the
workload, the nearest to its default knobs first, take turns with the records of neighbours, those first that the model
of :mod:`tunehub.compiler.schedule.transfer_sources` finds fastest: adapted traces, and knobs of the same template. What
is measured is a record, so that what is remembered of the winner is what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.comparison.difference import tolerance
from tunehub.compiler.schedule.apply import apply_candidate
from tunehub.compiler.schedule.request import Scheduled
from tunehub.compiler.schedule.transfer_sources import by_model
from tunehub.kernels.cpu.base import knob_distance
from tunehub.kernels.template_fit import TemplateFit
from tunehub.records.index import MEASURED
from tunehub.tir.keys import anchor_key
from tunehub.tir.nodes import buffer_shapes
from tunehub.tir.operator_class import anchor_class_of, class_fields, class_of
from tunehub.tir.traces import export_trace
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.kernels.cpu import Match
    from tunehub.kernels.cpu.base import Knobs
    from tunehub.records.lookup import Candidate, RecordLookup
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

_Schedule = dict[str, Any]  # the fields of a record that say how to schedule


@dataclass(frozen=True, kw_only=True)
class Task:
    """A workload to measure: ``mod`` has it as ``main``. ``records`` are the candidates, whose times are yet unknown.

    ``chosen``: the first of them is what would be used without measuring, else that is TVM's default. Outputs may
    differ by ``tolerance`` from the default's, relative to the largest of them.
    """

    exact: str
    name: str
    mod: IRModule
    records: tuple[AnyRecord, ...]
    chosen: bool
    tolerance: float


def task_of(
    name: str, mod: IRModule, target: Target, lookup: RecordLookup, outcome: Scheduled, limit: int
) -> Task | None:
    """The workload ``mod`` with at most ``limit`` candidates; None when there are none.

    ``outcome``: what is used without measuring.
    """
    fit = TemplateFit(mod, target)
    chosen = _chosen(outcome, fit)
    others = _alternating(_knobs(fit), _neighbours(mod, target, lookup, fit))
    schedules = _distinct([chosen] if chosen else [], others)
    common = {"exact": outcome.exact, "anchor": anchor_key(mod), **class_fields(mod), "op": name, "run_s": (1.0,)}
    records = tuple(_record(common, schedule) for schedule in islice(schedules, limit))
    if not records:
        return None
    return Task(
        exact=outcome.exact,
        name=name,
        mod=mod,
        records=records,
        chosen=chosen is not None,
        tolerance=tolerance((dtype for _, dtype in buffer_shapes(mod["main"])), "narrow sums"),
    )


def default_record(exact: str, name: str, run_s: float) -> ScheduleRecord:
    """The record that says: leave this workload as it is, TVM's default is the fastest. ``run_s``: its time.

    Its trace does nothing. It has no keys but the exact one, since it says nothing about other workloads, and no time
    of the default, which it would have to beat.
    """
    return ScheduleRecord(exact=exact, op=name, run_s=(run_s,), source=MEASURED, trace=([], []))


def _chosen(outcome: Scheduled, fit: TemplateFit) -> _Schedule | None:
    """What ``outcome`` uses, as fields of a record for this workload; None for TVM's default."""
    served = outcome.served
    if served is None:
        return None
    if served.rung == "template" and fit.match is not None:
        return _of_template(fit.match, fit.knob_space(fit.match)[0])
    if isinstance(served.record, TemplateRecord):
        return _of_record(served.record)
    return {"trace": tuple(export_trace(served.schedule.trace))}


def _knobs(fit: TemplateFit) -> Iterator[_Schedule]:
    """The knobs of the template that fits, its default knobs first, then those that differ least from it."""
    match = fit.match
    if match is None:
        return
    space = [_of_template(match, knobs) for knobs in fit.knob_space(match)]
    yield from sorted(space, key=lambda choice: knob_distance(choice["knobs"], space[0]["knobs"]))  # stable


def _neighbours(mod: IRModule, target: Target, lookup: RecordLookup, fit: TemplateFit) -> Iterator[_Schedule]:
    """What the records of other shapes make of this one: of the same class first, then around the same heavy block."""
    for find in (class_of, anchor_class_of):
        own = find(mod)
        known = [] if own is None else lookup.by_class(own.key)
        comparable = [other for other in known if own is not None and own.same_shape(other.extents) is not None]
        for neighbour in by_model(own, comparable) if own is not None else ():
            candidate = neighbour.read()
            record = None if candidate is None else candidate.record
            if isinstance(record, TemplateRecord):
                if fit.match is not None and record.template == fit.match.template.NAME:
                    yield _of_record(record)
            elif candidate is not None:
                yield from _adapted(mod, target, candidate, fit)


def _adapted(mod: IRModule, target: Target, candidate: Candidate, fit: TemplateFit) -> Iterator[_Schedule]:
    """The trace of a record adapted to ``mod``, if it can be."""
    try:
        yield {"trace": tuple(export_trace(apply_candidate(mod, candidate, target, fit).trace))}
    except Exception:  # TVM raises many kinds for a trace that does not fit: it is no candidate
        return


def _of_template(match: Match, knobs: Knobs) -> _Schedule:
    template = match.template
    return {"template": template.NAME, "version": template.VERSION, "knobs": msgspec.to_builtins(knobs)}


def _of_record(record: TemplateRecord) -> _Schedule:
    return {"template": record.template, "version": record.version, "knobs": dict(record.knobs)}


def _record(common: Mapping[str, Any], schedule: _Schedule) -> AnyRecord:
    kind = ScheduleRecord if "trace" in schedule else TemplateRecord
    return kind(**common, **schedule, source=MEASURED)


def _alternating(*sources: Iterator[_Schedule]) -> Iterator[_Schedule]:
    for turn in zip_longest(*sources):
        yield from (item for item in turn if item is not None)


def _distinct(first: Sequence[_Schedule], others: Iterator[_Schedule]) -> Iterator[_Schedule]:
    seen: set[bytes] = set()
    for items in (first, others):
        for schedule in items:
            text = msgspec.json.encode(schedule, order="deterministic")
            if text not in seen:
                seen.add(text)
                yield schedule
