"""Direct convolutions of a prepared module replaced by functions of Winograd's algorithm, one or several each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.graph.kernel_calls import result_types
from tunehub.graph.origins import named, names_of
from tunehub.tir.nodes import calls_in, is_constant, operator_of, tensor_class

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Constant, Expr, TensorType
    from tunehub.tir.types import GlobalVar, IRModule, PrimFunc


@dataclass(frozen=True, kw_only=True, slots=True)
class WinogradStage:
    """One function of those that take the place of another.

    ``operands``: by number arguments of that one's calls, its weight transformed among them; -1 is what the first of
    the stages gives, -2 the second. ``shape``: of what this one gives, of type ``dtype``, None in it: the first extent
    of the result; None: the very result.
    """

    function: PrimFunc
    name: str
    operands: tuple[int, ...]
    shape: tuple[int | None, ...] | None = None
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """What takes the place of a function: ``stages``, the last of which gives its result. ``weight``: the number of the
    argument that is transformed for tiles of ``tile``; ``recorded``: there is a record for the function."""

    stages: tuple[WinogradStage, ...]
    weight: int
    tile: int
    recorded: bool


def with_replacements(
    mod: IRModule,
    replacement: Callable[[str, PrimFunc], Replacement | None],
    transformed: Callable[[Constant, int], Constant],
    note: Callable[[str], None],
    added: Callable[[str, str], None] = lambda _replaced, _name: None,
    fits: Callable[[Constant], bool] = lambda _constant: True,
) -> IRModule:
    """``mod`` with what ``replacement`` gives for its functions, by name, where every call has a constant weight that
    ``fits``.

    ``transformed``: the weight, a constant, for a tile. ``note`` is told how many functions do not keep their records,
    ``added`` of each new function whose place it takes, and its name.
    """
    calls, found = _calls(mod), {}
    for variable, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc):
            name = str(variable.name_hint)
            own = replacement(name, function)
            if own is not None and all(_has_constant(call, own.weight, fits) for call in calls.get(name, ())):
                found[name] = own
    recorded = sum(each.recorded for each in found.values())
    if recorded:
        note(
            f"{recorded} functions with records are computed by Winograd's algorithm, which should be at least "
            f"{GUESS_MARGIN:.3g} times as fast (winograd=False keeps the records)"
        )
    return _Rewriter(mod, found, transformed, added).written() if found else mod


def _has_constant(call: Call, at: int, fits: Callable[[Constant], bool]) -> bool:
    fields = getattr(call.args[1], "fields", ())
    return at < len(fields) and is_constant(fields[at]) and fits(fields[at])


def _calls(mod: IRModule) -> dict[str, list[Call]]:
    """The calls of PrimFuncs in the graphs of ``mod``, by name; those that are no plain ``call_tir`` have no arguments
    that are known."""
    found: dict[str, list[Call]] = {}
    for call in calls_in(mod):
        if operator_of(call).startswith("relax.call_tir"):
            found.setdefault(str(call.args[0].name_hint), []).append(call)
    return found


def _type_of(shape: Sequence[int | None], dtype: str, call: Call) -> TensorType:
    if None not in shape:
        return tensor_class()(shape, dtype)
    batch = result_types(call)[0].shape[0]
    return tensor_class()([batch if extent is None else tirx.IntImm("int64", extent) for extent in shape], dtype)


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    """Calls the new functions, with weights that are transformed once for all calls."""

    def __init__(
        self,
        mod: IRModule,
        found: dict[str, Replacement],
        transformed: Callable[[Constant, int], Constant],
        added: Callable[[str, str], None],
    ) -> None:
        super().__init__(mod)
        self._mod, self._found, self._transformed, self._note_added = mod, found, transformed, added
        self._added: dict[tuple[str, int], GlobalVar] = {}
        self._weights: dict[tuple[Constant, int], Expr] = {}

    def written(self) -> IRModule:
        """The module; functions that nobody calls any more are gone."""
        for variable, function in self._mod.functions.items():
            if isinstance(function, relax.Function):
                self.builder_.update_func(variable, self.visit_expr(function))
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        name = str(getattr(call.args[0], "name_hint", "")) if call.args else ""
        own = self._found.get(name)
        if own is None or getattr(call.op, "name", "") != "relax.call_tir":
            return call
        given = list(call.args[1].fields)
        given[own.weight] = self._weight(given[own.weight], own.tile)
        made: list[Any] = []
        for at, stage in enumerate(own.stages):
            operands = [given[number] if number >= 0 else made[-1 - number] for number in stage.operands]
            types = result_types(call) if stage.shape is None else [_type_of(stage.shape, stage.dtype, call)]
            result = relax.call_tir(self._function(name, at, stage), relax.Tuple(operands), types)
            result = named(result, names_of(call))
            if stage.shape is None:
                return result
            made.append(self.builder_.emit(result))
        raise ValueError(f"no stage of {name} gives its result")

    def _function(self, name: str, at: int, stage: WinogradStage) -> GlobalVar:
        if (name, at) not in self._added:
            self._added[name, at] = self.builder_.add_func(stage.function, stage.name)
            self._note_added(name, str(self._added[name, at].name_hint))
        return self._added[name, at]

    def _weight(self, constant: Constant, tile: int) -> Expr:
        if (constant, tile) not in self._weights:
            self._weights[constant, tile] = self._transformed(constant, tile)
        return self._weights[constant, tile]
