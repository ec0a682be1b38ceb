"""Rows that are chosen of a tensor, before what is computed row by row: of a prompt a language model needs the words of
the last place alone, for which the last layer's products behind attention have one row instead of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    integer,
    integers,
    operator_of,
    outermost,
    parameters,
    same_extent,
    shape_of,
    symbolic,
    variables_in,
)
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tunehub.graph.types import BaseFunc, Call, Expr, Function, Var
    from tunehub.tir.types import Index, IRModule, PassContext, Tensor

_RANK, _ROWS = 3, 1  # of tensors, and the axis of their rows
_MATMUL, _SPLIT, _TAKE = "relax.matmul", "relax.split", "relax.take"
_UNARY = ("relax.nn.silu", "relax.nn.gelu", "relax.nn.relu", "relax.sigmoid", "relax.astype", "relax.negative")
_BINARY = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")


@tvm.transform.module_pass(opt_level=0, name="tunehub.chosen_rows")  # type: ignore[untyped-decorator]
def chosen_rows(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass, before weights are looked at: of tensors [B, n, K] the last one of the n, or those of a ``take``."""
    chooser = _Chooser(mod)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function) and chooser.finds_in(function):
            chooser.builder_.update_func(variable, chooser.visit_expr(function))
    return relax.transform.DeadCodeElimination()(chooser.builder_.get()) if chooser.moved else mod


@mutator
class _Chooser(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._mod, self._kernels, self.moved = mod, Kernels(self.builder_), 0
        self._flow, self._chosen = _Flow(), dict[tuple[int, int], Any]()

    def finds_in(self, function: Function) -> bool:
        """Whether there are rows to choose earlier in ``function``, which is to be written next."""
        values = [each.value for block in getattr(function.body, "blocks", ()) for each in block.bindings]
        choices = [each for each in values if isinstance(each, relax.Call) and self._chooses(each)]
        if choices:
            self._flow = _Flow()
            self._flow.read(function)
        return any(map(self._flow.gains, choices))

    def visit_call_(self, call: Call) -> Expr:
        if not self._chooses(call) or not self._flow.gains(call):
            return super().visit_call_(call)
        self.moved += 1
        return self._of(call.args[0] if operator_of(call) == _TAKE else call.args[1].fields[0], call)

    def _chooses(self, call: Call) -> bool:
        source = _source(call)
        if source is None or len(shape_of(source) or ()) != _RANK:
            return False
        if operator_of(call) == _TAKE:
            axis = call.attrs.axis
            return axis is not None and int(axis) == _ROWS and len(shape_of(call.args[1]) or ()) == 1
        return takes_last_row(self._mod[call.args[0]])

    def _of(self, value: Var, choice: Call) -> Expr:
        """The rows of ``value`` that ``choice`` chooses of what is computed of it."""
        key = hash(value), hash(choice)
        if key not in self._chosen:
            made = self._made(value, choice)
            self._chosen[key] = made if isinstance(made, relax.Var) else self.builder_.emit(made)
        return self._chosen[key]

    def _made(self, value: Var, choice: Call) -> Expr:
        bound: Expr = self._flow.bound.get(hash(value))
        rows = self._flow.rows(bound)
        if not rows or not self._flow.is_for(value, choice):
            return self._choice(self.visit_expr(value), choice)
        if isinstance(bound, relax.TupleGetItem):
            return relax.TupleGetItem(self._of(bound.tuple_value, choice), bound.index)
        own = [self._of(arg, choice) if at in rows else self.visit_expr(arg) for at, arg in enumerate(bound.args)]
        return relax.Call(bound.op, own, bound.attrs)

    def _choice(self, value: Expr, choice: Call) -> Expr:
        if operator_of(choice) == _TAKE:
            return relax.Call(choice.op, [value, self.visit_expr(choice.args[1])], choice.attrs)
        return self._kernels.call(_last_row, value, name="index")


class _Flow:
    """What a function binds, and who uses it."""

    def __init__(self) -> None:
        self.bound: dict[int, Expr] = {}
        self._users: dict[int, list[tuple[Expr, Expr]]] = {}

    def read(self, function: Function) -> None:
        """Its bindings, and what it returns."""
        for block in getattr(function.body, "blocks", ()):
            for binding in block.bindings:
                self.bound[hash(binding.var)] = binding.value
                self._use(binding.var, binding.value)
        self._use(None, function.body.body)

    def _use(self, user: Expr, value: Expr) -> None:
        for each in _read(value):
            self._users.setdefault(hash(each), []).append((user, value))

    def is_for(self, value: Expr, choice: Call) -> bool:
        """Whether the rows of ``value`` that ``choice`` does not choose are needed by nobody."""
        users = self._users.get(hash(value), [])
        return bool(users) and all(
            by is not None and (how.same_as(choice) or (self._passes(value, how) and self.is_for(by, choice)))
            for by, how in users
        )

    def _passes(self, value: Expr, how: Expr) -> bool:
        places = [at for at, each in enumerate(_arguments(how)) if each.same_as(value)]
        return bool(places) and set(places) <= set(self.rows(how))

    def rows(self, value: Expr) -> list[int]:
        """See :func:`row_operands`; parts of a tuple are those of what is split."""
        if isinstance(value, relax.TupleGetItem):
            return [0] if operator_of(self.bound.get(hash(value.tuple_value))) == _SPLIT else []
        return [] if value is None else row_operands(value)

    def gains(self, choice: Call) -> bool:
        """Whether a product has fewer rows."""
        waiting = [_source(choice)]
        while waiting:
            value = waiting.pop()
            bound = self.bound.get(hash(value))
            rows = self.rows(bound)
            if not rows or not self.is_for(value, choice):
                continue
            if operator_of(bound) == _MATMUL:
                return True
            waiting += [_arguments(bound)[at] for at in rows]
        return False


def _source(call: Call) -> Expr:
    """The variable of which ``call``, a ``take`` or a kernel of one tensor, chooses; None for others."""
    found: Expr | None = None
    if operator_of(call) == _TAKE:
        found = call.args[0]
    elif operator_of(call) == "relax.call_tir" and len(call.args) == 2 and len(call.args[1].fields) == 1:
        found = call.args[1].fields[0]
    return found if isinstance(found, relax.Var) else None


def _read(value: Expr) -> Iterator[Expr]:
    """The variables that ``value`` reads, each as often as it does; of calls and tuples no types are visited."""
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, relax.Call | relax.Tuple | relax.TupleGetItem):
        parts = value.fields if isinstance(value, relax.Tuple) else _arguments(value)
        for each in parts:
            yield from _read(each)
    else:
        yield from variables_in(value)


