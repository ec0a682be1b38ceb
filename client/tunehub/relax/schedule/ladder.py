"""One function of current TVM: find its records, apply the first that fits, and say what happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tunehub.cuda import tiles as cuda_tiles
from tunehub.exceptions import TunehubError, last_line
from tunehub.records.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub.records.never_worse import against_borrowing, against_own_knobs, against_record
from tunehub.relax.keys import anchor_key, workload_key
from tunehub.relax.postprocess import postprocess
from tunehub.relax.schedule.guard import (
    GuardError,
    anchor_writes_parameter,
    changes_layout,
    check_exact,
    check_features,
    check_function,
    check_operations,
    check_rows,
    check_tiles,
    layout_provider,
)
from tunehub.relax.schedule.operator_class import anchor_class_of, class_of
from tunehub.relax.schedule.template_fit import TemplateFit
from tunehub.relax.schedule.transfer import check_vectors, fitted_to_anchor, is_tensorized, transfer
from tunehub.relax.schedule.transfer_sources import Transfers, predicted_s, promising
from tunehub.relax.traces import import_trace
from tunehub.templates import KnobError
from tunehub_registry.template_record import TemplateRecord
from tunehub_registry.trace_rules import required_features

if TYPE_CHECKING:
    from tunehub.records.lookup import Candidate, Neighbour, RecordLookup, Rung
    from tunehub.templates import Match
    from tunehub_registry.any_record import AnyRecord

DEFAULT_TRANSFERS = Transfers()
GENERAL_TEMPLATES = frozenset({"loops"})  # for whatever nothing else fits: a neighbour's tuned schedule comes before


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduled:
    """What :func:`schedule_module` did. ``record`` served; ``schedule`` and ``rung`` are None when nothing did.

    ``template``: the template that made the schedule, with a record's knobs or on the rung ``template`` with its own.
    ``default_s`` is the record's, or without a schedule what was measured to be the best.
    On the rung ``transfer`` nobody has measured the schedule: ``source`` is the workload that the record was tuned for,
    ``predicted_s`` what its time is expected to be here.
    """

    exact: str
    anchor: str | None
    schedule: Any | None = None
    rung: Rung | Literal["template"] | None = None
    package: str | None = None
    run_s: float | None = None
    default_s: float | None = None
    skipped: tuple[str, ...] = ()
    template: str | None = None
    source: str | None = None
    predicted_s: float | None = None
    record: AnyRecord | None = None


def schedule_module(mod: Any, target: Any, lookup: RecordLookup) -> Scheduled:
    """Schedule ``mod``, an IRModule with one PrimFunc ``main``, by the best record of ``lookup`` that applies.

    Order: exact records, then records of the same anchor block. A record that is malformed, illegal here or refused
    by TVM is skipped with its reason; nothing is raised for a bad record.
    """
    return _by_records(mod, target, lookup, TemplateFit(mod, target))


def _by_records(mod: Any, target: Any, lookup: RecordLookup, fit: TemplateFit) -> Scheduled:
    exact = workload_key(mod)
    skipped: list[str] = []
    candidate = lookup.by_exact(exact)
    if candidate is not None:
        schedule = _try(mod, candidate, target, fit, skipped)
        if schedule is not None:
            return _served(schedule, candidate, exact, None, skipped)
    anchor = anchor_key(mod)
    for candidate in lookup.by_anchor(anchor) if anchor else ():
        against = against_borrowing(lookup.measured(_tuner(candidate.record), exact))
        if against is not None:
            skipped += [against] if against not in skipped else []
            continue
        schedule = _try(mod, candidate, target, fit, skipped)
        if schedule is not None:
            return _served(schedule, candidate, exact, anchor, skipped)
    return Scheduled(exact=exact, anchor=anchor, skipped=tuple(skipped))


def _tuner(record: AnyRecord) -> str:
    return TEMPLATE if isinstance(record, TemplateRecord) else META_SCHEDULE


def _by_default_knobs(mod: Any, target: Any, lookup: RecordLookup, fit: TemplateFit, missed: Scheduled) -> Scheduled:
    """``missed`` with the schedule of the template that fits, if one does and nothing speaks against it."""
    match, measured = None, lookup.measured(TEMPLATE, missed.exact)
    try:
        match = fit.match
        if match is None:
            return missed
        if measured is not None and (against := against_own_knobs(measured, match.template.NAME)):
            missed = replace(missed, default_s=measured.evidence.default_s)
            raise KnobError(against)
        schedule = fit.by_promising_default(match)
        check_function(schedule.mod["main"], mod["main"], target)
    except Exception as error:  # TVM raises many kinds for a schedule that does not fit
        what = "templates" if match is None else f"default knobs of {match.template.NAME}"
        return replace(missed, skipped=(*missed.skipped, f"{what}: {last_line(error, limit=200)}"))
    return replace(missed, schedule=schedule, rung="template", template=match.template.NAME)


def _without_record(
    mod: Any, target: Any, lookup: RecordLookup, fit: TemplateFit, missed: Scheduled, transfers: Transfers
) -> Scheduled:
    """Without a record for this function: a template made for its operator, a record for other shapes, any template."""
    match = _matched(fit)
    expert = match is not None and match.template.NAME not in GENERAL_TEMPLATES
    outcome = _by_neighbours(mod, target, lookup, fit, missed, transfers, knobs=expert)
    if outcome.schedule is not None:
        return outcome
    if target.kind.name == "cuda":
        return _by_cuda_rule(mod, target, lookup, outcome)
    return _by_default_knobs(mod, target, lookup, fit, outcome)


def _by_cuda_rule(mod: Any, target: Any, lookup: RecordLookup, missed: Scheduled) -> Scheduled:
    """``missed`` with a schedule by the rule for CUDA, if there is one that promises to beat TVM's own."""
    try:
        found = cuda_tiles.by_rule(mod, target)
        against = against_borrowing(lookup.measured(META_SCHEDULE, missed.exact))
        if found is not None and against is not None:
            raise KnobError(against)
    except Exception as error:  # TVM raises many kinds for a schedule that does not fit
        reason = f"default knobs of {cuda_tiles.NAME}: {last_line(error, limit=200)}"
        return replace(missed, skipped=tuple(dict.fromkeys((*missed.skipped, reason))))
    if found is None:
        return missed
    schedule, expected_s = found
    return replace(missed, schedule=schedule, rung="template", template=cuda_tiles.NAME, predicted_s=expected_s)


