"""Attention over sequences of unknown length, and long ones: both products and the softmax between as one kernel.

``matmul(softmax(f(matmul(q, k))), v)`` is computed for a few queries at a time. Their scores stay in cache: they are
padded to whole vectors, so that no vector has a remainder, and keys and values are copied once, so that vectors lie in
one piece. What is divided by the sum of the exponentials is the result, not the weights (Dao et al. 2022, arXiv
2205.14135, without its online softmax: all scores of a few queries fit into the second cache).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.relax.fast_math import exp
from tunehub.relax.kernels import Kernels, rewritten
from tunehub.relax.nodes import (
    bound_value,
    constant_array,
    integer,
    is_constant,
    operator_of,
    plain_extent,
    same_extent,
    shape_of,
    tensor_type,
)

KEYS, VALUES = "tunehub_attention_keys", "tunehub_attention_values"
SCORES, MASKED = "tunehub_attention_scores", "tunehub_attention_masked"
MOST, WEIGHTS, TOTAL = "tunehub_attention_most", "tunehub_attention_weights", "tunehub_attention_total"
WEIGHTED, RESULT = "tunehub_attention_weighted", "tunehub_attention"
OPERAND = "tunehub_attention_operand"
SIDE = "_side"  # of the names of the blocks that keep several maxima or sums side by side
QUERIES = 6  # of one task: with two vectors of keys, twelve sums in registers
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.subtract": lambda a, b: a - b,
    "relax.multiply": lambda a, b: a * b,
    "relax.divide": lambda a, b: a / b,
}
_OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")
_MOST_STEPS = 4  # between a product and its softmax
MANY_KEYS = 256  # from which one kernel takes less than several, all extents known
_LOWEST = -3.4028234663852886e38  # of float32
FEWEST_QUERIES = 4 * QUERIES  # for which it does


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation on each score: with a number, or with the tensor at ``operand`` among the kernel's arguments."""

    name: str
    number: float | None
    operand: int | None
    swapped: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor whose axes are those of another in the order ``axes``."""

    tensor: Any
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents in that order; none where nothing is known of them."""
        own = shape_of(self.tensor)
        return () if own is None else tuple(own[axis] for axis in self.axes)

    def at(self, *place: Any) -> Any:
        """The element at a place along the axes in that order, of a tensor of tensor expressions."""
        own = dict(zip(self.axes, place, strict=True))
        return self.tensor[tuple(own[axis] for axis in range(len(self.axes)))]


def join_attention(mod: Any, vector: int) -> Any:
    """``mod`` with the attention over sequences of unknown length, or of many keys, as one kernel each; ``vector``:
    float32 elements."""
    graphs = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
    if not any(map(relax.analysis.defined_symbolic_vars, graphs)) and not any(map(_has_many_keys, graphs)):
        return mod  # spared the visit of every call
    joiner = _AttentionJoiner(mod)
    joiner.vector = vector
    written = rewritten(joiner, mod)
    return relax.transform.DeadCodeElimination()(written) if joiner.found else mod


def _has_many_keys(function: Any) -> bool:
    """Whether a softmax, or Relax's own operator, is over many keys."""
    calls = [each.value for block in getattr(function.body, "blocks", ()) for each in block.bindings]
    shapes = [shape_of(call) for call in calls if operator_of(call) == "relax.nn.softmax"]
    shapes += [(shape_of(call.args[1]) or ())[:2] for call in calls if operator_of(call) in _OPERATORS]
    return any(shape and (integer(shape[-1]) or 0) >= MANY_KEYS for shape in shapes)


