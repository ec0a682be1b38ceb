"""Layers of the same rows that differ in their constants alone, such as queries, keys and values of attention, as one:
weights side by side, and scales, biases and zero points of columns. One product fills a GPU better and is launched
once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax, te, tirx

from tunehub.graph.kernel_calls import Kernels
from tunehub.graph.quantised_tensors import DEQUANTIZE, QUANTIZE, affine_of, constant_of, variable_of
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.tir.nodes import bound_value, operator_of, same_extents, shape_of, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import Array, Mutator, PrimExpr, Tensor

_WIDE = "float32"
# Of layers that are rounded twice, whose columns have two scales and zero points then: on an H200 one of 4,096 rows
# took 33 us where three took 28, of 1,024 rows 13 and 15, of 128 rows 5 and 12; those rounded once 21 and 27, 12 and
# 15, 4 and 12.
_MOST_ROWS = 2048
_BINARY = ("relax.add", "relax.multiply", "relax.subtract")


class JoinedLayers:
    """What writes them in a graph."""

    def __init__(self, graph: Mutator) -> None:
        self._graph, self._kernels = graph, Kernels(graph.builder_)

    def narrowed(self, integers: Sequence[Expr], affines: Sequence[Affine], dtype: str) -> Expr | None:
        """``integers``, results of such layers [..., N], less their zero points in ``dtype``, side by side; None for
        others."""
        widths = [_width(each) for each in integers]
        whole = self._joined(integers)
        if whole is None:
            return None
        zeros = self._columns([affine.zero for affine in affines], widths, str(tensor_type(integers[0]).dtype))

        def compute(x: Tensor, zero: Tensor) -> Tensor:
            return te.compute(x.shape, lambda *i: x[i].astype(dtype) - zero[i[-1]].astype(dtype), name="narrowed")

        return self._emit(self._kernels.call(compute, whole, zeros, name="narrowed", how=(dtype,)))

    def _joined(self, parts: Sequence[Expr]) -> Expr | None:
        values = [bound_value(self._graph, part) for part in parts]
        name, kinds = operator_of(values[0]), {str(tensor_type(part).dtype) for part in parts}
        if any(operator_of(value) != name for value in values) or len(kinds) > 1:
            return None
        if name == "relax.matmul":
            return self._product(values)
        rules = {
            QUANTIZE: self._quantised,
            DEQUANTIZE: self._dequantised,
            "relax.astype": self._cast,
            "relax.reshape": self._reshaped,
            **dict.fromkeys(_BINARY, self._with_constants),
        }
        return rules[name](values) if name in rules else None

    def _product(self, values: Sequence[Expr]) -> Expr | None:
        """Of the same rows and constants."""
        weights = [constant_of(self._graph, value.args[1]) for value in values]
        rows = variable_of(self._graph, values[0].args[0])
        same = all(variable_of(self._graph, value.args[0]).same_as(rows) for value in values)
        if not same or any(weight is None or weight.ndim != 2 for weight in weights):
            return None
        weight = np.concatenate([each for each in weights if each is not None], axis=1)
        return self._emit(relax.op.matmul(rows, relax.const(weight), out_dtype=str(tensor_type(values[0]).dtype)))

    def _with_constants(self, values: Sequence[Expr]) -> Expr | None:
        whole = self._joined([value.args[0] for value in values])
        numbers = [constant_of(self._graph, value.args[1]) for value in values]
        widths = list(map(_width, values))
        if whole is None or any(
            each is None or each.size not in (1, n) for each, n in zip(numbers, widths, strict=True)
        ):
            return None
        columns = self._columns([each for each in numbers if each is not None], widths, str(tensor_type(whole).dtype))
        return self._emit(relax.Call(values[0].op, [whole, columns], values[0].attrs))

    def _cast(self, values: Sequence[Expr]) -> Expr | None:
        whole = self._joined([value.args[0] for value in values])
        return None if whole is None else self._emit(relax.op.astype(whole, str(tensor_type(values[0]).dtype)))

    def _reshaped(self, values: Sequence[Expr]) -> Expr | None:
        """Of which columns are as they were."""
        shapes = [shape_of(value) or () for value in values]
        before = [shape_of(value.args[0]) or () for value in values]
        if any(not same_extents(one[-1:], other[-1:]) for one, other in zip(shapes, before, strict=True)):
            return None
        whole = self._joined([value.args[0] for value in values])
        if whole is None:
            return None
        return self._emit(relax.op.reshape(whole, (*shapes[0][:-1], (shape_of(whole) or ())[-1])))

    def _quantised(self, values: Sequence[Expr]) -> Expr | None:
        """As :mod:`tunehub.graph.quantised.elements` does it: by the reciprocal, but by no number where that is 1."""
        known, dtype = self._read(values), str(tensor_type(values[0]).dtype)
        if known is None or dtype not in LIMITS:
            return None
        whole, affines, widths = known
        inverse = [float(np.float32(1) / np.float32(affine.scale)) for affine in affines]
        low, high = (tirx.const(each, _WIDE) for each in LIMITS[dtype])

        def compute(x: Tensor, zero: Tensor, *factor: Tensor) -> Tensor:
            def element(*i: PrimExpr) -> PrimExpr:
                steps = tirx.nearbyint(x[i] * factor[0][i[-1]] if factor else x[i])
                return te.min(te.max(steps + zero[i[-1]].astype(_WIDE), low), high).astype(dtype)

            return te.compute(x.shape, element, name="quantised")

        factors = [] if {*inverse} == {1.0} else [self._columns(inverse, widths, _WIDE)]
        zeros = self._columns([affine.zero for affine in affines], widths, dtype)
        return self._emit(self._kernels.call(compute, whole, zeros, *factors, name="quantised", how=(dtype,)))

    def _dequantised(self, values: Sequence[Expr]) -> Expr | None:
        rows = math.prod((static_shape(values[0]) or ())[:-1])
        known = self._read(values) if rows <= _MOST_ROWS else None
        if known is None or str(tensor_type(values[0]).dtype) != _WIDE:
            return None
        whole, affines, widths = known

        def compute(x: Tensor, zero: Tensor, scale: Tensor) -> Tensor:
            def element(*i: PrimExpr) -> PrimExpr:
                return (x[i].astype(_WIDE) - zero[i[-1]].astype(_WIDE)) * scale[i[-1]]

            return te.compute(x.shape, element, name="dequantised")

        zeros = self._columns([affine.zero for affine in affines], widths, str(tensor_type(whole).dtype))
        scales = self._columns([affine.scale for affine in affines], widths, _WIDE)
        return self._emit(self._kernels.call(compute, whole, zeros, scales, name="dequantised"))

    def _read(self, values: Sequence[Expr]) -> tuple[Expr, list[Affine], list[int]] | None:
        affines = [affine_of(self._graph, value) for value in values]
        whole = None if None in affines else self._joined([value.args[0] for value in values])
        if whole is None:
            return None
        return whole, [each for each in affines if each is not None], list(map(_width, values))

    def _columns(self, numbers: Sequence[Array | float], widths: Sequence[int], dtype: str) -> Expr:
        """Each of ``numbers`` for so many columns."""
        each = [np.broadcast_to(np.asarray(n, dtype).reshape(-1), (w,)) for n, w in zip(numbers, widths, strict=True)]
        return relax.const(np.concatenate(each))

    def _emit(self, expression: Expr) -> Expr:
        return self._graph.builder_.emit(expression)


def _width(tensor: Expr) -> int:
    """Columns, 0 where they are not known."""
    return int((static_shape(tensor) or (0,))[-1])
