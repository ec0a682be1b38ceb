"""Attention of which one kernel takes less than several: over sequences of unknown length, long ones, and ones in
bfloat16 (:mod:`tunehub.graph.attention.cpu.rule`).

``matmul(softmax(f(matmul(q, k))), v)`` becomes :func:`tunehub.kernels.te.attention.attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.attention.cpu.flash import FEWEST_ROWS, FlashCalls, is_causal
from tunehub.graph.attention.cpu.matching import broadcasts, fit, number_of, scores_of, source_of
from tunehub.graph.attention.cpu.rule import MANY_KEYS, Lengths, chosen
from tunehub.graph.attention.pattern import OPERATORS, is_softmax, operator_scale, replaces_nan
from tunehub.graph.attention.recognition import FoundAttention, found_attention
from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.quantised_tensors import constant_of
from tunehub.kernels.cpu.paged_attention.cached import LANES
from tunehub.kernels.te.attention import Reordered, Step, attention
from tunehub.kernels.te.grouped import TILES
from tunehub.tir.nodes import (
    bound_value,
    integer,
    operator_of,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.layout.narrowing import Narrowing
    from tunehub.graph.types import Call, Expr, Function
    from tunehub.tir.types import IRModule

_FEWEST_SAFE = 128  # queries and keys from which one kernel takes less, where zeros replace what is no number


def join_attention(mod: IRModule, vector: int, narrowing: Narrowing | None = None) -> IRModule:
    """``mod`` with the attention over sequences of unknown length, or of many keys, as one kernel each; ``vector``:
    float32 elements. ``narrowing``: which has operands in bfloat16; shorter ones of these are one kernel, too."""
    graphs = [function for function in mod.functions.values() if isinstance(function, relax.Function)]
    if not any(map(relax.analysis.defined_symbolic_vars, graphs)) and not any(
        _has_keys(each, _FEWEST_SAFE if narrowing is None else 1) for each in graphs
    ):
        return mod  # spared the visit of every call
    joiner = _AttentionJoiner(mod)
    joiner.vector, joiner.narrowing = vector, narrowing
    written = rewritten(joiner, mod)
    return relax.transform.DeadCodeElimination()(written) if joiner.found else mod


def _has_keys(function: Function, fewest: int) -> bool:
    """Whether a softmax, or Relax's own operator, is over so many keys."""
    calls = [each.value for block in getattr(function.body, "blocks", ()) for each in block.bindings]
    shapes = [shape_of(call) for call in calls if operator_of(call) == "relax.nn.softmax"]
    shapes += [(shape_of(call.args[1]) or ())[:2] for call in calls if operator_of(call) in OPERATORS]
    return any(shape and (integer(shape[-1]) or 0) >= fewest for shape in shapes)