@mutator
class _AttentionJoiner(PyExprMutator):  # type: ignore[misc]
    vector: int
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
        steps = [_Step("relax.multiply", scale, None, False), *[_Step("relax.add", None, 0, False)][: len(bias)]]
        orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        sources = [_Source(tensor, order) for tensor, order in zip((query, keys, values), orders, strict=True)]
        joined = self._joined(sources, steps, bias, False)
        return call if joined is None else relax.op.permute_dims(self.builder_.emit(joined), [0, 2, 1, 3])

    def _joined(
        self, sources: Sequence[_Source], steps: Sequence[_Step], operands: Sequence[Any], safe: bool
    ) -> Any | None:
        """The kernel, None where it is not for these tensors."""
        shapes = [source.shape for source in sources]
        if not _fits(*shapes) or any(str(tensor_type(source.tensor).dtype) != "float32" for source in sources):
            return None
        whole = (*shapes[0][:-1], shapes[1][-1])
        if not all(_broadcasts(each, whole) for each in operands):
            return None
        self.found = True
        axes, width = tuple(source.axes for source in sources), 2 * self.vector
        return self._kernels.call(
            lambda q, k, v, *more: attention(q, k, v, more, steps=steps, axes=axes, width=width, safe=safe),
            *(source.tensor for source in sources),
            *operands,
            name="attention",
            how=(*steps, axes, safe),
        )

    def _steps(self, expression: Any) -> tuple[Any, list[_Step], list[Any]]:
        """What scores are made of: the product, the operations in order, and the tensors in them."""
        steps: list[_Step] = []
        operands: list[Any] = []
        value = bound_value(self, expression)
        while operator_of(value) in _OPERATIONS:
            sides = [bound_value(self, each) for each in value.args]
            inner = 0 if self._leads_to_product(sides[0]) else 1
            number, operand = _number(sides[1 - inner]), None
            if number is None:
                operand = len(operands)
                operands.append(value.args[1 - inner])
            steps.append(_Step(operator_of(value), number, operand, inner == 1))
            value = sides[inner]
        return value, steps[::-1], operands

    def _leads_to_product(self, value: Any) -> bool:
        while operator_of(value) in _OPERATIONS:
            value = bound_value(self, value.args[0])
        return operator_of(value) == "relax.matmul"

    def _source(self, tensor: Any) -> _Source:
        """``tensor``, or what it is a transposition of."""
        value = bound_value(self, tensor)
        rank = len(shape_of(tensor) or ())
        if operator_of(value) != "relax.permute_dims":
            return _Source(tensor, tuple(range(rank)))
        axes = value.attrs.axes
        order = range(rank)[::-1] if axes is None else [int(axis) % rank for axis in axes]
        return _Source(value.args[0], tuple(order))


