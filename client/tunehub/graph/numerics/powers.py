"""Powers with a constant exponent as products and roots.

TVM has no powers of integers at all, calls the C library for each element on CPUs, and on CUDA gets NaN for negative
bases (:mod:`tunehub.graph.numerics.accurate_math`). Exponents here are whole or half numbers from -3 to 8. Results are
those of the C library's ``pow`` apart from rounding and two bases of half exponents: ``-inf`` gives NaN, and the sign
of zero is that of the square root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tunehub.tir.nodes import same_shape, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Array

_LOWEST, _HIGHEST = -3.0, 8.0
_NARROW = ("float16", "bfloat16")  # computed in float32, rounded once

Emit = Callable[[Any], Any]


def is_expanded(exponent: float, dtype: str) -> bool:
    """Whether ``x ** exponent`` for ``x`` of the element type ``dtype`` is written with products and roots."""
    if dtype.startswith(("int", "uint")):
        return exponent in range(int(_HIGHEST) + 1)
    return dtype.startswith(("float", "bfloat")) and (2 * exponent).is_integer() and _LOWEST <= exponent <= _HIGHEST


def expanded_power(emit: Emit, call: Call, exponents: Array) -> Expr | None:
    """``call``, a ``relax.power`` whose exponents are the array or number ``exponents``, without the power.

    None when the exponents differ, are none of those that :func:`is_expanded` knows, or stretch the base to a shape
    that is not known. ``emit`` binds an expression to a variable and returns that.
    """
    base, values = call.args[0], np.unique(exponents)
    dtype, shape = str(tensor_type(base).dtype), shape_of(call)
    if values.size != 1 or not is_expanded(float(values[0]), dtype) or (shape is None and np.ndim(exponents)):
        return None
    result = _power(emit, base, float(values[0]), dtype)
    stretched = np.ndim(exponents) > 0 and not same_shape(call, base)
    return relax.op.broadcast_to(emit(result), shape) if stretched else result


def _power(emit: Emit, x: Expr, exponent: float, dtype: str) -> Expr:
    if dtype in _NARROW:
        wide = emit(relax.op.astype(x, "float32"))
        return relax.op.astype(emit(_power(emit, wide, exponent, "float32")), dtype)
    if exponent == 0:
        return relax.op.ones_like(x)
    if exponent == -0.5:
        return relax.op.rsqrt(x)
    whole, root = divmod(abs(exponent), 1)
    factors = [_whole_power(emit, x, int(whole))] if whole else []
    factors += [emit(relax.op.sqrt(x))] if root else []
    result = factors[0] if len(factors) == 1 else emit(relax.op.multiply(*factors))
    return result if exponent > 0 else relax.op.divide(relax.const(1, dtype), result)


def _whole_power(emit: Emit, x: Expr, exponent: int) -> Expr:
    """By squaring: 8 takes three products."""
    if exponent == 1:
        return x
    half = _whole_power(emit, x, exponent // 2)
    square = emit(relax.op.multiply(half, half))
    return emit(relax.op.multiply(square, x)) if exponent % 2 else square
