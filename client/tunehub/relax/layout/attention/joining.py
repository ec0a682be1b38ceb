"""Attention of which one kernel takes less than several: over sequences of unknown length, long ones, and ones in
bfloat16 (:mod:`tunehub.relax.layout.attention.rule`).

``matmul(softmax(f(matmul(q, k))), v)`` becomes :func:`tunehub.relax.layout.attention.kernel.attention`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.relax.kernels import Kernels, rewritten
from tunehub.relax.layout.attention.kernel import OPERATIONS, Reordered, Step, attention
from tunehub.relax.layout.attention.rule import MANY_KEYS, Lengths, chosen
from tunehub.relax.nodes import (
    bound_value,
    constant_array,
    integer,
    is_constant,
    operator_of,
    same_extent,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.relax.layout.narrowing import Narrowing

_OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")
_MOST_STEPS = 4  # between a product and its softmax


def join_attention(mod: Any, vector: int, narrowing: Narrowing | None = None) -> Any:
    """``mod`` with the attention over sequences of unknown length, or of many keys, as one kernel each; ``vector``:
    float32 elements. ``narrowing``: which has operands in bfloat16; shorter ones of these are one kernel, too."""
    graphs = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
    if not any(map(relax.analysis.defined_symbolic_vars, graphs)) and not any(
        _has_keys(each, MANY_KEYS if narrowing is None else 1) for each in graphs
    ):
        return mod  # spared the visit of every call
    joiner = _AttentionJoiner(mod)
    joiner.vector, joiner.narrowing = vector, narrowing
    written = rewritten(joiner, mod)
    return relax.transform.DeadCodeElimination()(written) if joiner.found else mod


def _has_keys(function: Any, fewest: int) -> bool:
    """Whether a softmax, or Relax's own operator, is over so many keys."""
    calls = [each.value for block in getattr(function.body, "blocks", ()) for each in block.bindings]
    shapes = [shape_of(call) for call in calls if operator_of(call) == "relax.nn.softmax"]
    shapes += [(shape_of(call.args[1]) or ())[:2] for call in calls if operator_of(call) in _OPERATORS]
    return any(shape and (integer(shape[-1]) or 0) >= fewest for shape in shapes)


