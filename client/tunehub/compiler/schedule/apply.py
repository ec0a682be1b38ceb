"""How a record's trace or knobs become the schedule of one function, checked: an exact record's, one of the same anchor
block, one for other shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.transfer.trace import check_vectors, fitted_to_anchor, is_tensorized, replayed, transfer
from tunehub.tir.first_terms import check_first_terms
from tunehub.tir.guard import (
    check_exact,
    check_features,
    check_function,
    check_headers,
    check_operations,
    check_order,
    check_rows,
    check_tiles,
)
from tunehub.tir.layout_guard import anchor_writes_parameter, changes_layout, layout_provider, needs_provider
from tunehub.tir.postprocess import postprocess
from tunehub.tir.traces import import_trace
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.kernels.template_fit import TemplateFit
    from tunehub.records.lookup import Candidate
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule, ScheduledModule, Trace


def apply_candidate(mod: IRModule, candidate: Candidate, target: Target, fit: TemplateFit) -> ScheduledModule:
    """Return the schedule of ``mod`` by a record that a lookup found, adapted to it and checked; ``fit`` is that of
    ``mod``. Raises KnobError, GuardError, and whatever TVM raises when the record does not fit."""
    record = candidate.record
    if isinstance(record, TemplateRecord):
        schedule = fit.by_knobs(record)
    else:
        from tunehub_registry.trace_rules import required_features  # records of templates have none

        features = required_features(record.trace)
        check_features(features, target)
        check_headers(features)
        schedule = _by_trace(mod, candidate, import_trace(record.trace), target)
        check_order(schedule.mod["main"])
        check_first_terms(schedule.mod["main"])
    check_function(schedule.mod["main"], mod["main"], target)
    return schedule


def apply_exact(mod: IRModule, trace: Trace) -> Schedule:
    """Return the schedule of ``mod`` after ``trace`` (a ``tvm.s_tir.Trace``); TVM raises when it does not fit.

    Raises GuardError when the trace changes a layout, or pads a reduction, in a way that gives wrong results.
    """
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask="none", error_render_level="fast")
    provider = layout_provider(schedule) if needs_provider(trace) else None
    trace.apply_to_schedule(schedule, remove_postproc=False, decision_provider=provider)
    return schedule


def apply_transfer(
    mod: IRModule, trace: Trace, target: Target, *, anchored: bool = False, narrow_vectors: bool = False
) -> Schedule:
    """Return the schedule of ``mod`` after the ``trace`` of a function of the same class with other extents;
    ``anchored``: of another function whose anchor block is of the same class.

    Raises GuardError as :func:`apply_exact`, also for tiles or unrolling that do not suit, and what
    :func:`tunehub.kernels.transfer.trace.transfer` raises; on CPUs also TransferError when vectors would have less
    than half the lanes, and GuardError when they go over the ends of rows, unless ``narrow_vectors``: that is right,
    but slow.
    """
    wide_vectors = target.kind.name == "llvm" and not narrow_vectors
    if wide_vectors:
        check_vectors(mod, trace.simplified(remove_postproc=True))
    schedule = _replayed(mod, (_transfer_around_anchor if anchored else transfer)(mod, trace, target))
    scheduled = schedule.mod["main"]
    (check_exact if target.kind.name == "llvm" else check_tiles)(scheduled)
    check_operations(scheduled)
    if wide_vectors:
        check_rows(scheduled)
    return schedule


def _transfer_around_anchor(mod: IRModule, trace: Trace, target: Target) -> Schedule:
    from tvm.s_tir import analysis

    block = analysis.find_anchor_sblock(mod)
    if block is None:
        raise ValueError("the function has no anchor block")
    design = fitted_to_anchor(trace.simplified(remove_postproc=True), block)
    fused = any(instruction.kind.name == "GetConsumers" for instruction in design.insts)
    return _apply_design(mod, design, target, epilogue=fused, fitted=False)


def apply_anchor(mod: IRModule, trace: Trace, target: Target) -> Schedule:
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


def _apply_around_anchor(mod: IRModule, trace: Trace, target: Target, *, buffered: bool = False) -> Schedule:
    from tvm.s_tir import Schedule, analysis
    from tvm.s_tir import meta_schedule as ms

    schedule = Schedule(mod, debug_mask="none", error_render_level="fast")
    if buffered:
        block = analysis.find_anchor_sblock(mod)
        schedule.cache_write(schedule.get_sblock(block.name_hint), 0, "global")
    ms.trace_apply.schedule_using_anchor_trace(schedule, trace, target)
    return schedule


def _apply_design(
    mod: IRModule, design: Trace, target: Target, *, epilogue: bool = False, fitted: bool = True
) -> Schedule:
    """The schedule after ``design`` and TVM's postprocessing; ``epilogue``: the design needs something to fuse;
    ``fitted``: it was made for the anchor block's extents. On GPUs one that was not meets loops of its own making."""
    buffered = (epilogue or changes_layout(design)) and anchor_writes_parameter(mod)
    schedule = _apply_around_anchor(mod, design, target, buffered=buffered)
    if not fitted and target.kind.name != "llvm":
        schedule = replayed(mod, schedule.trace)
    postprocess(schedule, mod, target, tensorized=is_tensorized(design))
    return schedule


def _replayed(mod: IRModule, schedule: Schedule) -> Schedule:
    """``schedule`` again with the checks of :func:`apply_exact`, if there are any for its steps."""
    return apply_exact(mod, schedule.trace) if needs_provider(schedule.trace) else schedule


def _by_trace(mod: IRModule, candidate: Candidate, trace: Trace, target: Target) -> Schedule:
    if candidate.rung == "transfer":
        return apply_transfer(mod, trace, target, anchored=candidate.anchored)
    if not (candidate.rung == "anchor" or candidate.anchored):
        return apply_exact(mod, trace)
    schedule = apply_anchor(mod, trace, target)
    if target.kind.name == "llvm":
        check_tiles(schedule.mod["main"])  # the trace knew another epilogue, which may write what other tiles write
    check_operations(schedule.mod["main"])
    return schedule
