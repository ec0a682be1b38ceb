"""Schedules of functions with open axes on CPUs by what a record says: knobs for rows of products, or the knobs or the
trace of a static tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.compiler.schedule.apply import apply_exact
from tunehub.kernels.cpu import KnobError, Knobs, NamedKnobs, read_knobs
from tunehub.kernels.symbolic import rows
from tunehub.kernels.symbolic.loops import over_pieces
from tunehub.kernels.symbolic.pieces import piece_of, without_shared_blocks
from tunehub.kernels.symbolic.schedule import fewest_for_threads, rewrites_layouts
from tunehub.kernels.template_fit import TemplateFit, machine_for
from tunehub.tir.cpu_check import check_proven
from tunehub.tir.first_terms import check_first_terms
from tunehub.tir.guard import check_features, check_function, check_order
from tunehub.tir.nodes import main_module
from tunehub.tir.open_axes import OpenAxes, separate_axes
from tunehub.tir.traces import import_trace

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import PortableTrace, PrimFunc, Schedule


def by_knobs(function: PrimFunc, target: Target, named: NamedKnobs) -> PrimFunc:
    """``function`` by the knobs of a record: those of ``rows``, or of the template that serves a tile of it.

    Raises KnobError where they do not fit, and what schedules of static functions raise.
    """
    function, axes = _separate(function)
    if named.template != rows.NAME:
        piece = _piece(function, axes)
        schedule = TemplateFit(main_module(piece), target).by_knobs(named)
        return _over(function, axes, piece, schedule, target)
    if named.version != rows.VERSION:
        raise KnobError(f"version {named.version} of the template {rows.NAME} is not known, only {rows.VERSION}")
    found = rows.by_rows(function, axes, target, read_knobs(rows.RowKnobs, named.knobs))
    if found is None:
        raise KnobError("it is no product of an open number of rows")
    return found


def by_trace(function: PrimFunc, target: Target, trace: PortableTrace) -> PrimFunc:
    """``function`` by the trace of a record, which is that of a tile. Raises as schedules of static functions do."""
    from tunehub_registry.trace_rules import required_features

    function, axes = _separate(function)
    piece = _piece(function, axes)
    check_features(required_features(trace), target)
    schedule = apply_exact(main_module(piece), import_trace(trace))
    check_order(schedule.mod["main"])
    check_first_terms(schedule.mod["main"])
    return _over(function, axes, piece, schedule, target)


def knob_space(function: PrimFunc, target: Target) -> list[tuple[str, int, Knobs]]:
    """Templates with their versions and the knobs worth measuring, those of the rule first; none for a function whose
    schedule has no knobs."""
    function = without_shared_blocks(function)
    axes = separate_axes(function)
    if axes is None:
        return []
    space: list[Knobs] = [*rows.row_space(function, axes, machine_for(target))]
    if space:
        return [(rows.NAME, rows.VERSION, knobs) for knobs in space]
    piece = piece_of(function, axes, [1] * len(axes.extents))
    fit = None if piece is None else TemplateFit(main_module(piece), target)
    if fit is None or fit.match is None:
        return []
    template = fit.match.template
    return [(template.NAME, template.VERSION, knobs) for knobs in fit.knob_space(fit.match)]


def _separate(function: PrimFunc) -> tuple[PrimFunc, OpenAxes]:
    """``function`` in a form of which tiles are separate, and its open axes."""
    function = without_shared_blocks(function)
    axes = separate_axes(function)
    if axes is None:
        raise KnobError("tiles along its open axes are not separate")
    return function, axes


def _piece(function: PrimFunc, axes: OpenAxes) -> PrimFunc:
    piece = piece_of(function, axes, [1] * len(axes.extents))
    if piece is None:
        raise KnobError("no values of its symbols give a tile")
    return piece


def _over(function: PrimFunc, axes: OpenAxes, piece: PrimFunc, schedule: Schedule, target: Target) -> PrimFunc:
    scheduled = schedule.mod["main"]
    check_function(scheduled, piece, target)
    check_proven(scheduled, target)
    if rewrites_layouts(scheduled.body):
        raise KnobError("its weights are packed in a way of its own, and other sizes read them, too")
    return over_pieces(function, axes, scheduled, fewest_for_threads(piece, machine_for(target)))
