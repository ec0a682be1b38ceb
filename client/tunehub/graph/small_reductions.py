"""Reductions of few numbers whose results many are computed from: ConvNeXt V2 divides each channel's norm by the mean
of all, and scales an image by that.

Fusion makes one function of them, for which TVM has as many threads as the reduction needs. Here the reduction is a
function of its own, with the steps behind it that are no larger, and the image's steps are another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import result_types, rewritten
from tunehub.graph.origins import named, names_of
from tunehub.graph.workloads import workloads
from tunehub.tir.nodes import (
    blocks_in,
    buffer_kind,
    buffer_of,
    calls_in,
    integer,
    is_reduction,
    is_static,
    operator_of,
    reduces,
    tensor_class,
)
from tunehub.tir.parts import (
    Parameter,
    buffers_of,
    function_of,
    needed,
    parameters_of,
    statements_of,
    used,
    writes_only_last,
)
from tunehub.tir.schedules import has_root

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Buffer, GlobalVar, IRModule, PassContext, PrimFunc, Stmt, Type

_MANY = 16  # numbers of an image for each gate of a channel


@dataclass(frozen=True, kw_only=True, slots=True)
class _Halves:
    """The ``reduction`` of the arguments ``before`` gives ``between``, of which the ``rest``, of the arguments
    ``behind``, makes the result. Parameters of the rest are these, ``between`` and the result."""

    reduction: PrimFunc
    before: tuple[int, ...]
    between: Buffer
    rest: PrimFunc
    behind: tuple[int, ...]


@tvm.transform.module_pass(opt_level=0, name="tunehub.small_reductions_apart")  # type: ignore[untyped-decorator]
def small_reductions_apart(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA, behind fusion."""
    found = {str(variable.name_hint): own for variable, each in workloads(mod) if (own := _halves(each)) is not None}
    for call in calls_in(mod):
        if operator_of(call) != "relax.call_tir" and call.args:  # in place, say
            found.pop(str(getattr(call.args[0], "name_hint", "")), None)
    return relax.transform.DeadCodeElimination()(rewritten(_Splitter(mod, found), mod)) if found else mod


@mutator
class _Splitter(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, found: dict[str, _Halves]) -> None:
        super().__init__(mod)
        self._found = found
        self._added: dict[tuple[str, str], GlobalVar] = {}

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = str(getattr(call.args[0], "name_hint", "")) if call.args else ""
        own = self._found.get(name)
        if own is None or operator_of(call) != "relax.call_tir":
            return call
        given, kind = list(call.args[1].fields), buffer_kind(own.between)
        type_of = tensor_class()([int(extent) for extent in kind.shape], str(kind.dtype))
        reduced = self._call(call, name, "reduction", own.reduction, [given[at] for at in own.before], [type_of])
        operands = [*(given[at] for at in own.behind), self.builder_.emit(reduced)]
        return self._call(call, name, "steps", own.rest, operands, result_types(call))

    def _call(
        self, call: Call, name: str, part: str, function: PrimFunc, operands: list[Expr], types: Type | list[Type]
    ) -> Expr:
        if (name, part) not in self._added:
            self._added[name, part] = self.builder_.add_func(function, f"{name}_{part}")
        return named(relax.call_tir(self._added[name, part], relax.Tuple(operands), types), names_of(call))


def _halves(function: PrimFunc) -> _Halves | None:
    """None where nothing behind the last reduction is larger than what that reads, or more than one tensor would lie
    between."""
    if not has_root(function) or not is_static(function) or not writes_only_last(function):
        return None
    statements = statements_of(function)
    reducing = [at for at, each in enumerate(statements) if any(map(reduces, blocks_in(each)))]
    small = _small(statements, reducing[-1]) if reducing else set(range(len(statements)))
    before, behind = ([each for at, each in enumerate(statements) if (at in small) is kept] for kept in (True, False))
    between = _between(before, behind)
    if between is None:
        return None
    own = (_variable(function, between), between)
    reduction, rest = (_function(function, part, own, last=part is before) for part in (before, behind))
    taken, of_rest = used(function, before), used(function, behind)
    return _Halves(reduction=reduction, before=taken, between=between, rest=rest, behind=of_rest[:-1])


def _small(statements: list[Stmt], reduction: int) -> set[int]:
    """The places of a ``reduction``, of the steps behind it that are of no more numbers than it reads, nor of many for
    each of its results, and of all that these need."""
    domain, last = _numbers(statements[reduction]), reduction
    results = _numbers(statements[reduction], reduced=False)
    written, large = buffers_of(statements[reduction], "writes"), set[int]()
    for at, each in enumerate(statements[reduction + 1 :], reduction + 1):
        reads, writes = (buffers_of(each, side) for side in ("reads", "writes"))
        larger = _numbers(each) > domain or domain > _numbers(each) >= _MANY * results
        if reads & large or (reads & written and larger):
            large |= writes
        elif reads & written:
            written, last = written | writes, at
    own = needed(statements[: last + 1], written)
    return {at for at, each in enumerate(statements) if any(each.same_as(other) for other in own)}


def _numbers(statement: Stmt, *, reduced: bool = True) -> int:
    """How often what ``statement`` computes is computed; not ``reduced``: how many numbers it gives."""
    axes = (axis for block in blocks_in(statement) for axis in block.iter_vars if reduced or not is_reduction(axis))
    return math.prod(integer(axis.dom.extent) or 0 for axis in axes)


def _between(before: list[Stmt], behind: list[Stmt]) -> Buffer | None:
    """What statements ``behind`` read of those ``before``, if that is one buffer."""
    reads = set().union(*(buffers_of(each, "reads") for each in behind))
    written = [buffer_of(region) for each in before for block in blocks_in(each) for region in block.writes]
    found = {hash(buffer): buffer for buffer in written if hash(buffer) in reads}
    return next(iter(found.values())) if len(found) == 1 else None


def _variable(function: PrimFunc, buffer: Buffer) -> Expr:
    from tvm import tirx

    return tirx.Var(str(buffer.name), "handle") if hasattr(function, "buffer_map") else buffer


def _function(function: PrimFunc, part: list[Stmt], between: Parameter, *, last: bool) -> PrimFunc:
    """Of the statements ``part``, with ``between`` as the ``last`` parameter, or in front of the result."""
    own = [parameters_of(function)[number] for number in used(function, part)]
    return function_of(function, [*own, between] if last else [*own[:-1], between, own[-1]], part)
