"""Numbers of 8 bits in floating point, e4m3 (Micikevicius et al. 2022, arXiv 2209.05433), as tensor expressions: a
sign, four bits of exponent with a bias of 7, three of mantissa, and no infinities; the largest is 448.

What stands for no number is 480 here, and may be no number where hardware converts it: quantisation makes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import tirx

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr

LARGEST = 448.0
WORD = "uint32"
_SIGN, _REST = 0x80, 0x7F
_DROPPED = 20  # bits of float32's mantissa
_SMALL, _STEPS = 2.0**-6, 2.0**14
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
    small = _bits(size + tirx.const(_STEPS, "float32")) - _bits(tirx.const(_STEPS, "float32"))
    found = tirx.Select(size < tirx.const(_SMALL, "float32"), small, normal)
    return tirx.bitwise_or(found, sign).astype("uint8")


def _bits(number: PrimExpr) -> PrimExpr:
    return tirx.reinterpret(WORD, number)