def _matched(fit: TemplateFit) -> Match | None:
    try:
        return fit.match
    except Exception:  # what it is is said when default knobs are tried
        return None


def _by_neighbours(
    mod: Any,
    target: Any,
    lookup: RecordLookup,
    fit: TemplateFit,
    missed: Scheduled,
    transfers: Transfers,
    *,
    knobs: bool,
) -> Scheduled:
    """``missed`` with the schedule of a record of the same operator class, if one can be adapted and is worth it."""
    skipped = list(missed.skipped)
    try:
        chosen = _chosen(mod, lookup, transfers, knobs=knobs)
    except TunehubError:
        raise  # strict mode
    except Exception as error:  # a strategy or a class that fails must not cost the rungs that follow
        return replace(missed, skipped=(*skipped, f"records for other shapes: {last_line(error, limit=200)}"))
    against = against_borrowing(lookup.measured(TEMPLATE if knobs else META_SCHEDULE, missed.exact)) if chosen else None
    if against is not None:
        return replace(missed, skipped=tuple(dict.fromkeys((*skipped, against))))
    for neighbour, expected_s in chosen:
        candidate = neighbour.read()
        schedule = None if candidate is None else _try(mod, candidate, target, fit, skipped)
        if candidate is not None and schedule is not None:
            return replace(
                missed,
                schedule=schedule,
                rung="transfer",
                package=candidate.package,
                skipped=tuple(skipped),
                template=candidate.record.template if isinstance(candidate.record, TemplateRecord) else None,
                source=candidate.record.op,
                predicted_s=expected_s,
                record=candidate.record,
            )
    return replace(missed, skipped=tuple(skipped))


