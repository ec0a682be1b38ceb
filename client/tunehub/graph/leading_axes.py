"""Reshapes that regroup leading axes, such as rows of sequences into those of a matrix for a product and back, behind
what computes row by row: between two such reshapes everything can be one kernel, which they would end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.graph.quantised_tensors import DEQUANTIZE, QUANTIZE
from tunehub.tir.nodes import bound_value, is_constant, operator_of, same_shape, shape_of, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext

_RESHAPE, _PRODUCT = "relax.reshape", "relax.matmul"
_QUANTISING = (QUANTIZE, DEQUANTIZE)
_UNARY = frozenset(
    {"relax.astype", "relax.clip", "relax.erf", "relax.exp", "relax.sigmoid", "relax.tanh", "relax.negative"}
    | {f"relax.nn.{name}" for name in ("relu", "relu6", "gelu", "gelu_tanh", "silu")}
)
_BINARY = frozenset(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"))


@tvm.transform.module_pass(opt_level=0, name="tunehub.reshapes_behind_rows")  # type: ignore[untyped-decorator]
def reshapes_behind_rows(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: such reshapes as late as may be; two that undo each other are none."""
    return relax.transform.DeadCodeElimination()(rewritten(_LeadingAxes(mod), mod))


@mutator
class _LeadingAxes(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        name = operator_of(call)
        if name == _RESHAPE:
            return self._reshaped_once(call)
        source = self._source(call.args[0]) if call.args else None
        if name in _BINARY:
            return self._binary(call)
        if source is None or shape_of(call) is None:
            return call
        whole = name in _QUANTISING and all(static_shape(each) in ((), (1,)) for each in call.args[1:3])
        product = name == _PRODUCT and len(shape_of(call.args[1]) or ()) == 2
        return self._behind(call, [source, *call.args[1:]]) if name in _UNARY or whole or product else call

    def _source(self, argument: Expr) -> Expr | None:
        """What ``argument`` regroups the leading axes of."""
        value = bound_value(self, argument)
        if operator_of(value) != _RESHAPE:
            return None
        before, after = static_shape(value.args[0]), static_shape(value)
        return value.args[0] if before and after and len(after) > 1 and before[-1] == after[-1] else None

    def _reshaped_once(self, call: Call) -> Expr:
        value = bound_value(self, call.args[0])
        if operator_of(value) != _RESHAPE:
            return call
        if same_shape(value.args[0], call):
            return value.args[0]
        return relax.op.reshape(value.args[0], call.args[1])

    def _binary(self, call: Call) -> Expr:
        sources = [self._source(each) if same_shape(each, call) else None for each in call.args]
        known = next((each for each in sources if each is not None), None)
        if known is None:
            return call
        arguments = []
        for argument, source in zip(call.args, sources, strict=True):
            shape = static_shape(argument)
            if source is not None and same_shape(source, known):
                arguments.append(source)
            elif shape is not None and same_shape(argument, call) and not self._is_of_product(argument):
                arguments.append(self.builder_.emit(relax.op.reshape(argument, shape_of(known))))
            elif shape is not None and all(extent == 1 for extent in shape[:-1]):
                arguments.append(argument if len(shape) < 2 else self._row(argument, shape[-1]))
            else:
                return call
        return self._behind(call, arguments)

    def _is_of_product(self, argument: Expr) -> bool:
        """Whether ``argument`` is a product and what follows it element by element: a reshape behind would end its
        kernel."""
        values, seen = [argument], set[int]()
        while values:
            value = bound_value(self, values.pop())
            if operator_of(value) == _PRODUCT:
                return True
            if hash(value) not in seen and operator_of(value) in _BINARY | _UNARY:
                seen.add(hash(value))
                values += [each for each in value.args if not is_constant(each)]
        return False

    def _row(self, argument: Expr, extent: int) -> Expr:
        return self.builder_.emit(relax.op.reshape(argument, (extent,)))

    def _behind(self, call: Call, arguments: list[Expr]) -> Expr:
        """``call`` of what was reshaped, and reshaped then."""
        if str(tensor_type(call).dtype) == "bool":
            return call
        first = self.builder_.emit(relax.Call(call.op, arguments, call.attrs))
        return relax.op.reshape(first, shape_of(call))