def attention(
    query: Any,
    keys: Any,
    values: Any,
    operands: Sequence[Any],
    *,
    steps: Sequence[_Step],
    axes: Sequence[Sequence[int]],
    width: int,
    safe: bool = False,
) -> Any:
    """The tensor ``[..., S, N]`` of queries ``[..., S, D]``, keys ``[..., D, T]`` and values ``[..., T, N]``.

    ``axes``: for these three, which axis of the tensor as it is given each of theirs is. ``steps``: what is done with
    each score before the softmax, ``operands``: tensors that broadcast to scores. ``width``: keys of two vectors.
    ``safe``: a query whose scores are all minus infinity gets zeros.
    """
    *lead, length, depth = _ordered(query, axes[0])
    sizes = _Sizes(
        lead=tuple(lead),
        length=length,
        depth=depth,
        keys=_ordered(keys, axes[1])[-1],
        outputs=_ordered(values, axes[2])[-1],
        width=width,
    )
    scores = _scores(sizes, _Source(query, tuple(axes[0])), _Source(keys, tuple(axes[1])))
    masked = _masked(sizes, scores, steps, operands)
    most = _joined_sides(sizes, masked, te.max, MOST)

    def power(*i: Any) -> Any:
        largest = most[i[:-2]]
        return exp(masked[i] - (tirx.max(largest, tirx.const(_LOWEST, "float32")) if safe else largest))

    powers = te.compute(sizes.tile, power, name=WEIGHTS)
    total = _joined_sides(sizes, powers, te.sum, TOTAL)
    sums = _weighted(sizes, powers, _Source(values, tuple(axes[2])))

    def result(*i: Any) -> Any:
        *outer, row, output = i
        place = (*outer, row // QUERIES, row % QUERIES)
        quotient = _element(sums, *place, output) / total[place]
        return tirx.Select(total[place] > 0, quotient, tirx.const(0, "float32")) if safe else quotient

    return te.compute((*lead, length, sizes.outputs), result, name=RESULT)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Extents: of axes for batch and heads, queries, their depth, keys, outputs; and keys of one group."""

    lead: tuple[Any, ...]
    length: Any
    depth: int
    keys: Any
    outputs: int
    width: int

    @property
    def groups(self) -> Any:
        """Groups of keys; the last one is filled up."""
        return (self.keys + self.width - 1) // self.width

    @property
    def tasks(self) -> Any:
        """Tasks of a head. TVM finds this form, and no other, equal to what it derives from the loops."""
        return (self.length - 1) // QUERIES + 1

    @property
    def tile(self) -> tuple[Any, ...]:
        """The shape of all scores."""
        return (*self.lead, self.tasks, QUERIES, self.groups, self.width)

    def row(self, task: Any, row: Any) -> Any:
        """The query of a row of a task; behind the end, the last one."""
        return tirx.min(task * QUERIES + row, self.length - 1)


def _scores(sizes: _Sizes, query: _Source, keys: _Source) -> Any:
    """The products of queries and keys, which are copied into groups."""

    def packed(*i: Any) -> Any:
        *outer, group, step, place = i
        key = group * sizes.width + place
        return tirx.if_then_else(key < sizes.keys, keys.at(*outer, step, key), tirx.const(0, "float32"))

    groups = te.compute((*sizes.lead, sizes.groups, sizes.depth, sizes.width), packed, name=KEYS)
    k = te.reduce_axis((0, sizes.depth), "k")

    def product(*i: Any) -> Any:
        *outer, task, row, group, place = i
        return te.sum(query.at(*outer, sizes.row(task, row), k) * _element(groups, *outer, group, k, place), axis=k)

    return te.compute(sizes.tile, product, name=SCORES)


def _masked(sizes: _Sizes, scores: Any, steps: Sequence[_Step], operands: Sequence[Any]) -> Any:
    """Scores as the softmax takes them; those behind the last key count nothing."""
    whole = [_padded(operand, sizes, at) for at, operand in enumerate(operands)]

    def masked(*i: Any) -> Any:
        *outer, task, row, group, place = i
        key, score = group * sizes.width + place, scores[i]
        for step in steps:
            if step.operand is None:
                other = tirx.const(step.number, "float32")
            else:
                other = _broadcast(whole[step.operand], (*outer, sizes.row(task, row), key))
            score = _OPERATIONS[step.name](*((other, score) if step.swapped else (score, other)))
        return tirx.Select(key < sizes.keys, score, tirx.const(-math.inf, "float32"))

    return te.compute(sizes.tile, masked, name=MASKED)


def _joined_sides(sizes: _Sizes, scores: Any, reducer: Callable[..., Any], name: str) -> Any:
    """A maximum or sum over all keys: of each place in a group, and then of these."""
    group, lane = te.reduce_axis((0, sizes.groups), "group"), te.reduce_axis((0, sizes.width), "lane")
    rows = (*sizes.lead, sizes.tasks, QUERIES)

    def along(*i: Any) -> Any:
        return reducer(_element(scores, *i[:-1], group, i[-1]), axis=group)

    side = te.compute((*rows, sizes.width), along, name=name + SIDE)
    return te.compute(rows, lambda *i: reducer(_element(side, *i, lane), axis=lane), name=name)


def _weighted(sizes: _Sizes, powers: Any, values: _Source) -> Any:
    """The sums of values, which are copied in the order of the keys' groups, zeros behind the last."""

    def filled(*i: Any) -> Any:
        *outer, group, place, output = i
        key = group * sizes.width + place
        return tirx.if_then_else(key < sizes.keys, values.at(*outer, key, output), tirx.const(0, "float32"))

    groups = te.compute((*sizes.lead, sizes.groups, sizes.width, sizes.outputs), filled, name=VALUES)
    part, lane = te.reduce_axis((0, sizes.groups), "part"), te.reduce_axis((0, sizes.width), "lane")

    def weighted(*i: Any) -> Any:
        *outer, task, row, output = i
        weight = _element(powers, *outer, task, row, part, lane)
        return te.sum(weight * _element(groups, *outer, part, lane, output), axis=[part, lane])

    return te.compute((*sizes.lead, sizes.tasks, QUERIES, sizes.outputs), weighted, name=WEIGHTED)


def _element(tensor: Any, *place: Any) -> Any:
    return tensor[place]


def _padded(operand: Any, sizes: _Sizes, at: int) -> Any:
    """A tensor that scores are combined with, zeros behind its last axis; itself where that is 1."""
    shape = [plain_extent(extent) for extent in operand.shape]
    if integer(shape[-1]) == 1:
        return operand

    def compute(*i: Any) -> Any:
        return tirx.if_then_else(i[-1] < sizes.keys, operand[i], tirx.const(0, "float32"))

    return te.compute((*shape[:-1], sizes.groups * sizes.width), compute, name=f"{OPERAND}{at}")


def _broadcast(tensor: Any, place: Sequence[Any]) -> Any:
    shape = [plain_extent(extent) for extent in tensor.shape]
    own = place[len(place) - len(shape) :]
    return tensor[tuple(0 if integer(extent) == 1 else at for at, extent in zip(own, shape, strict=True))]


def _ordered(tensor: Any, axes: Sequence[int]) -> list[Any]:
    return [plain_extent(tensor.shape[axis]) for axis in axes]


def _fits(q: Sequence[Any], k: Sequence[Any], v: Sequence[Any]) -> bool:
    """Whether these are shapes of queries, keys and values with the same heads and static depth, of which not all
    lengths are known, or the keys are many."""
    if len({len(q), len(k), len(v)}) > 1 or len(q) < 2 or integer(q[-1]) is None or integer(v[-1]) is None:
        return False
    queries, keys = integer(q[-2]), integer(k[-1])
    if queries is not None and keys is not None and (queries < FEWEST_QUERIES or keys < MANY_KEYS):
        return False  # few static scores have schedules of their own
    pairs = [*zip(q[:-2], k[:-2], strict=True), *zip(q[:-2], v[:-2], strict=True), (q[-1], k[-2]), (k[-1], v[-2])]
    return all(same_extent(*pair) for pair in pairs)


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