def _chosen(mod: Any, lookup: RecordLookup, transfers: Transfers, *, knobs: bool) -> list[tuple[Neighbour, float]]:
    """The neighbours to try, best first, and the seconds that each promises; either those with knobs or with traces.

    Those of the function's class; when none promises anything, those of its anchor block's.
    """
    strategy = transfers.knobs if knobs else transfers.traces
    if strategy is None:
        return []
    for find in (class_of, anchor_class_of):
        own = find(mod)
        if own is None:
            continue
        known = [other for other in lookup.by_class(own.key) if other.knobs == knobs]
        found = strategy(own, promising(own, known))
        if found:
            return [(other, predicted_s(own, other)) for other in found[: transfers.attempts]]
    return []


def schedule_function(
    function: Any, target: Any, lookup: RecordLookup, *, transfers: Transfers = DEFAULT_TRANSFERS
) -> tuple[Scheduled, Any | None]:
    """Schedule a PrimFunc under any name as :func:`schedule_module`. Without a record for it, by a template made for
    its operator, by a record for other shapes as ``transfers`` says, or by a template for any function.

    Also returns the function scheduled, its name kept, or None.
    """
    import tvm

    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    fit = TemplateFit(mod, target)
    outcome = _by_records(mod, target, lookup, fit)
    if outcome.schedule is None:
        outcome = _without_record(mod, target, lookup, fit, outcome, transfers)
    if outcome.schedule is None:
        return outcome, None
    scheduled = outcome.schedule.mod["main"]
    symbol = function.attrs.get("global_symbol") if function.attrs else None
    if symbol is None:
        return outcome, scheduled.without_attr("global_symbol")
    return outcome, scheduled.with_attr("global_symbol", symbol)


def apply_candidate(mod: Any, candidate: Candidate, target: Any, fit: TemplateFit) -> Any:
    """Return the schedule of ``mod`` by a record that a lookup found, adapted to it and checked; ``fit`` is that of
    ``mod``. Raises KnobError, GuardError, and whatever TVM raises when the record does not fit."""
    record = candidate.record
    if isinstance(record, TemplateRecord):
        schedule = fit.by_record(record)
    else:
        check_features(required_features(record.trace), target)
        schedule = _by_trace(mod, candidate, import_trace(record.trace), target)
    check_function(schedule.mod["main"], mod["main"], target)
    return schedule


def apply_exact(mod: Any, trace: Any) -> Any:
    """Return the schedule of ``mod`` after ``trace`` (a ``tvm.s_tir.Trace``); TVM raises when it does not fit.

    Raises GuardError when the trace changes a layout in a way that gives wrong results.
    """
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask="none", error_render_level="fast")
    provider = layout_provider(schedule) if changes_layout(trace) else None
    trace.apply_to_schedule(schedule, remove_postproc=False, decision_provider=provider)
    return schedule


def apply_transfer(mod: Any, trace: Any, target: Any, *, anchored: bool = False, narrow_vectors: bool = False) -> Any:
    """Return the schedule of ``mod`` after the ``trace`` of a function of the same class with other extents;
    ``anchored``: of another function whose anchor block is of the same class.

    Raises GuardError as :func:`apply_exact`, also for tiles or unrolling that do not suit, and what
    :func:`tunehub.relax.schedule.transfer.transfer` raises; on CPUs also TransferError when vectors would have less
    than half the lanes, and GuardError when they go over the ends of rows, unless ``narrow_vectors``: that is right,
    but slow.
    """
    wide_vectors = target.kind.name == "llvm" and not narrow_vectors
    if wide_vectors:
        check_vectors(mod, trace.simplified(remove_postproc=True))
    schedule = _replayed(mod, (_transfer_around_anchor if anchored else transfer)(mod, trace, target))
    scheduled = schedule.mod["main"]
    check_exact(scheduled)
    check_operations(scheduled)
    if wide_vectors:
        check_rows(scheduled)
    return schedule


def _transfer_around_anchor(mod: Any, trace: Any, target: Any) -> Any:
    from tvm.s_tir import analysis

    block = analysis.find_anchor_sblock(mod)
    if block is None:
        raise ValueError("the function has no anchor block")
    design = fitted_to_anchor(trace.simplified(remove_postproc=True), block)
    fused = any(instruction.kind.name == "GetConsumers" for instruction in design.insts)
    return _apply_design(mod, design, target, epilogue=fused)


