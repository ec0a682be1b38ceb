"""Attention of quantised models, both of whose products have two activations of 8 bits, as one kernel of integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tunehub.graph.attention.cpu.matching import ScoresInGraph, broadcasts, fit, scores_of, source_of
from tunehub.graph.attention.cpu.rule import Lengths, chosen_in_integers
from tunehub.graph.attention.pattern import is_softmax
from tunehub.graph.kernel_calls import Kernels
from tunehub.graph.quantised_tensors import QUANTIZE, affine_of, dequantised, has_type, variable_of
from tunehub.kernels.te.attention import Rounding, Step
from tunehub.kernels.te.integer_attention import QuantisedAttention, quantised_attention
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import bound_value, operator_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import Mutator

PRODUCTS = 2  # of one attention


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInGraph:
    """The kernel and its arguments."""

    how: QuantisedAttention
    arguments: tuple[Expr, ...]


class AttentionsInGraph:
    """The float variables that a rewriter has written for attention."""

    def __init__(self, graph: Mutator) -> None:
        self._graph, self._kernels = graph, Kernels(graph.builder_)
        self._known: dict[Expr, AttentionInGraph] = {}

    def as_float(self, product: Expr) -> Expr | None:
        """The variable for ``product``, a matmul, where it is attention."""
        found = _attention(self._graph, product)
        if found is None:
            return None
        variable = self._graph.builder_.emit(self._call(found))
        self._known[variable] = found
        return variable

    def quantised(self, source: Expr, affine: Affine, dtype: str) -> Expr | None:
        """The kernel of ``source``, one of these variables, that quantises its result, too."""
        found = self._known.get(variable_of(self._graph, source))
        if found is None:
            return None
        return self._call(replace(found, how=replace(found.how, result=Rounding(affine, dtype))))

    def _call(self, found: AttentionInGraph) -> Expr:
        return self._kernels.call(
            lambda q, k, v, *more: quantised_attention(q, k, v, more, found.how),
            *found.arguments,
            name="attention",
            alone=True,
            how=(found.how,),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantisedProducts:
    """Attention whose products are of dequantised integers: its ``scores``, and the ``query``, ``key`` and ``value``
    with what they stand for, as do its ``weight``s, of type ``weight_type``."""

    scores: ScoresInGraph
    query: tuple[Expr, Affine]
    key: tuple[Expr, Affine]
    value: tuple[Expr, Affine]
    weight: Affine
    weight_type: str


def quantised_products(graph: Mutator, product: Expr) -> QuantisedProducts | None:
    """``product`` of weights and values with what its weights are of."""
    weights, values = (dequantised(graph, each) for each in product.args)
    if weights is None or values is None:
        return None
    softmax = bound_value(graph, _source(graph, weights[0]))
    if not is_softmax(softmax):
        return None
    scores = scores_of(graph, softmax.args[0])
    operands = [None] if scores is None else [dequantised(graph, each) for each in scores.product.args]
    if scores is None or any(each is None for each in operands):
        return None
    query, key = (each for each in operands if each is not None)
    kind = str(tensor_type(weights[0]).dtype)
    return QuantisedProducts(scores=scores, query=query, key=key, value=values, weight=weights[1], weight_type=kind)


def _attention(graph: Mutator, product: Expr) -> AttentionInGraph | None:
    """The kernel of ``product``, of unsigned bytes."""
    found = quantised_products(graph, product)
    if found is None or found.weight_type != "uint8":
        return None
    tensors = (found.query, found.key, found.value)
    unsigned = all(has_type(each[0], "uint8") for each in tensors)
    return _fitted(graph, found.scores, tensors, found.weight) if unsigned else None


def _source(graph: Mutator, integers: Expr) -> Expr:
    """What is quantised to ``integers``."""
    value = bound_value(graph, integers)
    return value.args[0] if operator_of(value) == QUANTIZE and affine_of(graph, value) is not None else integers


def _fitted(
    graph: Mutator, scores: ScoresInGraph, tensors: tuple[tuple[Expr, Affine], ...], weight: Affine
) -> AttentionInGraph | None:
    """The kernel for these queries, keys and values, None where it is not for their shapes."""
    sources = [source_of(graph, each) for each, _ in tensors]
    q, k, _ = shapes = [each.shape for each in sources]
    if not fit(*shapes) or not all(broadcasts(each, (*q[:-1], k[-1])) for each in scores.operands):
        return None
    size = chosen_in_integers(Lengths.of(*shapes))
    if size is None:
        return None
    product, step, steps = scores_at_once(scores.steps)
    affines = [affine for _, affine in tensors]
    how = QuantisedAttention(
        query=affines[0],
        key=affines[1],
        weight=weight,
        value=affines[2],
        product=product,
        product_step=step,
        result=None,
        steps=steps,
        axes=tuple(each.axes for each in sources),
        scores=size,
    )
    return AttentionInGraph(how=how, arguments=(*(each.tensor for each in sources), *scores.operands))


def scores_at_once(
    steps: tuple[Step | Rounding, ...],
) -> tuple[Rounding | None, float, tuple[Step | Rounding, ...]]:
    """What the integers stand for that scores are rounded to at once, in multiples of what, and the steps behind that.
    Another rounding that moves none of these integers is none, as where only a number of a power of two is between."""
    first = steps[0] if steps else None
    if not isinstance(first, Rounding):
        return None, 1.0, steps
    end = next((at for at, step in enumerate(steps) if at and isinstance(step, Rounding)), None)
    between = [step for step in steps[1:end] if isinstance(step, Step)]
    if end is None or any(step.number is None for step in between):
        return first, first.affine.scale, steps[1:]
    second = steps[end]
    assert isinstance(second, Rounding)
    integers = np.arange(LIMITS[first.dtype][0], LIMITS[first.dtype][1] + 1)
    numbers = ((integers - first.affine.zero) * np.float32(first.affine.scale)).astype(np.float32)
    for step in between:
        numbers = step.of(numbers, np.float32(step.number))
    least, most = LIMITS[second.dtype]
    moved = np.clip(np.rint(numbers / np.float32(second.affine.scale)) + second.affine.zero, least, most)
    if not np.array_equal(moved - second.affine.zero, integers - first.affine.zero):
        return first, first.affine.scale, steps[1:]
    stand_for = Rounding(replace(first.affine, scale=second.affine.scale), first.dtype)
    return stand_for, first.affine.scale, steps[end + 1 :]