def _arguments(value: Expr) -> list[Expr]:
    return [value.tuple_value] if isinstance(value, relax.TupleGetItem) else list(getattr(value, "args", ()))


def row_operands(value: Expr) -> list[int]:
    """Which operands of ``value`` [B, n, K] each row of it is computed of the same row of; none where others count."""
    name, operands = operator_of(value), _arguments(value)
    ranks = [len(shape_of(each) or ()) for each in operands]
    if name in _UNARY:
        return [0] if ranks[0] == _RANK else []
    if name == _MATMUL:
        return [0] if ranks == [_RANK, 2] else []
    if name in _BINARY:
        return _of_binary(value, operands, ranks)
    if not ranks or ranks[0] != _RANK:
        return []
    last = {
        "relax.nn.rms_norm": lambda: [int(axis) for axis in value.attrs.axes],
        _SPLIT: lambda: [int(value.attrs.axis)],
        "relax.strided_slice": lambda: integers(operands[1], lambda each: each) or [],
    }.get(name)
    return [0] if last is not None and [axis % _RANK for axis in last()] == [_RANK - 1] else []


def _of_binary(value: Expr, operands: list[Expr], ranks: list[int]) -> list[int]:
    """Those that have the result's rows; the others must be the same for all."""
    extents = shape_of(value) or ()
    if len(extents) != _RANK:
        return []
    whole = [at for at, each in enumerate(operands) if ranks[at] == _RANK and _has_rows(each, extents)]
    others = [at for at in range(len(operands)) if at not in whole]
    same = all(ranks[at] < _RANK - 1 or integer((shape_of(operands[at]) or ())[-2]) == 1 for at in others)
    return whole if same and all(isinstance(operands[at], relax.Var) for at in whole) else []


def _has_rows(operand: Expr, extents: Sequence[Index]) -> bool:
    own = shape_of(operand) or ()
    return all(same_extent(own[at], extents[at]) for at in (0, _ROWS))


def takes_last_row(function: BaseFunc) -> bool:
    """Whether ``function`` of [B, n, K] gives [B, 1, K], of the last row each."""
    if not isinstance(function, tvm.tirx.PrimFunc) or len(function.params) != 2:
        return False
    given, found = parameters(function)
    extents, result = buffer_kind(given).shape, buffer_kind(found).shape
    stores = list(outermost(function.body, lambda node: type(node).__name__ == "BufferStore"))
    if len(extents) != _RANK or len(result) != _RANK or integer(result[_ROWS]) != 1 or len(stores) != 1:
        return False
    (store,) = stores
    if type(store.value).__name__ not in LOADS or not buffer_of(store.value).same_as(given):
        return False
    (batch, row, column), (at, _, into) = store.value.indices, store.indices
    last = symbolic().Analyzer().can_prove_equal(row, extents[_ROWS] - 1)
    return bool(last and batch.same_as(at) and column.same_as(into))


def _last_row(x: Tensor) -> Tensor:
    batch, rows, features = x.shape
    return te.compute((batch, 1, features), lambda i, _, k: x[i, rows - 1, k], name="index")
