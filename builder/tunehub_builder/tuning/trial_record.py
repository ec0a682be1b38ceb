"""A trial's candidate as a record in the format of packages, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from tunehub_builder.tuning.journal import KnobChoice, Trial
from tunehub_builder.tuning.work_directory import TaskEntry
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.template_record import TemplateRecord


def record_of(
    task: TaskEntry, candidate: Any, run_s: tuple[float, ...], source: str, default_s: float | None = None
) -> AnyRecord:
    """The candidate, a trace or a choice of knobs, as a record. ``run_s`` and ``default_s`` in seconds."""
    common: dict[str, Any] = {
        "exact": task.exact,
        "anchor": task.anchor,
        "op_class": task.op_class,
        "extents": task.extents,
        "anchor_class": task.anchor_class,
        "anchor_extents": task.anchor_extents,
        "op": task.name,
        "run_s": run_s,
        "default_s": default_s,
        "networks": tuple(sorted(task.counts)),
        "source": source,
    }
    if isinstance(candidate, KnobChoice):
        return TemplateRecord(**msgspec.to_builtins(candidate), **common)
    return ScheduleRecord(trace=tuple(candidate), **common)


def candidate_of(record: AnyRecord) -> Any:
    """The record's trace or choice of knobs, as a worker builds it."""
    if isinstance(record, TemplateRecord):
        return KnobChoice(template=record.template, version=record.version, knobs=dict(record.knobs))
    return list(record.trace)


def as_trial(record: AnyRecord) -> Trial:
    """The record as a trial that was measured."""
    found = candidate_of(record)
    kind = "choice" if isinstance(found, KnobChoice) else "trace"
    return Trial(task=record.exact, source=record.source, run_s=record.run_s, **{kind: found})
