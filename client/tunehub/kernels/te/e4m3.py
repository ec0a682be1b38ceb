"""Numbers of 8 bits in floating point, e4m3 (Micikevicius et al. 2022, arXiv 2209.05433), as tensor expressions: a
sign, four bits of exponent with a bias of 7, three of mantissa, and no infinities; the largest is 448.

They lie as bytes of 32-bit words, the first in the lowest bits. What stands for no number is 480 here, and may be no
number where hardware converts it: quantisation makes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm import tirx

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Tensor

LARGEST = 448.0
IN_WORD = 4
WORD = "uint32"
_SIGN, _REST = 0x80, 0x7F
_BIAS = 256.0  # 2^(15 - 7): exponents of float16 are so much larger


def e4m3_at(words: Tensor, at: Sequence[PrimExpr], dtype: str) -> PrimExpr:
    """Number ``at`` of ``words`` [..., K / 4], in the type ``dtype``, which has all of them."""
    shift = (at[-1] % IN_WORD * 8).astype(WORD)
    word = tirx.shift_right(words(*at[:-1], at[-1] // IN_WORD), shift)
    sign = tirx.shift_left(tirx.bitwise_and(word, tirx.const(_SIGN, WORD)), tirx.const(8, WORD))
    rest = tirx.shift_left(tirx.bitwise_and(word, tirx.const(_REST, WORD)), tirx.const(7, WORD))
    half = tirx.reinterpret("float16", tirx.bitwise_or(sign, rest).astype("uint16"))
    return (half.astype("float32") * tirx.const(_BIAS, "float32")).astype(dtype)