def apply_anchor(mod: Any, trace: Any, target: Any) -> Any:
    """Return the schedule of ``mod`` after another function's ``trace`` with the same anchor block.

    On CPUs only the design is taken over; what TVM's postprocessing adds to it (packing of weights, tensorising) is
    made anew, because it refers to the buffers of the other epilogue. Where the anchor block writes a parameter,
    whose layout must stay, it gets a buffer and a copy as its epilogue. When that fails, the whole trace is tried.
    Raises GuardError as :func:`apply_exact`, and what TVM raises when the trace does not fit.
    """
    if target.kind.name == "llvm" and any(inst.kind.name == "EnterPostproc" for inst in trace.insts):
        try:
            return _replayed(mod, _apply_design(mod, trace.simplified(remove_postproc=True), target))
        except Exception:  # TVM raises many kinds for a trace that does not fit
            return _replayed(mod, _apply_around_anchor(mod, trace, target))
    return _replayed(mod, _apply_around_anchor(mod, trace, target))


def _apply_around_anchor(mod: Any, trace: Any, target: Any, *, buffered: bool = False) -> Any:
    from tvm.s_tir import Schedule, analysis
    from tvm.s_tir import meta_schedule as ms

    schedule = Schedule(mod, debug_mask="none", error_render_level="fast")
    if buffered:
        block = analysis.find_anchor_sblock(mod)
        schedule.cache_write(schedule.get_sblock(block.name_hint), 0, "global")
    ms.trace_apply.schedule_using_anchor_trace(schedule, trace, target)
    return schedule


def _apply_design(mod: Any, design: Any, target: Any, *, epilogue: bool = False) -> Any:
    """The schedule after ``design`` and TVM's postprocessing; ``epilogue``: the design needs something to fuse."""
    buffered = (epilogue or changes_layout(design)) and anchor_writes_parameter(mod)
    schedule = _apply_around_anchor(mod, design, target, buffered=buffered)
    postprocess(schedule, mod, target, tensorized=is_tensorized(design))
    return schedule


def _replayed(mod: Any, schedule: Any) -> Any:
    """``schedule`` again with the checks of :func:`apply_exact`, if it changes layouts at all."""
    return apply_exact(mod, schedule.trace) if changes_layout(schedule.trace) else schedule


def _try(mod: Any, candidate: Candidate, target: Any, fit: TemplateFit, skipped: list[str]) -> Any | None:
    record = candidate.record
    try:
        against = against_record(record, borrowed=candidate.anchored) if candidate.rung != "transfer" else None
        if against is not None:
            raise GuardError(against)
        return apply_candidate(mod, candidate, target, fit)
    except Exception as error:  # TVM raises many kinds for a trace that does not fit
        skipped.append(f"{candidate.package}: {record.op}: {last_line(error, limit=200)}")
        return None


def _by_trace(mod: Any, candidate: Candidate, trace: Any, target: Any) -> Any:
    if candidate.rung == "transfer":
        return apply_transfer(mod, trace, target, anchored=candidate.anchored)
    if not (candidate.rung == "anchor" or candidate.anchored):
        return apply_exact(mod, trace)
    schedule = apply_anchor(mod, trace, target)
    if target.kind.name == "llvm":
        check_tiles(schedule.mod["main"])  # the trace knew another epilogue, which may write what other tiles write
    check_operations(schedule.mod["main"])
    return schedule


def _served(schedule: Any, candidate: Candidate, exact: str, anchor: str | None, skipped: list[str]) -> Scheduled:
    return Scheduled(
        exact=exact,
        anchor=anchor,
        schedule=schedule,
        rung=candidate.rung,
        package=candidate.package,
        run_s=min(candidate.record.run_s, default=None),
        default_s=candidate.record.default_s,
        skipped=tuple(skipped),
        template=candidate.record.template if isinstance(candidate.record, TemplateRecord) else None,
        record=candidate.record,
    )
