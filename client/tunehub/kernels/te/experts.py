"""Products of rows with the weights of the experts that each chose, as a tensor expression, added up in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm import te, tirx

from tunehub.kernels.te.e4m3 import TYPE

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Tensor

NAME = "expert_product"
GROUP = 32  # quantised weights along K that share a scale
_WORD = 32  # bits


def expert_product(x: Tensor, number: Tensor, weights: Sequence[Tensor], *, shared_by: int, bits: int) -> Tensor:
    """``[rows · chosen, N]``: of each row and each of its experts, whose numbers are ``[rows, chosen]``; ``shared_by``
    of them share a row of ``x``. ``weights``: ``[experts, N, K]``, or with ``bits`` words and scales of these, as
    MLC-LLM has them; or numbers in e4m3 and scales of their rows, ``[experts, N]``."""
    narrow = str(weights[0].dtype) == TYPE
    chosen, k = number.shape[1], te.reduce_axis((0, x.shape[1]), "k")

    def each(row: PrimExpr, i: PrimExpr) -> PrimExpr:
        at = (number[row // chosen, row % chosen], i, k)
        weight = _dequantised(weights, at, bits) if bits and not narrow else weights[0](*at)
        return te.sum(x[row // shared_by, k].astype("float32") * weight.astype("float32"), axis=k)

    wide = te.compute((number.shape[0] * chosen, weights[0].shape[1]), each, name=NAME)

    def result(row: PrimExpr, i: PrimExpr) -> PrimExpr:
        own = wide[row, i]
        return (own * weights[1][number[row // chosen, row % chosen], i] if narrow else own).astype(x.dtype)

    return te.compute(wide.shape, result, name="expert_rows")


def _dequantised(weights: Sequence[Tensor], at: Sequence[PrimExpr], bits: int) -> PrimExpr:
    (words, scales), (*rows, k) = weights, at
    in_word, word, dtype = _WORD // bits, str(words.dtype), str(scales.dtype)
    shift = (k % in_word * bits).astype(word)
    stored = tirx.bitwise_and(tirx.shift_right(words(*rows, k // in_word), shift), tirx.const((1 << bits) - 1, word))
    return (stored.astype(dtype) - tirx.const((1 << (bits - 1)) - 1, dtype)) * scales(*rows, k // GROUP)
