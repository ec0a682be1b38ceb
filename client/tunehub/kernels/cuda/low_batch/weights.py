"""How weights [N, K] lie in memory: in half precision, or quantised in groups along K as MLC-LLM has it (q4f16_1 and
q8f16_1).

Quantised weights are unsigned numbers of 4 or 8 bits, the first in the lowest bits of each 32-bit word, with a scale in
float16 for each group of 32: ``(number - 7) * scale`` or ``(number - 127) * scale``, computed in float16. In bfloat16
likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, main_module, parameters

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, Stmt, Tensor

GROUP = 32
WORD_BITS = 32
_HALF, _BFLOAT = "float16", "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """``bits`` of a weight; ``group``: so many along K share a scale, 0 where they have none; ``bfloat``: products of
    bfloat16, else of float16. ``centred``: half of the numbers are below 0 (ONNX), else one fewer (MLC-LLM)."""

    bits: int
    group: int = 0
    bfloat: bool = False
    centred: bool = False

    @property
    def offset(self) -> int:
        """What is taken from a quantised number."""
        return int(2 ** (self.bits - 1)) - (0 if self.centred else 1)

    @property
    def bytes_of_weight(self) -> float:
        """Of memory for one weight, its part of the scale included."""
        return self.bits / 8 + (2 / self.group if self.group else 0)


QUANTISED = (Format(bits=4, group=GROUP), Format(bits=8, group=GROUP))
CENTRED = tuple(replace(each, centred=True) for each in QUANTISED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantised:
    """Weights that ``blocks`` make of two parameters of a function."""

    format: Format
    weights: Buffer
    scales: Buffer
    blocks: tuple[str, ...]


def format_of(dtype: str) -> Format | None:
    """That of weights which are not quantised; None for another type."""
    return Format(bits=16, bfloat=dtype == _BFLOAT) if dtype in (_HALF, _BFLOAT) else None


def dequantised(weights: Tensor, scales: Tensor, form: Format) -> Tensor:
    """The tensor expression of weights [N, K] in the type of ``scales`` [N, K / 32], of ``weights`` [N, K * bits / 32]
    as TVM's tensors."""
    from tvm import te

    shape = (weights.shape[0], weights.shape[1] * (WORD_BITS // form.bits))
    return te.compute(shape, lambda row, k: weight_at(weights, scales, form, row, k), name="dequantize")


def weight_at(weights: Tensor, scales: Tensor, form: Format, row: PrimExpr, k: PrimExpr) -> PrimExpr:
    """One of them."""
    from tvm import tirx

    in_word, word, dtype = WORD_BITS // form.bits, str(weights.dtype), str(scales.dtype)
    shift = (k % in_word * form.bits).astype(word)
    number = tirx.bitwise_and(tirx.shift_right(weights[row, k // in_word], shift), tirx.const(2**form.bits - 1, word))
    return (number.astype(dtype) - tirx.const(form.offset, dtype)) * scales[row, k // form.group]


def quantised(function: PrimFunc, buffer: Buffer) -> Quantised | None:
    """Of what ``function``, a PrimFunc, makes its ``buffer``, where one block makes it as :func:`dequantised` says."""
    from tvm_ffi import structural_equal

    makers = [
        block for block in blocks_in(function.body) if any(buffer_of(each).same_as(buffer) for each in block.writes)
    ]
    own = parameters(function)
    if len(makers) != 1 or len(makers[0].reads) != 2:
        return None
    sources = [buffer_of(region) for region in makers[0].reads]
    if not all(any(source.same_as(each) for each in own) for source in sources):
        return None
    for form in QUANTISED:
        wanted = _canonical([_kind(source) for source in sources], form)
        if wanted is not None and structural_equal(makers[0], wanted, map_free_vars=True):
            form = replace(form, bfloat=_kind(sources[1])[1] == _BFLOAT)
            return Quantised(format=form, weights=sources[0], scales=sources[1], blocks=(str(makers[0].name_hint),))
    return None


def _kind(buffer: Buffer) -> tuple[tuple[int, ...], str]:
    kind = buffer_kind(buffer)
    return tuple(int(extent) for extent in kind.shape), str(kind.dtype)


def _canonical(kinds: list[tuple[tuple[int, ...], str]], form: Format) -> Stmt | None:
    """The block of :func:`dequantised` for operands of these shapes and types, None where they do not fit."""
    from tvm import te

    (shape, word), (scaled, half) = kinds
    fits = len(shape) == 2 and word == "uint32" and half in (_HALF, _BFLOAT)
    if not fits or scaled != (shape[0], shape[1] * (WORD_BITS // form.bits) // form.group):
        return None
    weights, scales = te.placeholder(shape, word, name="weights"), te.placeholder(scaled, half, name="scales")
    function = te.create_prim_func([weights, scales, dequantised(weights, scales, form)], index_dtype_override="int64")
    return next(block for block in blocks_in(main_module(function)["main"].body) if block.iter_vars)
