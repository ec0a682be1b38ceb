"""Attention of quantised models, both of whose products have two activations of 8 bits, as one kernel of integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tunehub.relax.kernels import Kernels
from tunehub.relax.layout.attention.integer_kernel import QuantisedAttention, quantised_attention
from tunehub.relax.layout.attention.kernel import Rounding
from tunehub.relax.layout.attention.matching import ScoresInGraph, broadcasts, fit, is_softmax, scores_of, source_of
from tunehub.relax.layout.attention.rule import Lengths, chosen_in_integers
from tunehub.relax.nodes import bound_value, integer, operator_of
from tunehub.relax.quantised.operands import QUANTIZE, affine_of, dequantised, has_type, variable_of
from tunehub.relax.quantised.scales import Affine
from tunehub.templates.dot_product import DotProduct

PRODUCTS = 2  # of one attention


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionInGraph:
    """The kernel and its arguments."""

    how: QuantisedAttention
    arguments: tuple[Any, ...]


class AttentionsInGraph:
    """The float variables that a rewriter has written for attention."""

    def __init__(self, graph: Any) -> None:
        self._graph, self._kernels = graph, Kernels(graph.builder_)
        self._known: dict[Any, AttentionInGraph] = {}

    def as_float(self, product: Any, dot: DotProduct) -> Any | None:
        """The variable for ``product``, a matmul, where it is attention of which the CPU multiplies all in words."""
        found = _attention(self._graph, product) if (dot.lanes, dot.group) == (16, 4) else None
        if found is None:
            return None
        variable = self._graph.builder_.emit(self._call(found))
        self._known[variable] = found
        return variable

    def quantised(self, source: Any, affine: Affine, dtype: str) -> Any | None:
        """The kernel of ``source``, one of these variables, that quantises its result, too."""
        found = self._known.get(variable_of(self._graph, source))
        return (
            None
            if found is None
            else self._call(replace(found, how=replace(found.how, result=Rounding(affine, dtype))))
        )

    def _call(self, found: AttentionInGraph) -> Any:
        return self._kernels.call(
            lambda q, k, v, *more: quantised_attention(q, k, v, more, found.how),
            *found.arguments,
            name="attention",
            how=(found.how,),
        )


def _attention(graph: Any, product: Any) -> AttentionInGraph | None:
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
    if not all(has_type(each[0], "uint8") for each in (query, key, weights, values)):
        return None
    return _fitted(graph, scores, (query, key, values), weights[1])


def _source(graph: Any, integers: Any) -> Any:
    """What is quantised to ``integers``."""
    value = bound_value(graph, integers)
    return value.args[0] if operator_of(value) == QUANTIZE and affine_of(graph, value) is not None else integers


def _fitted(
    graph: Any, scores: ScoresInGraph, tensors: tuple[tuple[Any, Affine], ...], weight: Affine
) -> AttentionInGraph | None:
    """The kernel for these queries, keys and values, None where it is not for their shapes."""
    sources = [source_of(graph, each) for each, _ in tensors]
    q, k, v = shapes = [each.shape for each in sources]
    if not fit(*shapes) or not all(broadcasts(each, (*q[:-1], k[-1])) for each in scores.operands):
        return None
    lengths = Lengths(queries=integer(q[-2]), keys=integer(k[-1]), depth=int(q[-1]), outputs=int(v[-1]))
    size = chosen_in_integers(lengths)
    if size is None:
        return None
    first = scores.steps[0] if scores.steps else None
    product = first if isinstance(first, Rounding) else None
    affines = [affine for _, affine in tensors]
    how = QuantisedAttention(
        query=affines[0],
        key=affines[1],
        weight=weight,
        value=affines[2],
        product=product,
        result=None,
        steps=scores.steps if product is None else scores.steps[1:],
        axes=tuple(each.axes for each in sources),
        scores=size,
    )
    return AttentionInGraph(how=how, arguments=(*(each.tensor for each in sources), *scores.operands))
