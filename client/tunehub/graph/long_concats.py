"""Concatenations of many tensors that begin as earlier ones do: each takes an earlier one for what it begins with.

Every layer of a DenseNet joins what all layers before it in its block gave, up to 49 tensors: functions of that many
nested choices, another for each layer, were half of DenseNet-201's compile. Every few layers a concatenation is written
to memory for those that follow.
"""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.tir.nodes import operator_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tunehub.graph.types import Binding, Call, Expr, Function, Var
    from tunehub.tir.types import IRModule, PassContext

_Group: TypeAlias = "list[tuple[Var, Call, tuple[int, ...]]]"  # in order, with the places of their tensors in memory

_MOST = 25  # tensors: packages have records of DenseNet-121's functions, whose longest have so many
_TOGETHER = 12  # tensors of a concatenation that others begin with


@tvm.transform.module_pass(opt_level=0, name="tunehub.shorter_concats")  # type: ignore[untyped-decorator]
def shorter_concats(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: in functions with a concatenation of more than 25 tensors, concatenations take earlier ones for what
    they begin with."""
    rewriter = _Shortener(mod)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function) and rewriter.finds_in(function):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
            rewriter.found = True
    return rewriter.builder_.get() if rewriter.found else mod


@mutator
class _Shortener(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.found = False
        self._shorter: dict[int, tuple[Var, int]] = {}

    def finds_in(self, function: Function) -> bool:
        """Whether concatenations of ``function``, which is to be written next, can be shorter."""
        blocks = getattr(function.body, "blocks", ())
        groups = [group for block in blocks for group in _groups(block.bindings)]
        longest = max((len(parts) for group in groups for _, _, parts in group), default=0)
        found = [each for group in groups for each in _shorter(group)] if longest > _MOST else []
        self._shorter = {hash(call): (first, count) for call, first, count in found}
        return bool(found)

    def visit_call_(self, call: Call) -> Expr:
        if hash(call) not in self._shorter:
            return super().visit_call_(call)
        first, count = self._shorter[hash(call)]
        rest = [self.visit_expr(part) for part in call.args[0].fields[count:]]
        return relax.op.concat([self.visit_expr(first), *rest], axis=int(call.attrs.axis))


def _groups(bindings: Iterable[Binding]) -> Iterable[_Group]:
    """The concatenations of a block of bindings, by axis and first tensor. The hash of a node is that of its place."""
    found: dict[tuple[int, int], _Group] = defaultdict(list)
    for each in bindings:
        call = each.value
        parts = call.args[0] if operator_of(call) == "relax.concat" else None
        if isinstance(parts, relax.Tuple) and call.attrs.axis is not None:
            places = tuple(map(hash, parts.fields[:]))
            found[int(call.attrs.axis), places[0]].append((each.var, call, places))
    return found.values()


def _shorter(group: _Group) -> Iterator[tuple[Call, Var, int]]:
    """Concatenations, and which earlier one, of how many tensors, each may begin with."""
    kept: list[tuple[int, Var, tuple[int, ...]]] = []
    for variable, call, parts in group:
        known = [each for each in kept if parts[: each[0]] == each[2]]
        count, first, _ = max(known, key=itemgetter(0), default=(1, variable, ()))
        if known:
            yield call, first, count
        if len(parts) - count + 1 >= _TOGETHER:
            kept.append((len(parts), variable, parts))
