"""Which nodes of a model's file a call computes: their names, carried from the importer to the calls of kernels.

They are spans of calls and of the variables that these are bound to, a line for each node. Passes of TVM and ours keep
the variable or the call of most that they rewrite; a name that is lost on the way is missing in a profile, and no wrong
one stands there. Spans are no part of what is compared or hashed of a module's structure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.tir.nodes import is_constant, operator_of, tensor_type, variable_name

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc, Binding, Call, Expr, Function
    from tunehub.tir.types import IRModule, Pass, PassContext

Names = tuple[str, ...]
_BETWEEN = "\n"


def named(expression: Expr, names: Names) -> Expr:
    """`expression` with the names of its nodes, where it is a call that has none."""
    if not names or not isinstance(expression, relax.Call) or expression.span is not None:
        return expression
    types = expression.ty_args if hasattr(expression, "ty_args") else expression.sinfo_args
    return relax.Call(expression.op, expression.args, expression.attrs, types, _span(names))


def names_of(*expressions: Expr) -> Names:
    """The names of the nodes that calls, or variables bound to them, compute, each once."""
    spans = (getattr(each, "span", None) for each in expressions)
    texts = (str(span.source_name.name) for span in spans if span is not None and hasattr(span, "source_name"))
    return tuple(dict.fromkeys(name for text in texts for name in text.split(_BETWEEN) if name))


def call_names(mod: IRModule) -> Mapping[str, list[Names]]:
    """The names of the nodes of each call of a PrimFunc, by its name, in the order in which a graph makes them."""
    found: dict[str, list[Names]] = defaultdict(list)
    for function in _graphs(mod):
        for binding in _bindings(function):
            if operator_of(binding.value).startswith("relax.call_tir"):
                found[str(binding.value.args[0].name_hint)].append(names_of(binding.var, binding.value))
    return found


def inherited(mod: IRModule) -> IRModule:
    """`mod`, as an importer wrote it, where calls without names have those of the next call that has some: an operator
    became several calls, and the last of them has its name."""
    names: dict[Expr, Names] = {}
    for function in _graphs(mod):
        waiting: list[Expr] = []
        for binding in _bindings(function):
            waiting.append(binding.var)
            own = names_of(binding.value)
            if own:
                names.update(dict.fromkeys(waiting, own))
                waiting = []
    return _written(mod, lambda binding: names.get(binding.var, ())) if names else mod


@tvm.transform.module_pass(opt_level=0, name="tunehub.spread_names")  # type: ignore[untyped-decorator]
def spread_names(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: variables have the names of their calls, and calls those of their variables. Whatever comes next
    keeps one of the two."""
    if not any(map(_has_names, _graphs(mod))):
        return mod
    return _written(mod, lambda binding: names_of(binding.var, binding.value))


def fused_with_names(fuse: Pass) -> Pass:
    """``fuse`` (TVM's FuseOps) as a pass after which a call of a fused function has the names of all that it computes.

    Equal functions are one afterwards, so that names are found by values: what a function computes at a call is what
    bindings of the same operators and operands computed before."""

    @tvm.transform.module_pass(opt_level=0, name="tunehub.fused_with_names")  # type: ignore[untyped-decorator]
    def fused(mod: IRModule, _context: PassContext) -> IRModule:
        after = fuse(mod)
        if not any(map(_has_names, _graphs(mod))):
            return after
        found: dict[Expr, Names] = {}
        inner = {str(v.name_hint): each for v, each in after.functions.items() if _is_fused(each)}
        before = {str(v.name_hint): each for v, each in mod.functions.items() if isinstance(each, relax.Function)}
        for variable, function in after.functions.items():
            own = before.get(str(variable.name_hint))
            if own is not None and not _is_fused(function) and isinstance(function, relax.Function):
                found.update(_ComputedValues(own).names_after(function, inner))
        return _written(after, lambda binding: found.get(binding.var) or names_of(binding.var, binding.value))

    return fused


