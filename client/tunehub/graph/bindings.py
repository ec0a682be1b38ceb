"""What a graph's variables are bound to, and graphs that are rewritten only where something is found in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from tvm import relax

from tunehub.tir.nodes import is_constant, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Call, Expr, Function, Var
    from tunehub.tir.types import IRModule, Mutator


class BoundValues:
    """The ``values`` that a function binds variables to, and which of these have one reader."""

    def __init__(self, function: Function) -> None:
        bindings = [each for block in getattr(function.body, "blocks", ()) for each in block.bindings]
        self.values = {each.var: each.value for each in bindings if isinstance(each, relax.VarBinding)}
        self._result = function.body.body

    @cached_property
    def _readers(self) -> Counter[Var]:
        read = (*self.values.values(), self._result)
        return Counter(variable for value in read for variable in variables_in(value))

    def alone(self, expression: Expr) -> Expr | None:
        """What a variable is bound to that has one reader; None for others."""
        is_alone = isinstance(expression, relax.Var) and self._readers[expression] == 1
        return self.values.get(expression) if is_alone else None


def repeated(builder: BlockBuilder, value: Expr, steps: Iterable[Call], constant: Callable[[Expr], Expr]) -> Expr:
    """What ``steps``, each of the one before and of constants, make of ``value``; ``constant`` gives what takes the
    place of each constant."""
    for step in steps:
        before = builder.emit(value)
        value = relax.Call(step.op, [constant(each) if is_constant(each) else before for each in step.args], step.attrs)
    return value


def rewritten_where_found(
    mod: IRModule, find: Callable[[Function], Iterable[tuple[Expr, object]]], rewriter_of: Callable[[IRModule], Mutator]
) -> IRModule:
    """``mod`` with its graphs as a mutator of it makes them, which is told by ``found`` what ``find`` says of each of
    their variables; graphs of which it says nothing stay as they are."""
    rewriter: Mutator | None = None
    for variable, function in mod.functions.items():
        found = dict(find(function)) if isinstance(function, relax.Function) else {}
        if found:
            rewriter = rewriter or rewriter_of(mod)
            rewriter.found = found
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    return mod if rewriter is None else relax.transform.DeadCodeElimination()(rewriter.builder_.get())
