"""exp, erf, tanh and what is made of them, as polynomials that become vectors.

There are no vector instructions for these functions: TVM calls the C library for each element, 1.6 ns for ``exp`` and
6 ns for ``erf``. The polynomials here take a tenth of that or less with AVX-512. Their largest errors, relative for
``exp`` and absolute otherwise: ``exp`` 2e-7, ``erf`` and ``tanh`` 5e-7. ``exp`` is 0 below -87, where it would be less
than 1.8e-38. Infinities give what the C library gives, and NaN gives NaN.

Sources: Cephes (``expf``: range reduction and polynomial), Eigen (``MathFunctionsImpl.h``: rational functions for
``tanh`` and ``erf``; ``topi.fast_tanh`` and ``topi.fast_erf`` have the same, but make numbers of NaN).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from tvm import te, tirx

from tunehub.tir.nodes import plain_extent

if TYPE_CHECKING:
    from tunehub.tir.types import Index, PrimExpr, Tensor

_LANES = 16  # of the widest vectors; narrower ones take several
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has few digits
_BIAS = 126  # of the exponent, less one: 2^127 is the largest power of two, and exp goes up to 2^128
_EXP_RANGE = (-88.0, 89.0)  # beyond, the result is 0 or infinity
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# fmt: off
_TANH = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)
_TANH_DIVISOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_ERF = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)
_ERF_DIVISOR = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02,
)
# fmt: on


def exp(x: PrimExpr) -> PrimExpr:
    """e to the power of the float32 expression ``x``."""
    low, high = _EXP_RANGE
    within = _clamped(x, low, high)
    biased = tirx.Cast("int32", within * _f32(_LOG2_E) + _f32(_BIAS + 0.5))  # positive, so that this rounds down
    power = tirx.Cast("float32", biased) - _f32(_BIAS)
    rest = within - power * _f32(_LN2_HIGH) - power * _f32(_LN2_LOW)
    doubled = _polynomial(rest, [2 * c for c in (*_EXP, 1.0, 1.0)])
    return tirx.reinterpret("float32", biased << tirx.const(23, "int32")) * doubled


def tanh(x: PrimExpr) -> PrimExpr:
    """The hyperbolic tangent of the float32 expression ``x``."""
    return tanh_within(_clamped(x, -9.0, 9.0))


def tanh_within(x: PrimExpr) -> PrimExpr:
    """The same for ``x`` from -9 to 9."""
    return _odd_ratio(x, _TANH, _TANH_DIVISOR)


def erf(x: PrimExpr) -> PrimExpr:
    """The error function of the float32 expression ``x``."""
    return _odd_ratio(_clamped(x, -4.0, 4.0), _ERF, _ERF_DIVISOR)


def sigmoid(x: PrimExpr) -> PrimExpr:
    """``1 / (1 + e^-x)``."""
    return _f32(1) / (_f32(1) + exp(_f32(0) - x))


def silu(x: PrimExpr) -> PrimExpr:
    """``x`` times its sigmoid."""
    return x * sigmoid(x)


def gelu(x: PrimExpr) -> PrimExpr:
    """``x`` times the normal distribution's share below ``x``."""
    return x * (_f32(0.5) + _f32(0.5) * erf(x * _f32(math.sqrt(0.5))))


def gelu_tanh(x: PrimExpr) -> PrimExpr:
    """The usual approximation of :func:`gelu`; ``(1 + tanh u) / 2`` is the sigmoid of ``2 u``."""
    return x * sigmoid(x * _f32(math.sqrt(8 / math.pi)) * (_f32(1) + _f32(0.044715) * x * x))


def quarter_power(x: PrimExpr, quarters: int) -> PrimExpr:
    """``x`` to the power of ``quarters / 4``, 1 to 16, by roots and products (0.75 is that of ONNX's LRN).

    As the C library's ``powf``, but NaN for minus infinity where the exponent is no integer.
    """
    root = tirx.sqrt(x)
    halves = [root] if quarters // 2 % 2 else []
    return reduce(operator.mul, [*[x] * (quarters // 4), *halves, *([tirx.sqrt(root)] if quarters % 2 else [])])


def softmax(data: Tensor, axis: int) -> Tensor:
    """The softmax of a tensor along ``axis``; its steps are those of ``topi.nn.softmax``.

    Rows that no vector divides (197 patches and a class of a Vision Transformer), and those of any length, are reduced
    in vectors nevertheless: ``_LANES`` maxima or sums side by side, the last of a row filled up, and then these.
    """
    shape = [plain_extent(extent) for extent in data.shape]
    most = _along(data, axis, te.max, tirx.min_value("float32"), "T_softmax_maxelem")
    powers = te.compute(shape, lambda *i: exp(data[i] - most[_without(axis, i)]), name="T_softmax_exp")
    total = _along(powers, axis, te.sum, _f32(0), "T_softmax_expsum")
    return te.compute(shape, lambda *i: powers[i] / total[_without(axis, i)], name="T_softmax_norm")


def _along(tensor: Tensor, axis: int, reducer: Callable[..., PrimExpr], neutral: PrimExpr, name: str) -> Tensor:
    """``tensor`` reduced along ``axis``, in vectors where these do not divide its rows."""
    shape = [plain_extent(extent) for extent in tensor.shape]
    kept, length = _without(axis, shape), shape[axis]
    if axis != len(shape) - 1 or (isinstance(length, int) and (length <= _LANES or _divided(length))):
        return _reduced(tensor, axis, kept, reducer, length, name)
    k = te.reduce_axis((0, (length + _LANES - 1) // _LANES), "k")

    def side(*i: PrimExpr) -> PrimExpr:
        last = k * _LANES + i[-1]
        place = (*i[:-1], last)
        return reducer(tirx.if_then_else(last < length, tensor[place], neutral), axis=k)

    sides = te.compute((*kept, _LANES), side, name=f"{name}_side")
    return _reduced(sides, axis, kept, reducer, _LANES, name)


def _reduced(
    tensor: Tensor, axis: int, kept: Sequence[Index], reducer: Callable[..., PrimExpr], extent: Index, name: str
) -> Tensor:
    """``tensor`` reduced along ``axis`` of ``extent``; ``kept``: its shape without that."""
    k = te.reduce_axis((0, extent), "k")

    def whole(*i: PrimExpr) -> PrimExpr:
        place = (*i[:axis], k, *i[axis:])
        return reducer(tensor[place], axis=k)

    return te.compute(kept, whole, name=name)


def _without(axis: int, values: Sequence[Index]) -> tuple[Index, ...]:
    return (*values[:axis], *values[axis + 1 :])


def _divided(length: int) -> bool:
    """True when at least eight numbers side by side divide ``length``: a template splits such a row by itself."""
    return any(length % lanes == 0 for lanes in range(8, 2 * _LANES + 1))


def _odd_ratio(x: PrimExpr, coefficients: Sequence[float], divisor: Sequence[float]) -> PrimExpr:
    square = x * x
    return x * _polynomial(square, coefficients) / _polynomial(square, divisor)


def _polynomial(x: PrimExpr, coefficients: Sequence[float]) -> PrimExpr:
    """Horner's scheme; the coefficient of the highest power first."""
    value = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _f32(coefficient)
    return value


def _clamped(x: PrimExpr, low: float, high: float) -> PrimExpr:
    """``x`` within bounds; NaN stays NaN, because a comparison with it makes TVM take the second operand."""
    return tirx.max(_f32(low), tirx.min(_f32(high), x))


def _f32(value: float) -> PrimExpr:
    return tirx.const(value, "float32")
