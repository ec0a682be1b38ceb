"""Numbers of 8 bits in floating point, e4m3 (Micikevicius et al. 2022, arXiv 2209.05433), as tensor expressions: a
sign, four bits of exponent with a bias of 7, three of mantissa, and no infinities; the largest is 448.

What stands for no number is 480 here, and may be no number where hardware converts it: quantisation makes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import te, tirx

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Tensor

LARGEST = 448.0
LEAST = 1e-7  # of the largest number of a row
TYPE = "float8_e4m3fn"
WORD = "uint32"
_SIGN, _REST = 0x80, 0x7F
_DROPPED = 20  # bits of float32's mantissa
_SMALL, _STEPS, _BITS_OF_STEPS = 2.0**-6, 2.0**14, 0x46800000  # CUDA takes no address of a number
_BIAS = 256.0  # 2^(15 - 7): exponents of float16 are so much larger


def number_of(byte: PrimExpr, dtype: str) -> PrimExpr:
    """The number that the lowest 8 bits of ``byte``, uint32, are, in the type ``dtype``, which has all of them."""
    sign = tirx.shift_left(tirx.bitwise_and(byte, tirx.const(_SIGN, WORD)), tirx.const(8, WORD))
    rest = tirx.shift_left(tirx.bitwise_and(byte, tirx.const(_REST, WORD)), tirx.const(7, WORD))
    half = tirx.reinterpret("float16", tirx.bitwise_or(sign, rest).astype("uint16"))
    return (half.astype("float32") * tirx.const(_BIAS, "float32")).astype(dtype)


def byte_of(number: PrimExpr) -> PrimExpr:
    """The uint8 of the number in e4m3 that is nearest to ``number``; of two as near the even one."""
    wide = number.astype("float32")
    sign = tirx.bitwise_and(tirx.shift_right(_bits(wide), tirx.const(24, WORD)), tirx.const(_SIGN, WORD))
    size = tirx.min(tirx.abs(wide), tirx.const(LARGEST, "float32"))
    odd = tirx.bitwise_and(tirx.shift_right(_bits(size), tirx.const(_DROPPED, WORD)), tirx.const(1, WORD))
    rounded = _bits(size) + odd + tirx.const((1 << (_DROPPED - 1)) - 1, WORD)
    normal = tirx.shift_right(rounded, tirx.const(_DROPPED, WORD)) - tirx.const((127 - 7) << 3, WORD)
    # A float of which the last bit is worth as much as that of the smallest numbers: adding rounds to these.
    small = _bits(size + tirx.const(_STEPS, "float32")) - tirx.const(_BITS_OF_STEPS, WORD)
    found = tirx.Select(size < tirx.const(_SMALL, "float32"), small, normal)
    return tirx.bitwise_or(found, sign).astype("uint8")


def rows_in_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales [..., 1] in float32, by which the largest number of each row of ``x`` [..., K] becomes that of e4m3, and
    the rows divided by these."""
    k = te.reduce_axis((0, x.shape[-1]), "k")
    shape = (*x.shape[:-1], 1)
    least, most = (tirx.const(number, "float32") for number in (LEAST, LARGEST))
    largest = te.compute(shape, lambda *at: te.max(tirx.abs(x(*at[:-1], k).astype("float32")), axis=k), name="largest")
    scales = te.compute(shape, lambda *at: tirx.max(largest(*at), least) / most, name="scales")

    def number(*at: PrimExpr) -> PrimExpr:
        value = x(*at).astype("float32") / scales(*at[:-1], 0)
        return tirx.min(tirx.max(value, tirx.const(-LARGEST, "float32")), most).astype(TYPE)

    return scales, te.compute(x.shape, number, name="numbers")


def _bits(number: PrimExpr) -> PrimExpr:
    return tirx.reinterpret(WORD, number)
