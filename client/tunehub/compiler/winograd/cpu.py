"""A prepared module whose convolutions are computed by Winograd's algorithm where that should be faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.graph.winograd.replacing import Replacement, WinogradStage, with_replacements
from tunehub.kernels.cpu import winograd as template
from tunehub.kernels.te.winograd import (
    are_exact,
    transform_integers,
    transform_weight,
    transformed_shape,
    weight_type,
)
from tunehub.kernels.template_fit import machine_for
from tunehub.kernels.winograd.rewriting import find, rewritten
from tunehub.kernels.winograd.rule import chosen_tile
from tunehub.registries.key_scheme import TEMPLATE
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import constant_array, constant_like, main_module
from tunehub.tir.symbols import is_symbolic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.graph.types import Constant, Expr
    from tunehub.records.lookup import RecordLookup
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tuned:
    """How many times as fast as default knobs the best is that was measured, 1 where nothing was; whether a record of
    it would serve."""

    gain: float
    recorded: bool


def with_winograd(
    mod: IRModule, target: Target, lookup: RecordLookup, note: Callable[[str], None]
) -> tuple[IRModule, dict[str, Scheduling]]:
    """``mod``, as :func:`tunehub.compiler.preparing.prepare` makes it for a CPU, with such functions and their weights;
    and how these functions are scheduled, by name.

    A function for which ``lookup`` has a record keeps it unless the algorithm should be faster than that by the margin
    of a guess; how fast the record is, its evidence says. ``note`` is told how many do not.
    """
    written: dict[str, Scheduling] = {}  # by the name of the direct convolution
    named: dict[str, Scheduling] = {}

    def replacement(name: str, function: PrimFunc) -> Replacement | None:
        found = _replacement(name, function, target, lookup)
        if found is None:
            return None
        own, written[name] = found
        return own

    def added(replaced: str, name: str) -> None:
        named[name] = written[replaced]

    return with_replacements(mod, replacement, _transformed, note, added, _fits), named


def _replacement(
    name: str, function: PrimFunc, target: Target, lookup: RecordLookup
) -> tuple[Replacement, Scheduling] | None:
    found = find(function)
    tuned = None if found is None else _tuned(function, lookup)
    if found is None or tuned is None:
        return None
    tile = chosen_tile(found.convolution, machine_for(target), tuned.gain)
    if tile is None:
        return None
    written = rewritten(function, found, tile)
    scheduling = Scheduling(written, target, lookup)
    if not _is_scheduled(scheduling):
        return None
    stage = WinogradStage(
        function=written, name=name.replace("conv2d", "winograd", 1), operands=tuple(range(len(written.params) - 1))
    )
    own = Replacement(stages=(stage,), weight=found.weight, tile=tile, recorded=tuned.recorded)
    return own, scheduling


def _is_scheduled(scheduling: Scheduling) -> bool:
    """Whether a record or the template serves: with loops of other kinds every transform is computed many times."""
    served = scheduling.served
    return served is not None and (served.record is not None or served.template == template.NAME)


def _tuned(function: PrimFunc, lookup: RecordLookup) -> _Tuned | None:
    """What was measured for ``function``, or for the record that would serve it; None where something was, and nobody
    says what default knobs take."""
    single = main_module(function)
    exact = workload_key(single)
    candidate = lookup.by_exact(exact)
    if candidate is None:
        anchor = anchor_key(single)
        candidate = next(iter(lookup.by_anchor(anchor) if anchor else ()), None)
    if candidate is None and has_ladder(single, exact, lookup):
        return None
    measured = lookup.measured(TEMPLATE, exact if candidate is None else candidate.record.exact)
    if measured is None:
        return _Tuned(gain=1.0, recorded=False) if candidate is None else None
    known = measured.evidence
    if not known.untuned_s:
        return None
    gain = max(known.untuned_s / min(known.tuned_s, known.default_s), 1.0)
    return _Tuned(gain=gain, recorded=candidate is not None)


def has_ladder(mod: IRModule, exact: str, lookup: RecordLookup) -> bool:
    """Whether a ladder may serve ``mod``; what it gained over default knobs, nobody says."""
    if not is_symbolic(mod["main"]):
        return bool(lookup.ladders("instance", exact))
    anchor = anchor_key(mod)
    return bool(lookup.ladders("exact", exact)) or bool(anchor and lookup.ladders("anchor", anchor))


def _transformed(constant: Constant, tile: int) -> Expr:
    values = constant_array(constant)
    shape, kind = transformed_shape(values.shape, tile), weight_type(values.ndim)
    if kind == "int16":
        return constant_like(shape, kind, lambda own: transform_integers(values, own))
    return constant_like(shape, kind, lambda own: transform_weight(values, tile, own))


def _fits(constant: Constant) -> bool:
    values = constant_array(constant)
    return weight_type(values.ndim) == "float32" or are_exact(values)
