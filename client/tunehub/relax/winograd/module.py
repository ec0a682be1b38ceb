"""A prepared module whose convolutions are computed by Winograd's algorithm where that should be faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.records.key_scheme import TEMPLATE
from tunehub.records.never_worse import GUESS_MARGIN
from tunehub.relax.kernels import result_types
from tunehub.relax.keys import anchor_key, workload_key
from tunehub.relax.nodes import constant_array, constant_like, is_constant, main_module
from tunehub.relax.schedule.guard import check_function
from tunehub.relax.schedule.template_fit import TemplateFit, machine_for
from tunehub.relax.symbols import is_symbolic
from tunehub.relax.winograd.kernel import transform_weight, transformed_shape
from tunehub.relax.winograd.rewriting import find, rewritten
from tunehub.relax.winograd.rule import chosen_tile

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.records.lookup import RecordLookup


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replaced:
    """A function that takes the place of another, and what it wants of its weight. ``recorded``: the other one has a
    record."""

    function: Any
    name: str
    weight: int
    tile: int
    recorded: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tuned:
    """How many times as fast as default knobs the best is that was measured, 1 where nothing was; whether a record of
    it would serve."""

    gain: float
    recorded: bool


def with_winograd(mod: Any, target: Any, lookup: RecordLookup, note: Callable[[str], None]) -> Any:
    """``mod``, as :func:`tunehub.relax.pipeline.prepare` makes it for a CPU, with such functions and their weights.

    A function for which ``lookup`` has a record keeps it unless the algorithm should be faster than that by the margin
    of a guess; how fast the record is, its evidence says. ``note`` is told how many do not.
    """
    calls = _calls(mod)
    found = {}
    for variable, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            replaced = _replaced(str(variable.name_hint), function, calls, target, lookup)
            if replaced is not None:
                found[variable] = replaced
    recorded = sum(each.recorded for each in found.values())
    if recorded:
        note(
            f"{recorded} functions with records are computed by Winograd's algorithm, which should be at least "
            f"{GUESS_MARGIN:.3g} times as fast (winograd=False keeps the records)"
        )
    return _Rewriter(mod, found).written() if found else mod


def _replaced(
    name: str, function: Any, calls: dict[str, list[Any]], target: Any, lookup: RecordLookup
) -> _Replaced | None:
    found = find(function)
    if found is None or not all(_has_constant(call, found.weight) for call in calls.get(name, ())):
        return None
    tuned = _tuned(function, lookup)
    tile = None if tuned is None else chosen_tile(found.convolution, machine_for(target), tuned.gain)
    if tuned is None or tile is None:
        return None
    written = rewritten(function, found, tile)
    if not _fits(written, target):
        return None
    return _Replaced(function=written, name=_named(name), weight=found.weight, tile=tile, recorded=tuned.recorded)


def _fits(function: Any, target: Any) -> bool:
    """Whether there is a schedule: without one TVM's loops would compute every transform many times."""
    try:
        piece = _static(function)
        if piece is None:
            return False
        single = main_module(piece)
        fit = TemplateFit(single, target)
        if fit.match is None:
            return False
        check_function(fit.by_promising_default(fit.match).mod["main"], single["main"], target)
    except Exception:  # TVM raises many kinds for a schedule that does not fit
        return False
    return True


def _static(function: Any) -> Any | None:
    """``function``, or the part for one image of one with an open batch, which is what is scheduled."""
    if not is_symbolic(function):
        return function
    from tunehub.relax.open_axes.axes import separate_axes  # static functions need none of it
    from tunehub.relax.open_axes.rows import piece_of

    axes = separate_axes(function)
    return None if axes is None else piece_of(function, axes, [1] * len(axes.extents))


def _tuned(function: Any, lookup: RecordLookup) -> _Tuned | None:
    """What was measured for ``function``, or for the record that would serve it; None where something was, and nobody
    says what default knobs take."""
    single = main_module(function)
    exact = workload_key(single)
    candidate = lookup.by_exact(exact)
    if candidate is None:
        anchor = anchor_key(single)
        candidate = next(iter(lookup.by_anchor(anchor) if anchor else ()), None)
    if candidate is None and _has_ladder(single, exact, lookup):
        return None
    measured = lookup.measured(TEMPLATE, exact if candidate is None else candidate.record.exact)
    if measured is None:
        return _Tuned(gain=1.0, recorded=False) if candidate is None else None
    known = measured.evidence
    if not known.untuned_s:
        return None
    gain = max(known.untuned_s / min(known.tuned_s, known.default_s), 1.0)
    return _Tuned(gain=gain, recorded=candidate is not None)


def _has_ladder(mod: Any, exact: str, lookup: RecordLookup) -> bool:
    """Whether a ladder may serve ``mod``; what it gained over default knobs, nobody says."""
    if not is_symbolic(mod["main"]):
        return bool(lookup.ladders("instance", exact))
    anchor = anchor_key(mod)
    return bool(lookup.ladders("exact", exact)) or bool(anchor and lookup.ladders("anchor", anchor))


def _named(name: str) -> str:
    return name.replace("conv2d", "winograd", 1)


def _has_constant(call: Any, at: int) -> bool:
    fields = getattr(call.args[1], "fields", ())
    return at < len(fields) and is_constant(fields[at])


def _calls(mod: Any) -> dict[str, list[Any]]:
    """The calls of PrimFuncs in the graphs of ``mod``, by name; those that are no plain ``call_tir`` have no arguments
    that are known."""
    found: dict[str, list[Any]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and str(getattr(node.op, "name", "")).startswith("relax.call_tir"):
            found.setdefault(str(node.args[0].name_hint), []).append(node)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return found


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    """Calls the new functions, with weights that are transformed once for all calls."""

    def __init__(self, mod: Any, found: dict[Any, _Replaced]) -> None:
        super().__init__(mod)
        self._mod = mod
        self._found = {str(variable.name_hint): replaced for variable, replaced in found.items()}
        self._added: dict[str, Any] = {}
        self._weights: dict[tuple[Any, int], Any] = {}

    def written(self) -> Any:
        """The module; functions that nobody calls any more are gone."""
        for variable, function in self._mod.functions.items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(variable, self.visit_expr(function))
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        replaced = self._found.get(str(getattr(call.args[0], "name_hint", ""))) if call.args else None
        if replaced is None or getattr(call.op, "name", "") != "relax.call_tir":
            return call
        name = str(call.args[0].name_hint)
        if name not in self._added:
            self._added[name] = self.builder_.add_func(replaced.function, replaced.name)
        arguments = list(call.args[1].fields)
        arguments[replaced.weight] = self._weight(arguments[replaced.weight], replaced.tile)
        return relax.call_tir(self._added[name], relax.Tuple(arguments), result_types(call))

    def _weight(self, constant: Any, tile: int) -> Any:
        key = (constant, tile)
        if key not in self._weights:
            values = constant_array(constant)
            shape = transformed_shape(values.shape, tile)
            self._weights[key] = constant_like(shape, "float32", lambda own: transform_weight(values, tile, own))
        return self._weights[key]
