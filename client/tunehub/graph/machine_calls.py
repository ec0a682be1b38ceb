"""Functions as TVM's virtual machine runs them, without what it would do again and again.

TVM computes the shape of each tensor anew, makes a tensor of a planned piece of memory for each value that lies there,
and frees each by a call of its own: of a decoder's step thirty calls a layer, of 0.1 to 3 µs. Here a shape is made
once, and values of one type in one piece of memory are one tensor, as their views of one shape are one view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tunehub.graph.kernel_calls import result_types
from tunehub.tir.nodes import integer, operator_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr, Function, Var
    from tunehub.tir.types import IRModule, PassContext

_TENSOR, _FREE = "relax.vm.alloc_tensor", "relax.vm.kill_object"
_SHAPE, _VIEW = "vm.builtin.make_shape", "vm.builtin.reshape"
_ELEMENT_TYPES = ("DataType", "dtype")  # the first up to 0.25


@tvm.transform.module_pass(opt_level=0, name="tunehub.share_machine_calls")  # type: ignore[untyped-decorator]
def share_machine_calls(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass, behind all of TVM's that lower Relax functions: those without branches share shapes, tensors and
    views, and do not free what their caller holds."""
    graphs = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    shared = {v: _shared(f) for v, f in graphs.items() if isinstance(f.body, relax.SeqExpr) and not _branches(f)}
    return tvm.IRModule({**dict(mod.functions.items()), **shared}, attrs=mod.attrs)


def _bindings(function: Function) -> Iterable[Binding]:
    return (each for block in function.body.blocks for each in block.bindings)


def _branches(function: Function) -> bool:
    return any(isinstance(getattr(each, "value", None), (relax.If, relax.Function)) for each in _bindings(function))


def _shared(function: Function) -> Function:
    calls = _Calls(function)
    made = [binding for each in _bindings(function) if (binding := calls.shared(each)) is not None]
    kept = [each for each in made if not calls.is_needless(each)]
    body = relax.SeqExpr([relax.BindingBlock(kept)], calls.replaced(function.body.body))
    return relax.Function(function.params, body, tensor_type(function.body), function.is_pure, function.attrs)


class _Calls:
    """Of a function, binding by binding in their order."""

    def __init__(self, function: Function) -> None:
        self._held = set(function.params)  # and fields of these: by the caller
        self._made: dict[Hashable, Var] = {}
        self._first: dict[Var, Var] = {}  # variables, and the first one with the same value
        self._sharing: Counter[Var] = Counter()  # of these, how many share their value
        self._freed: dict[Var, list[Var]] = {}  # and the variables of the calls that free one of them

    def shared(self, binding: Binding) -> Binding | None:
        """In place of ``binding``; None where there is such a value."""
        variable, value = binding.var, self.replaced(binding.value) if isinstance(binding, relax.VarBinding) else None
        if value is None:
            return binding
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._held:
            self._held.add(variable)
        if operator_of(value) == _FREE:
            self._freed.setdefault(value.args[0], []).append(variable)
        key = _key(value) if isinstance(value, relax.Call) else None
        if key is not None:
            first = self._first[variable] = self._made.setdefault(key, variable)
            self._sharing[first] += 1
            if not first.same_as(variable):
                return None
        return relax.VarBinding(variable, value)

    def replaced(self, value: Expr) -> Expr:
        """A binding's value or what a function returns, of first variables."""
        if isinstance(value, relax.Var):
            return self._first.get(value, value)
        if isinstance(value, relax.Tuple):
            return relax.Tuple(list(map(self.replaced, value.fields[:])))
        if isinstance(value, relax.Call):
            given = value.args[:]
            arguments = list(map(self.replaced, given))
            same = all(map(tvm.ir.Node.same_as, arguments, given))
            return value if same else relax.Call(value.op, arguments, value.attrs, result_types(value))
        return value

    def is_needless(self, binding: Binding) -> bool:
        """Whether it frees what the caller holds, or what several share, but for the last of them."""
        if operator_of(getattr(binding, "value", None)) != _FREE:
            return False
        value = binding.value.args[0]
        calls, sharing = self._freed[value], self._sharing[value]
        is_last = len(calls) == sharing and calls[-1].same_as(binding.var)
        return value in self._held or (sharing > 1 and not is_last)


def _key(call: Call) -> Hashable | None:
    """Equal for calls that give the same; None for those of which nobody knows that."""
    name = str(call.op.global_symbol) if isinstance(call.op, relax.ExternFunc) else operator_of(call)
    if name not in (_TENSOR, _SHAPE, _VIEW):
        return None
    arguments = tuple(map(_argument, call.args))
    return None if None in arguments else (name, arguments)


def _argument(value: Expr) -> Hashable | None:
    if isinstance(value, relax.Var):
        return hash(value)
    if isinstance(value, relax.ShapeExpr):
        extents = tuple(map(integer, value.values))
        return None if None in extents else extents
    plain: Any = getattr(value, "value", value)
    return str(plain) if type(plain).__name__ in _ELEMENT_TYPES else integer(plain)