@mutator
class _AttentionJoiner(PyExprMutator):  # type: ignore[misc]
    vector: int
    narrowing: Narrowing | None
    found = False

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self._kernels = Kernels(self.builder_)

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if operator_of(call) in _OPERATORS:
            return self._operator(call)
        if operator_of(call) != "relax.matmul":
            return call
        weights, safe = self._weights(call.args[0])
        if operator_of(weights) != "relax.nn.softmax" or int(weights.attrs.axis) not in (
            -1,
            len(shape_of(weights) or ()) - 1,
        ):
            return call
        scores, steps, operands = self._steps(weights.args[0])
        if operator_of(scores) != "relax.matmul" or len(steps) > _MOST_STEPS:
            return call
        sources = [self._source(each) for each in (scores.args[0], scores.args[1], call.args[1])]
        joined = self._joined(sources, steps, operands, safe)
        return call if joined is None else joined

    def _weights(self, expression: Any) -> tuple[Any, bool]:
        """The softmax, and whether zeros are in place of what is no number behind it: of a query without any key."""
        value = bound_value(self, expression)
        if operator_of(value) != "relax.where":
            return value, False
        condition, zero, weights = value.args
        condition = bound_value(self, condition)
        safe = operator_of(condition) == "relax.isnan" and condition.args[0].same_as(weights) and _number(zero) == 0
        return (bound_value(self, weights), True) if safe else (value, False)

    def _operator(self, call: Any) -> Any:
        """Relax's own operator, of tensors ``[batch, length, heads, depth]``."""
        query, keys, values, *bias = call.args
        shape, attrs = shape_of(query), call.attrs
        if (
            shape is None
            or integer(shape[-1]) is None
            or attrs.causal_mask is not None
            or attrs.window_size is not None
        ):
            return call
        scale = 1 / math.sqrt(shape[-1]) if attrs.scale is None else float(attrs.scale.value)
        steps = [Step("relax.multiply", scale, None, False), *[Step("relax.add", None, 0, False)][: len(bias)]]
        orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        sources = [Reordered(tensor, order) for tensor, order in zip((query, keys, values), orders, strict=True)]
        joined = self._joined(sources, steps, bias, False)
        return call if joined is None else relax.op.permute_dims(self.builder_.emit(joined), [0, 2, 1, 3])

    def _joined(
        self, sources: Sequence[Reordered], steps: Sequence[Step], operands: Sequence[Any], safe: bool
    ) -> Any | None:
        """The kernel, None where it is not for these tensors."""
        shapes = [source.shape for source in sources]
        if not _fits(*shapes) or any(str(tensor_type(source.tensor).dtype) != "float32" for source in sources):
            return None
        scores = chosen(_lengths(*shapes), self.vector, self.narrowing)
        if scores is None:
            return None
        whole = (*shapes[0][:-1], shapes[1][-1])
        if not all(_broadcasts(each, whole) for each in operands):
            return None
        self.found = True
        axes = tuple(source.axes for source in sources)
        return self._kernels.call(
            lambda q, k, v, *more: attention(q, k, v, more, steps=steps, axes=axes, scores=scores, safe=safe),
            *(source.tensor for source in sources),
            *operands,
            name="attention",
            how=(*steps, axes, scores, safe),
        )

    def _steps(self, expression: Any) -> tuple[Any, list[Step], list[Any]]:
        """What scores are made of: the product, the operations in order, and the tensors in them."""
        steps: list[Step] = []
        operands: list[Any] = []
        value = bound_value(self, expression)
        while operator_of(value) in OPERATIONS:
            sides = [bound_value(self, each) for each in value.args]
            inner = 0 if self._leads_to_product(sides[0]) else 1
            number, operand = _number(sides[1 - inner]), None
            if number is None:
                operand = len(operands)
                operands.append(value.args[1 - inner])
            steps.append(Step(operator_of(value), number, operand, inner == 1))
            value = sides[inner]
        return value, steps[::-1], operands

    def _leads_to_product(self, value: Any) -> bool:
        while operator_of(value) in OPERATIONS:
            value = bound_value(self, value.args[0])
        return operator_of(value) == "relax.matmul"

    def _source(self, tensor: Any) -> Reordered:
        """``tensor``, or what it is a transposition of."""
        value = bound_value(self, tensor)
        rank = len(shape_of(tensor) or ())
        if operator_of(value) != "relax.permute_dims":
            return Reordered(tensor, tuple(range(rank)))
        axes = value.attrs.axes
        order = range(rank)[::-1] if axes is None else [int(axis) % rank for axis in axes]
        return Reordered(value.args[0], tuple(order))


def _fits(q: Sequence[Any], k: Sequence[Any], v: Sequence[Any]) -> bool:
    """Whether these are shapes of queries, keys and values with the same heads and static depth."""
    if len({len(q), len(k), len(v)}) > 1 or len(q) < 2 or integer(q[-1]) is None or integer(v[-1]) is None:
        return False
    pairs = [*zip(q[:-2], k[:-2], strict=True), *zip(q[:-2], v[:-2], strict=True), (q[-1], k[-2]), (k[-1], v[-2])]
    return all(same_extent(*pair) for pair in pairs)


def _lengths(q: Sequence[Any], k: Sequence[Any], v: Sequence[Any]) -> Lengths:
    return Lengths(queries=integer(q[-2]), keys=integer(k[-1]), depth=int(q[-1]), outputs=int(v[-1]))


def _broadcasts(tensor: Any, whole: Sequence[Any]) -> bool:
    """Whether a tensor can be combined with scores of the shape ``whole``."""
    shape = shape_of(tensor)
    if shape is None or not 0 < len(shape) <= len(whole) or str(tensor_type(tensor).dtype) != "float32":
        return False
    return all(
        integer(extent) == 1 or same_extent(extent, other)
        for extent, other in zip(shape[::-1], whole[::-1], strict=False)
    )


def _number(value: Any) -> float | None:
    """The number that a constant with one element is."""
    if not is_constant(value):
        return None
    array = constant_array(value)
    return float(array.item()) if array.size == 1 and str(array.dtype) == "float32" else None