@mutator
class _AttentionJoiner(PyExprMutator):  # type: ignore[misc]
    vector: int
    narrowing: Narrowing | None
    found = False

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels, self._flash = Kernels(self.builder_), FlashCalls(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        found = self._described(call)
        flash = self._flashed(found, FEWEST_ROWS)
        if flash is not None:
            return flash
        joined = self._operator(call) if operator_of(call) in OPERATORS else self._product(call)
        joined = self._flashed(found, 1) if joined is None else joined
        return call if joined is None else joined

    def _product(self, call: Call) -> Expr | None:
        """Of weights and values."""
        weights, safe = self._weights(call.args[0]) if operator_of(call) == "relax.matmul" else (None, False)
        if weights is None or not is_softmax(weights):
            return None
        scores = scores_of(self, weights.args[0])
        steps = [] if scores is None else [step for step in scores.steps if isinstance(step, Step)]
        if scores is None or len(steps) < len(scores.steps):
            return None  # there is none, or it is rounded to integers
        sources = [source_of(self, each) for each in (*scores.product.args, call.args[1])]
        return self._joined(sources, steps, scores.operands, safe)

    def _described(self, call: Call) -> FoundAttention | None:
        """Attention of open lengths, or over many keys of which some are hidden, fewer where zeros replace what is no
        number; None where vectors are others, or in bfloat16 but of a few queries or of open lengths by AMX."""
        serves = self.vector == LANES and operator_of(call) == "relax.matmul"
        found = found_attention(self, call) if serves else None
        if found is None or (not self._in_tiles(found) and self._rounded(found)):
            return None
        if integer(found.queries) is None:
            return found
        keys = integer(found.keys)
        if keys is None or (keys >= MANY_KEYS and is_causal(found)):
            return found
        return found if found.safe and min(keys, integer(found.queries) or 0) >= _FEWEST_SAFE else None

    def _rounded(self, found: FoundAttention) -> bool:
        """Whether products are in bfloat16: not those of a few queries, which wait for memory."""
        return self.narrowing is not None and (integer(found.queries) or LANES) >= LANES

    def _in_tiles(self, found: FoundAttention) -> bool:
        """Of open lengths, where many queries are multiplied by AMX."""
        open_ = integer(found.queries) is None and integer(found.keys) is None
        by = None if self.narrowing is None else self.narrowing.attention(found.depth, found.outputs)
        return open_ and by == TILES

    def _flashed(self, found: FoundAttention | None, fewest: int) -> Expr | None:
        """The kernel that leaves out what masks hide, for as many rows of a tile, or for any number by AMX."""
        if found is None:
            return None
        tiles = self._in_tiles(found)
        flash = self._flash.call(found, 1 if tiles else fewest, tiles=tiles)
        self.found |= flash is not None
        return flash

    def _weights(self, expression: Expr) -> tuple[Expr, bool]:
        """The softmax, and whether zeros are in place of what is no number behind it: of a query without any key."""
        value = bound_value(self, expression)
        if operator_of(value) != "relax.where":
            return value, False
        safe = replaces_nan(value, partial(bound_value, self), lambda each: number_of(constant_of(self, each)))
        return (bound_value(self, value.args[2]), True) if safe else (value, False)

    def _operator(self, call: Call) -> Expr | None:
        """Relax's own operator, of tensors ``[batch, length, heads, depth]``."""
        query, keys, values, *bias = call.args
        shape, attrs = shape_of(query), call.attrs
        if (
            shape is None
            or integer(shape[-1]) is None
            or attrs.causal_mask is not None
            or attrs.window_size is not None
        ):
            return None
        steps = [
            Step("relax.multiply", operator_scale(call, shape[-1]), None, False),
            *[Step("relax.add", None, 0, False)][: len(bias)],
        ]
        orders = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        sources = [Reordered(tensor, order) for tensor, order in zip((query, keys, values), orders, strict=True)]
        joined = self._joined(sources, steps, bias, False)
        return None if joined is None else relax.op.permute_dims(self.builder_.emit(joined), [0, 2, 1, 3])

    def _joined(
        self, sources: Sequence[Reordered], steps: Sequence[Step], operands: Sequence[Expr], safe: bool
    ) -> Expr | None:
        """The kernel, None where it is not for these tensors."""
        shapes = [source.shape for source in sources]
        if not fit(*shapes) or any(str(tensor_type(source.tensor).dtype) != "float32" for source in sources):
            return None
        scores = chosen(Lengths.of(*shapes), self.vector, self.narrowing)
        if scores is None:
            return None
        whole = (*shapes[0][:-1], shapes[1][-1])
        if not all(broadcasts(each, whole) for each in operands):
            return None
        self.found = True
        axes = tuple(source.axes for source in sources)
        return self._kernels.call(
            lambda q, k, v, *more: attention(q, k, v, more, steps=steps, axes=axes, scores=scores, safe=safe),
            *(source.tensor for source in sources),
            *operands,
            name="attention",
            alone=True,
            how=(*steps, axes, scores, safe),
        )