class _ComputedValues:
    """The values that a graph computes: what computes each, from which, and its names."""

    def __init__(self, function: Function) -> None:
        # of what is computed: all of it would be hashed again in what comes behind
        self._numbers: dict[Hashable, int] = {}
        self._names: dict[int, list[Names]] = defaultdict(list)  # of the bindings that compute it
        known: dict[Expr, Hashable] = {variable: ("in", at) for at, variable in enumerate(function.params)}
        for binding in _bindings(function):
            value = _value(binding.value, known)
            if isinstance(binding.value, relax.Call):
                value = self._numbered(value)
                self._names[value].append(names_of(binding.var, binding.value))
            known[binding.var] = value

    def names_after(self, function: Function, inner: Mapping[str, Function]) -> dict[Expr, Names]:
        """The names of the fused calls of ``function``, this graph after fusion, by their variables."""
        known: dict[Expr, Hashable] = {variable: ("in", at) for at, variable in enumerate(function.params)}
        found: dict[Expr, Names] = {}
        for binding in _bindings(function):
            callee = inner.get(_callee(binding.value)) if isinstance(binding.value, relax.Call) else None
            if callee is None:
                known[binding.var] = self._matched(binding.value, known)[0]
                continue
            arguments = [_value(each, known) for each in binding.value.args]
            own, names = dict(zip(callee.params, arguments, strict=True)), list[str]()
            for part in _bindings(callee):
                own[part.var], computed = self._matched(part.value, own)
                names += computed
            known[binding.var] = _value(callee.body.body, own)
            found[binding.var] = tuple(dict.fromkeys(names))
        return found

    def _matched(self, expression: Expr, known: Mapping[Expr, Hashable]) -> tuple[Hashable, Names]:
        """The value of an expression, with its names where it was a call of this graph."""
        value = _value(expression, known)
        if not isinstance(expression, relax.Call):
            return value, ()
        number = self._numbered(value)
        names = self._names.get(number, [()])
        return number, names.pop(0) if len(names) > 1 else names[0]

    def _numbered(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _value(expression: Expr, known: Mapping[Expr, Hashable]) -> Hashable:
    """An expression by what it is made of; shapes are left out."""
    if isinstance(expression, relax.Call):
        return (_callee(expression), *(_value(each, known) for each in expression.args))
    if isinstance(expression, relax.Tuple):
        return tuple(_value(each, known) for each in expression.fields)
    if isinstance(expression, relax.TupleGetItem):
        whole = _value(expression.tuple_value, known)
        return ("item", int(expression.index), whole)
    if is_constant(expression):
        return ("constant", expression)
    if isinstance(expression, tvm.ir.GlobalVar):
        return ("function", str(expression.name_hint))
    return known.get(expression) if isinstance(expression, relax.Var) else None


def _callee(call: Call) -> str:
    """The name of an operator or function."""
    return str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", None) or call.op)


def _written(mod: IRModule, known: Callable[[Binding], Names]) -> IRModule:
    writer = _NameWriter(mod, known)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function) and not _is_fused(function):
            writer.builder_.update_func(variable, writer.visit_expr(function))
    return writer.builder_.get()


@mutator
class _NameWriter(PyExprMutator):  # type: ignore[misc]
    """Writes names on calls and their variables."""

    def __init__(self, mod: IRModule, known: Callable[[Binding], Names]) -> None:
        super().__init__(mod)
        self._known = known

    def visit_var_binding_(self, binding: Binding) -> None:
        names = self._known(binding)
        if not names:
            super().visit_var_binding_(binding)
            return
        variable = binding.var
        name = variable_name(variable)
        new = type(variable)(name, tensor_type(variable), _span(names))
        self.set_var_remap(getattr(variable, "vid", variable), new)
        value = self.builder_.normalize(named(self.visit_expr(binding.value), names))
        self.builder_.emit_normalized(relax.VarBinding(new, value))


def _span(names: Iterable[str]) -> tvm.ir.Span:
    return tvm.ir.Span(tvm.ir.SourceName(_BETWEEN.join(names)), 0, 0, 0, 0)


def _is_fused(function: BaseFunc) -> bool:
    return isinstance(function, relax.Function) and bool(function.attrs) and "Primitive" in function.attrs


def _has_names(function: Function) -> bool:
    return any(names_of(each.var, each.value) for each in _bindings(function))


def _graphs(mod: IRModule) -> Iterator[Function]:
    return (each for each in mod.functions.values() if isinstance(each, relax.Function))


def _bindings(function: Function) -> Iterator[Binding]:
    if isinstance(function.body, relax.SeqExpr):
        for block in function.body.blocks:
            yield from block.bindings
