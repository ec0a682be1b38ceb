"""What rewriters of quantised models read of a graph: constants, scales, dequantised data and weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tvm import relax

from tunehub.kernels.te.scales import LIMITS, Affine, Array, NotIntegerError, symmetric
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    is_constant,
    operator_of,
    same_extents,
    shape_of,
    static_shape,
    tensor_type,
    variables_in,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Var
    from tunehub.tir.types import Expr as TirExpr
    from tunehub.tir.types import IRModule, Mutator

QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"
NOT_CONSTANT = "its second operand is not constant"  # for reports
_SHAPING = ("relax.reshape", "relax.expand_dims", "relax.astype")  # of constants


def affine_of(mutator: Mutator, call: Call) -> Affine | None:
    """The scale and zero point of a call of ``quantize`` or ``dequantize`` where they are constants for the whole
    tensor."""
    scales, zeros = (constant_of(mutator, argument) for argument in call.args[1:3])
    if scales is None or zeros is None:
        return None
    if scales.size != 1 or zeros.size != 1 or not np.isfinite(scales).all() or float(scales.reshape(())) <= 0:
        return None
    return Affine(scale=float(scales.reshape(())), zero=int(zeros.reshape(())))


def dequantised(mutator: Mutator, expression: Expr) -> tuple[Expr, Affine] | None:
    """The integers that ``expression`` is dequantised from, which are not constant."""
    value = bound_value(mutator, expression)
    affine = affine_of(mutator, value) if operator_of(value) == DEQUANTIZE else None
    if affine is None or is_constant(bound_value(mutator, value.args[0])):
        return None
    return (value.args[0], affine) if has_type(value.args[0], *LIMITS) else None


def weight_of(mutator: Mutator, value: Expr, outputs: int) -> tuple[Array, Array]:
    """The constant that a call of ``dequantize`` is of, less its zero points, and a scale for each output (or one for
    all). ``outputs``: their axis. NotIntegerError for others."""
    values, factors, offsets = (constant_of(mutator, argument) for argument in value.args)
    if values is None or factors is None or offsets is None:
        raise NotIntegerError(NOT_CONSTANT)
    if str(values.dtype) not in LIMITS:
        raise NotIntegerError(f"its weights are {values.dtype}")
    if offsets.dtype.kind not in "iu":
        raise NotIntegerError(f"zero points of its weights are {offsets.dtype}")
    if factors.size > 1 and int(value.attrs.axis) % values.ndim != outputs:
        raise NotIntegerError("its weights have scales along another axis than that of outputs")
    return symmetric(values, offsets.reshape(-1) if offsets.size > 1 else offsets.reshape(()), outputs), factors


def constant_of(mutator: Mutator, expression: Expr) -> Array | None:
    """The numbers of a constant, of one that is dequantised, or of such a one in another shape or type."""
    value = bound_value(mutator, expression)
    if is_constant(value):
        return constant_array(value)
    name, shape = operator_of(value), static_shape(value)
    inner = constant_of(mutator, value.args[0]) if name in (DEQUANTIZE, *_SHAPING) else None
    if inner is None or shape is None:
        return None
    if name == "relax.astype":
        return inner.astype(str(tensor_type(value).dtype))
    if name != DEQUANTIZE:
        return inner.reshape(shape)
    scale, zero = (constant_of(mutator, argument) for argument in value.args[1:3])
    if scale is None or zero is None:
        return None
    axis = int(value.attrs.axis) % max(inner.ndim, 1)
    along = [-1 if at == axis else 1 for at in range(inner.ndim)]
    scales, zeros = (a.reshape(along if a.size > 1 else ()) for a in (scale, zero))
    return np.asarray((inner.astype(np.int64) - zeros) * scales.astype(np.float64))


def widened(mutator: Mutator, expression: Expr) -> tuple[Expr | None, Expr | None]:
    """The 8 bits that ``expression`` has in 32, and the zero point in 32 that is taken off them; None where there is no
    such."""
    value, zero = bound_value(mutator, expression), None
    if operator_of(value) == "relax.subtract":
        value, zero = bound_value(mutator, value.args[0]), value.args[1]
    if operator_of(value) != "relax.astype" or not has_type(value.args[0], *LIMITS):
        return None, None
    return value.args[0], zero


def bounds_of(mutator: Mutator, value: Expr) -> tuple[float, float] | None:
    """What ``value`` clips its argument to; None when it is no clipping."""
    name = operator_of(value)
    if name in ("relax.nn.relu", "relax.nn.relu6"):
        return 0.0, 6.0 if name.endswith("6") else float("inf")
    if name == "relax.clip":
        low, high = (_number(each) for each in value.args[1:3])
        return low, high
    if name in ("relax.maximum", "relax.minimum"):
        bound = bound_value(mutator, value.args[1])
        number = constant_array(bound) if is_constant(bound) else None
        if number is not None and number.size == 1:
            limit = float(number.reshape(()))
            return (limit, float("inf")) if name == "relax.maximum" else (-float("inf"), limit)
    return None


def _number(value: TirExpr) -> float:
    """Of an attribute that is an argument: TVM's number, since 0.27 not in a ``PrimValue``."""
    return float(value.value.value if type(value).__name__ == "PrimValue" else value.value)


def matrix_of(mutator: Mutator, expression: Expr) -> Expr:
    """The second operand of a product: what it is bound to, and where that is a matrix repeated for each of a batch, as
    PyTorch writes layers of transposed sequences, the matrix."""
    value = bound_value(mutator, expression)
    if operator_of(value) != "relax.broadcast_to":
        return value
    inner = bound_value(mutator, value.args[0])
    matrix, batch = shape_of(inner) or (), shape_of(value) or ()
    return inner if len(matrix) == 2 and same_extents(matrix, batch[-2:]) else value


def variable_of(mutator: Mutator, expression: Expr) -> Expr:
    """The variable that ``expression``, maybe another name of it, is."""
    while isinstance(expression, relax.Var):
        bound = mutator.lookup_binding(expression)
        if not isinstance(bound, relax.Var):
            break
        expression = bound
    return expression


def has_type(expression: Expr, *dtypes: str) -> bool:
    """Whether the elements of ``expression`` are of one of ``dtypes``."""
    return str(tensor_type(expression).dtype) in dtypes


def users_in(mod: IRModule) -> dict[Var, list[Call]]:
    """Who reads each variable: calls, and None for anything else that does."""
    found: dict[Var, list[Call]] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for block in getattr(function.body, "blocks", ()):
                for binding in block.bindings:
                    _add_users(found, binding.value)
            _add_users(found, getattr(function.body, "body", function.body))
    return found


def _add_users(found: dict[Var, list[Expr]], value: Expr) -> None:
    user = value if isinstance(value, relax.Call) else None
    for variable in variables_in(value):
        found.setdefault(variable, []).append(user)
