"""Calls that are made for their effect, such as assertions about shapes: kept, in their order.

TVM's importers write some of them as ``call_pure_packed``, which passes that clean up may drop when nobody reads the
result. Here such a call becomes an impure one, which no pass drops or moves, and what is pure between two of them
becomes a block of dataflow, so that it is fused as ever.

A ``match_cast`` checks a shape. TVM's CanonicalizeBindings (0.27), which FuseTIR runs, too, drops one between types
that differ in the names of their symbols alone, and so the check that two dimensions are equal. Here what is cast loses
its type before, by a call that returns what it is given. Afterwards, before memory is planned, the call goes:
the planner would take the memory of what is cast for free behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import result_types, rewritten
from tunehub.tir.nodes import shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Expr, Function
    from tunehub.tir.types import IRModule, PassContext

_SAME = "vm.builtin.copy"  # returns what it is given
_PURE_PACKED = "relax.call_pure_packed"


@tvm.transform.module_pass(opt_level=0, name="tunehub.keep_effects")  # type: ignore[untyped-decorator]
def keep_effects(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: show TVM's passes which calls of ``mod`` are made for their effect.

    Relax functions without such calls stay as they are, unless they have no block of dataflow: importers write none
    beside assertions and branches.
    """
    mod = _with_casts_kept(mod)
    graphs = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    touched = {v: f for v, f in graphs.items() if _unread(f) or not _has_dataflow(f)}
    if not touched:
        return mod
    flat = relax.transform.ToNonDataflow()(tvm.IRModule(touched))
    writer = _EffectWriter(mod)
    written = tvm.IRModule({variable: writer.written(function) for variable, function in flat.functions.items()})
    blocks = relax.transform.ConvertToDataflow(1)(written)
    by_name = {str(variable.name_hint): function for variable, function in blocks.functions.items()}
    functions = {v: by_name.get(str(v.name_hint), f) for v, f in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


@tvm.transform.module_pass(opt_level=0, name="tunehub.plain_casts")  # type: ignore[untyped-decorator]
def plain_casts(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: what :func:`keep_effects` took the type of is cast itself again. For when all is fused."""
    graphs = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
    untyped = any(_is_untyped(binding.value) for function in graphs for binding in _bindings(function))
    return rewritten(_PlainCastWriter(mod), mod) if untyped else mod


def hidden_effects(mod: IRModule) -> str | None:
    """The name of a Relax function with such calls that another one calls, where :func:`keep_effects` cannot keep them;
    None without any."""
    graphs = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    called = {str(each.name_hint) for function in graphs.values() for each in relax.analysis.all_global_vars(function)}
    hidden = (str(v.name_hint) for v, f in graphs.items() if str(v.name_hint) in called and _unread(f))
    return next(hidden, None)


def _with_casts_kept(mod: IRModule) -> IRModule:
    graphs = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
    casts = any(map(_is_endangered, (binding for function in graphs for binding in _bindings(function))))
    return rewritten(_CastWriter(mod), mod) if casts else mod


@mutator
class _CastWriter(PyExprMutator):  # type: ignore[misc]
    def visit_match_cast_(self, binding: Binding) -> None:
        if _is_endangered(binding):
            untyped = [(getattr(relax, "ObjectStructInfo", None) or relax.ObjectType)()]  # 0.26 took 0.25's other name
            copied = relax.Call(tvm.ir.Op.get(_PURE_PACKED), [relax.ExternFunc(_SAME), binding.value], None, untyped)
            value = self.builder_.emit(self.visit_expr(copied))
            binding = relax.MatchCast(binding.var, value, tensor_type(binding))
        super().visit_match_cast_(binding)


@mutator
class _PlainCastWriter(PyExprMutator):  # type: ignore[misc]
    def visit_match_cast_(self, binding: Binding) -> None:
        value = self.lookup_binding(binding.value) if isinstance(binding.value, relax.Var) else None
        if value is not None and _is_untyped(value):
            binding = relax.MatchCast(binding.var, value.args[1], tensor_type(binding))
        super().visit_match_cast_(binding)


@mutator
class _EffectWriter(PyExprMutator):  # type: ignore[misc]
    _effects: frozenset[Any] = frozenset()

    def written(self, function: Function) -> Function:
        """``function`` with impure calls for those that nobody reads; impure then."""
        self._effects = _unread(function)
        if not self._effects:
            return function
        written = self.visit_expr(function)
        return relax.Function(written.params, written.body, is_pure=False, attrs=function.attrs)

    def visit_var_binding_(self, binding: Binding) -> None:
        if binding.var in self._effects:
            call = binding.value
            impure = relax.Call(call.args[0], list(call.args[1:]), call.attrs, result_types(call))
            binding = relax.VarBinding(binding.var, impure)
        super().visit_var_binding_(binding)


def _unread(function: Function) -> frozenset[Expr]:
    """The variables with the results of packed functions that nothing in ``function`` reads."""
    bindings = _bindings(function)
    packed = {binding.var for binding in bindings if _is_packed(binding.value)}
    if not packed:
        return frozenset()
    values = [*(binding.value for binding in bindings), *(each.body for each in _sequences(function.body))]
    return frozenset(packed.difference(*map(relax.analysis.free_vars, values)))


def _bindings(function: Function) -> list[Binding]:
    return [binding for each in _sequences(function.body) for block in each.blocks for binding in block.bindings]


def _is_endangered(binding: Binding) -> bool:
    """Whether TVM might take a binding for a cast that changes nothing: from a shape with symbols, or to one."""
    if not isinstance(binding, relax.MatchCast):
        return False
    shapes = shape_of(binding.value), shape_of(binding.var)
    return None not in shapes and not all(isinstance(extent, int) for shape in shapes for extent in shape or ())


def _sequences(expression: Expr) -> Iterator[Expr]:
    """A sequence of bindings, and those in its branches."""
    if not isinstance(expression, relax.SeqExpr):
        return
    yield expression
    for block in expression.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from _sequences(binding.value.true_branch)
                yield from _sequences(binding.value.false_branch)


def _is_packed(value: Expr) -> bool:
    return isinstance(value, relax.Call) and str(getattr(value.op, "name", "")) == _PURE_PACKED


def _is_untyped(value: Expr) -> bool:
    return _is_packed(value) and str(value.args[0].global_symbol) == _SAME


def _has_dataflow(function: Function) -> bool:
    return any(isinstance(block, relax.DataflowBlock) for block in function.body.blocks)
