"""A network as far as the planning of layouts is concerned: what works on data, with its shapes.

TVM's graph tuner counts an operator with two computed inputs as a place where branches meet, even if one depends on
weights alone (then it takes the time of what comes before for nothing), and refuses a convolution of a tuple's item,
such as the result of a batch norm. Folding constants would help, but compiles hundreds of functions.

This module imports tvm; import it inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tvm import IRModule, relay
from tvm.ir import TensorType

if TYPE_CHECKING:
    from tunehub.relay.types import Call, Expr, RelayModule

# Of their results only the first is one of inference: the data in the layout that it came in.
_TRANSPARENT = ("nn.batch_norm", "nn.dropout")


def skeleton(module: RelayModule, inputs: Iterable[str]) -> Expr:
    """``main`` with variables for what depends on no input in ``inputs``, and the data itself for batch norms of it."""
    typed = relay.transform.InferType()(module)["main"]
    mutator = _Skeleton(frozenset(inputs))
    relay.analysis.post_order_visit(typed.body, mutator.take)  # each node after its inputs: no deep recursion
    body = mutator.visit(typed.body)
    function = relay.Function(relay.analysis.free_vars(body), body)
    return relay.transform.InferType()(IRModule.from_expr(function))["main"]


class _Skeleton(relay.ExprMutator):  # type: ignore[misc]
    def __init__(self, inputs: frozenset[str]) -> None:
        super().__init__()
        self._inputs = inputs
        self._moving: dict[Expr, bool] = {}

    def take(self, node: Expr) -> None:
        """Note whether a node depends on an input, and rewrite it."""
        if isinstance(node, relay.Var):
            self._moving[node] = node.name_hint in self._inputs
        else:
            self._moving[node] = any(self._moving.get(before, False) for before in _before(node))
        if isinstance(node, (relay.Call, relay.Tuple, relay.TupleGetItem)):
            self.visit(node)

    def visit_call(self, call: Call) -> Expr:
        if not self._moving[call] and isinstance(call.checked_type, TensorType):
            return relay.Var(f"constant{len(self._moving)}", call.checked_type)
        return super().visit_call(call)

    def visit_tuple_getitem(self, item: Expr) -> Expr:
        value = item.tuple_value
        transparent = isinstance(value, relay.Call) and getattr(value.op, "name", None) in _TRANSPARENT
        if transparent and item.index == 0 and self._moving[item]:
            return self.visit(value.args[0])
        return super().visit_tuple_getitem(item)


def _before(node: Expr) -> list[Expr]:
    if isinstance(node, relay.Call):
        return list(node.args)
    if isinstance(node, relay.Tuple):
        return list(node.fields)
    return [node.tuple_value] if isinstance(node, relay.TupleGetItem) else []
