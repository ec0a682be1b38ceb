"""Kernels that get arguments from their module alone, and do not check them.

TVM begins every kernel with checks of its arguments: types, shapes, strides, alignment, a message for each: of
SqueezeNet's LLVM code they are 40 %. They are needed where tensors come from outside. What the
module allocates itself is as the kernel wants it, by Relax's types: there they say nothing new. With open extents these
types are expressions, and TVM has to prove that what a call hands over has extents of one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx

from tunehub.tir.argument_checks import HAS_OWN_ARGUMENTS, without_assertions
from tunehub.tir.index_expressions import is_variable
from tunehub.tir.nodes import (
    element_type,
    extents_of,
    integer,
    is_constant,
    parameters,
    plain_extent,
    same_extent,
    same_extents,
    shape_of_type,
    tensor_class,
    tensor_type,
)
from tunehub.tir.statements import run
from tunehub.tir.symbols import in_place, is_integer, symbols_of

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Function, TensorType, Var
    from tunehub.tir.types import Index, IRModule, PassContext, PrimExpr, PrimFunc


@tvm.transform.module_pass(opt_level=0, name="tunehub.mark_own_arguments")  # type: ignore[untyped-decorator]
def mark_own_arguments(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: mark the PrimFuncs whose every call is with tensors that the module makes, of the shapes that they
    are for.

    These are constants (TVM takes none that is not aligned, or has gaps) and what other calls of PrimFuncs return.
    Parameters of Relax functions, results of packed functions, and views of those are not. A PrimFunc with assertions
    of its own is left alone.
    """
    kernels = {v: function for v, function in mod.functions.items() if isinstance(function, tirx.PrimFunc)}
    graphs = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
    foreign: set[str] = set()
    for graph in graphs:
        foreign.update(_Graph(graph, mod).foreign())
    own = {v: f for v, f in kernels.items() if str(v.name_hint) not in foreign}
    unasserted = without_assertions(own)
    marked = {v: f.with_attr(HAS_OWN_ARGUMENTS, True) for v, f in own.items() if unasserted[v].body.same_as(f.body)}
    return tvm.IRModule({**dict(mod.functions.items()), **marked}, attrs=mod.attrs)


class _Graph:
    """A Relax function, and which of its variables hold tensors that the module makes."""

    def __init__(self, function: Function, mod: IRModule) -> None:
        self._function = function
        self._mod = mod
        self._own: set[Var] = set()

    def foreign(self) -> Iterator[str]:
        """The functions that it calls with tensors from outside, or of other shapes than theirs, or uses in any other
        way than by ``call_tir``."""
        for block in self._function.body.blocks:
            for binding in block.bindings:
                value: Expr = getattr(binding, "value", None)
                if isinstance(binding, relax.VarBinding) and self._is_call(value):
                    name, (tensors, integers) = str(value.args[0].name_hint), _handed(value)
                    is_own = all(map(self._is_own, tensors))
                    kinds = [kind for each in (*tensors, binding.var) for kind in _tensors(tensor_type(each))]
                    if not (is_own and _are_of(self._mod[name], kinds, integers)):
                        yield name
                    if is_own or not relax.analysis.has_reshape_pattern(self._mod[name]):
                        self._own.add(binding.var)
                elif isinstance(binding, relax.VarBinding) and self._is_own(value):
                    self._own.add(binding.var)
                else:
                    yield from _used(value)
        yield from _used(self._function.body.body)

    def _is_own(self, value: Expr) -> bool:
        if isinstance(value, relax.Tuple):
            return all(map(self._is_own, value.fields[:]))
        if isinstance(value, relax.TupleGetItem):
            return self._is_own(value.tuple_value)
        return is_constant(value) or (isinstance(value, relax.Var) and value in self._own)

    def _is_call(self, value: Expr) -> bool:
        return (
            isinstance(value, relax.Call)
            and getattr(value.op, "name", "") == "relax.call_tir"
            and isinstance(value.args[1], relax.Tuple)
            and all(isinstance(symbols, relax.ShapeExpr) for symbols in value.args[2:])
        )


def _handed(call: Call) -> tuple[list[Expr], list[Expr]]:
    """The tensors that a kernel is called with, and the integers: since 0.27 these are behind the tensors, before they
    were a shape of their own."""
    fields, kind = list(call.args[1].fields[:]), tensor_class()
    tensors = [field for field in fields if isinstance(tensor_type(field), kind)]
    values = [*fields[len(tensors) :], *(each for shape in call.args[2:] for each in shape.values)]
    return tensors, [plain_extent(value) for value in values]


def _tensors(kind: TensorType) -> list[TensorType]:
    """The types of the tensors that a value of the type ``kind`` is made of."""
    return [each for field in kind.fields for each in _tensors(field)] if hasattr(kind, "fields") else [kind]


def _are_of(kernel: PrimFunc, kinds: Sequence[TensorType], integers: Sequence[PrimExpr]) -> bool:
    """Whether tensors of these types have the shapes of the parameters of ``kernel``, for all values of symbols;
    ``integers``: what it is called with behind its tensors."""
    given = [shape_of_type(kind) for kind in kinds]
    known = [shape for shape in given if shape is not None]
    wanted = _shapes(kernel)
    own_integers = list(filter(is_integer, kernel.params))
    if list(map(len, wanted)) != list(map(len, known)) or len(known) != len(given):
        return False
    if len(own_integers) != len(integers) or len(wanted) + len(integers) != len(kernel.params):
        return False
    pairs = [pair for own, other in zip(wanted, known, strict=True) for pair in zip(own, other, strict=True)]
    values = {hash(own): other for own, other in reversed(pairs) if is_variable(own)}
    values |= {hash(own): value for own, value in zip(own_integers, integers, strict=True)}
    if not all(integer(own) is not None or hash(own) in values for own, _ in pairs):
        return _are_of_expressions(kernel, values, known)
    return all(same_extent(values.get(hash(own), own), other) for own, other in pairs)


def _are_of_expressions(kernel: PrimFunc, values: dict[int, PrimExpr], known: Sequence[Sequence[Index]]) -> bool:
    """As :func:`_are_of` where extents are expressions of symbols; ``values``: what each symbol is where it is an
    extent of its own."""
    symbols = symbols_of(kernel)
    kinds = list(map(element_type, symbols))
    if not all(hash(symbol) in values for symbol in symbols):
        return False
    plain = [values[hash(symbol)] for symbol in symbols]
    found = [tirx.const(v, kind) if isinstance(v, int) else v for v, kind in zip(plain, kinds, strict=True)]
    if list(map(element_type, found)) != kinds:
        return False
    instance = in_place(kernel.with_body(run(0)), found)  # all of a schedule's body would take long
    return all(map(same_extents, _shapes(instance), known))


def _shapes(kernel: PrimFunc) -> list[list[PrimExpr]]:
    return list(map(extents_of, parameters(kernel)))


def _used(value: Expr) -> Iterator[str]:
    """The names of all functions that an expression refers to."""
    found: list[str] = []

    def visit(node: Expr) -> None:
        if isinstance(node, tvm.ir.GlobalVar):
            found.append(str(node.name_hint))

    if value is not None:
        relax.analysis.post_order_visit(value, visit)
    return iter(found)
