"""Products of data with a scale or a zero point that is computed when the model runs (dynamic quantisation)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tunehub.graph.quantised_tensors import DEQUANTIZE, constant_of, has_type, weight_of, widened
from tunehub.kernels.te.scales import LIMITS, Array, NotIntegerError, symmetric, totals_of
from tunehub.tir.nodes import bound_value, operator_of, same_extents, shape_of, static_shape

if TYPE_CHECKING:
    from tunehub.graph.quantised.integer_unit import IntegerUnit
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Mutator

_SHIFT = 128
_MOST = 255  # that a zero point is
Parts = tuple[Any, Any, Any]  # integers of 8 bits, their scale and their zero point, numbers


def parts_of(graph: Mutator, expression: Expr) -> Parts | None:
    """What ``expression`` is dequantised from, where its scale is no constant."""
    value = bound_value(graph, expression)
    if operator_of(value) != DEQUANTIZE or not _is_computed(graph, value):
        return None
    return tuple(value.args) if has_type(value.args[0], *LIMITS) else None


def shifted(graph: Mutator, call: Call) -> Expr | None:
    """The call of ``quantize`` to int8, with a computed scale, as one to uint8: 128 more."""
    if not _is_computed(graph, call) or not has_type(call, "int8"):
        return None
    emit = graph.builder_.emit
    wide = emit(relax.op.add(emit(relax.op.astype(call.args[2], "int32")), relax.const(np.int32(_SHIFT))))
    return relax.op.quantize(*call.args[:2], emit(relax.op.astype(wide, "uint8")), out_dtype="uint8")


def product(graph: Mutator, parts: Parts, weight: Expr, transposed: bool, unit: IntegerUnit) -> Expr:
    """A matmul of what is dequantised from ``parts`` with ``weight``, dequantised constants that are maybe
    ``transposed``. Raises NotIntegerError."""
    values, scales = weight_of(graph, weight, 0 if transposed else 1)
    data, scale, zero = parts
    emit = graph.builder_.emit
    sums = emit(_sums(graph, data, emit(relax.op.astype(zero, "int32")), values.T if transposed else values, unit))
    factors = emit(relax.op.multiply(scale, relax.const(scales.astype(np.float32).reshape(-1))))
    return relax.op.multiply(emit(relax.op.astype(sums, "float32")), factors)


def tokens_of(graph: Mutator, expression: Expr) -> tuple[Expr, Expr] | None:
    """The integers of 8 bits that ``expression`` is, times a number for each row of them, which comes with them."""
    value = bound_value(graph, expression)
    if operator_of(value) != "relax.multiply":
        return None
    for first, scale in (value.args, reversed(value.args)):
        inner, shape, rows = bound_value(graph, first), shape_of(first), shape_of(scale)
        if operator_of(inner) != "relax.astype" or not has_type(inner.args[0], *LIMITS) or not shape or not rows:
            continue
        if same_extents(rows, (*shape[:-1], 1)) and has_type(scale, "float32"):
            return inner.args[0], scale
    return None


def product_of_tokens(
    graph: Mutator, tokens: tuple[Expr, Expr], weight: tuple[Array, Array], unit: IntegerUnit
) -> Expr:
    """A matmul of such rows with ``weight`` [K, N] and its scales, as SmoothQuant has them (G. Xiao et al. 2023, arXiv
    2211.10438). Raises NotIntegerError."""
    emit, (values, scales) = graph.builder_.emit, weight
    sums = emit(_sums(graph, tokens[0], None, values, unit))
    rows = emit(relax.op.multiply(emit(relax.op.astype(sums, "float32")), tokens[1]))
    return relax.op.multiply(rows, relax.const(scales.astype(np.float32).reshape(-1)))


def scaled_weight(graph: Mutator, expression: Expr) -> tuple[Array, Array] | None:
    """A constant int8 [K, N] that is made float32 and multiplied by one for each column, or the transpose of such."""
    value = bound_value(graph, expression)
    transposed = operator_of(value) == "relax.permute_dims"
    value = bound_value(graph, value.args[0]) if transposed else value
    if operator_of(value) != "relax.multiply":
        return None
    for first, second in (value.args, reversed(value.args)):
        inner, scales = bound_value(graph, first), constant_of(graph, second)
        values = constant_of(graph, inner.args[0]) if operator_of(inner) == "relax.astype" else None
        if values is None or scales is None or values.dtype != np.int8 or values.ndim != 2:
            continue
        columns = values.shape[0 if transposed else 1]
        shapes = {(columns, 1)} if transposed else {(columns,), (1, columns)}
        if tuple(scales.shape) in shapes:
            return np.ascontiguousarray(values.T) if transposed else values, scales
    return None


def product_of_integers(graph: Mutator, call: Call, unit: IntegerUnit) -> Expr | None:
    """``(a - z) @ (b - y)`` of widened 8 bits, with a constant ``b``, as ONNX's ``MatMulInteger`` is imported.
    ``z`` may be computed. None for other products, NotIntegerError for one that stays as it is."""
    (data, zero), (factor, offset) = (widened(graph, argument) for argument in call.args)
    weight = None if factor is None else constant_of(graph, factor)
    zeros = np.zeros((), "int32") if offset is None else constant_of(graph, offset)
    if data is None or weight is None or zeros is None:
        return None
    if zeros.size not in (1, weight.shape[-1]):
        raise NotIntegerError("it is no product of uint8 with a matrix")
    values = symmetric(weight, zeros.reshape(-1) if zeros.size > 1 else zeros.reshape(()), 1)
    return _sums(graph, data, zero, values, unit)


def _sums(graph: Mutator, data: Expr, zero: Expr | None, weight: Array, unit: IntegerUnit) -> Expr:
    """``(data - zero) @ weight`` in integers: the zero point is taken off the sums."""
    if not has_type(data, *unit.data):
        raise NotIntegerError("it is no product of uint8 with a matrix")
    unit.check_product(weight)
    totals = totals_of(weight, 1, _MOST)
    emit = graph.builder_.emit
    sums = relax.op.matmul(data, relax.const(np.ascontiguousarray(weight)), out_dtype="int32")
    if zero is None:
        return sums
    moved = relax.op.multiply(emit(zero), relax.const(totals.astype("int32")))
    return relax.op.subtract(emit(sums), emit(moved))


def _is_computed(graph: Mutator, call: Call) -> bool:
    """Whether a call of ``quantize`` or ``dequantize`` has a scale and a zero point of one number each, the first of
    which is no constant."""
    numbers = all(static_shape(each) == () for each in call.args[1:3])
    return numbers and constant_of(graph, call.args[1]) is None
