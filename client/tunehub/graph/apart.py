"""A function in two, with one tensor between them: of some statements, and of those that read what these give."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import result_types, rewritten
from tunehub.graph.origins import named, names_of
from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, calls_in, operator_of, tensor_class
from tunehub.tir.parts import (
    Parameter,
    buffers_of,
    function_of,
    needed,
    parameters_of,
    statements_of,
    used,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Buffer, GlobalVar, IRModule, PrimFunc, Stmt, Type


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionParts:
    """The ``first`` half of the arguments ``before`` gives ``between``, of which the ``rest``, of the arguments
    ``behind``, makes the result. Parameters of the rest are these, ``between`` and the result."""

    first: PrimFunc
    before: tuple[int, ...]
    between: Buffer
    rest: PrimFunc
    behind: tuple[int, ...]


def halves_of(function: PrimFunc, first: Set[int]) -> FunctionParts | None:
    """``function``, which writes its last parameter alone, with the statements at ``first`` as its first half; None
    where more than one tensor would lie between."""
    statements = statements_of(function)
    before, behind = ([each for at, each in enumerate(statements) if (at in first) is kept] for kept in (True, False))
    between = _between(before, behind)
    return None if between is None else _described(function, before, between, behind)


def halves_at(function: PrimFunc, place: int) -> FunctionParts:
    """``function`` with the statement at ``place`` the last of its first half; what both need is computed twice."""
    statements = statements_of(function)
    before = needed(statements[: place + 1], buffers_of(statements[place], "writes"))
    others = [each for at, each in enumerate(statements) if at != place]
    behind = needed(others, {hash(parameters_of(function)[-1][1])})
    return _described(function, before, buffer_of(next(blocks_in(statements[place])).writes[0]), behind)


def in_halves(mod: IRModule, found: dict[str, FunctionParts], names: tuple[str, str]) -> IRModule:
    """``mod`` with the functions ``found``, by name, in two, which are called as they are and one of ``names``; as they
    are where not all calls take them as plain kernels."""
    found = dict(found)
    for call in calls_in(mod):
        if operator_of(call) != "relax.call_tir" and call.args:  # in place, say
            found.pop(str(getattr(call.args[0], "name_hint", "")), None)
    if not found:
        return mod
    splitter = _Splitter(mod)
    splitter.found, splitter.names = found, names
    return relax.transform.DeadCodeElimination()(rewritten(splitter, mod))


@mutator
class _Splitter(PyExprMutator):  # type: ignore[misc]
    found: dict[str, FunctionParts]
    names: tuple[str, str]

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._added: dict[tuple[str, str], GlobalVar] = {}

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = str(getattr(call.args[0], "name_hint", "")) if call.args else ""
        own = self.found.get(name)
        if own is None or operator_of(call) != "relax.call_tir":
            return call
        given, kind = list(call.args[1].fields), buffer_kind(own.between)
        type_of = tensor_class()([int(extent) for extent in kind.shape], str(kind.dtype))
        first = self._call(call, (name, self.names[0]), own.first, [given[at] for at in own.before], [type_of])
        operands = [*(given[at] for at in own.behind), self.builder_.emit(first)]
        return self._call(call, (name, self.names[1]), own.rest, operands, result_types(call))

    def _call(
        self, call: Call, key: tuple[str, str], function: PrimFunc, operands: list[Expr], types: Type | list[Type]
    ) -> Expr:
        if key not in self._added:
            self._added[key] = self.builder_.add_func(function, "_".join(key))
        return named(relax.call_tir(self._added[key], relax.Tuple(operands), types), names_of(call))


def _between(before: list[Stmt], behind: list[Stmt]) -> Buffer | None:
    """What statements ``behind`` read of those ``before``, if that is one buffer."""
    reads = set().union(*(buffers_of(each, "reads") for each in behind))
    written = [buffer_of(region) for each in before for block in blocks_in(each) for region in block.writes]
    found = {hash(buffer): buffer for buffer in written if hash(buffer) in reads}
    return next(iter(found.values())) if len(found) == 1 else None


def _described(function: PrimFunc, before: list[Stmt], between: Buffer, behind: list[Stmt]) -> FunctionParts:
    own = (_variable(function, between), between)
    first, rest = (_function(function, part, own, last=part is before) for part in (before, behind))
    taken, of_rest = used(function, before), used(function, behind)
    return FunctionParts(first=first, before=taken, between=between, rest=rest, behind=of_rest[:-1])


def _variable(function: PrimFunc, buffer: Buffer) -> Expr:
    from tvm import tirx

    return tirx.Var(str(buffer.name), "handle") if hasattr(function, "buffer_map") else buffer


def _function(function: PrimFunc, part: list[Stmt], between: Parameter, *, last: bool) -> PrimFunc:
    """Of the statements ``part``, with ``between`` as the ``last`` parameter, or in front of the result."""
    own = [parameters_of(function)[number] for number in used(function, part)]
    found = function_of(function, [*own, between] if last else [*own[:-1], between, own[-1]], part)
    return found.without_attr("layout_free_buffers")  # parameters have other numbers
