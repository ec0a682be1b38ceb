"""How weights [N, K] lie in memory: in half precision, or quantised in groups along K as MLC-LLM has it (q4f16_1 and
q8f16_1), or in e4m3.

Quantised weights are unsigned numbers of 4 or 8 bits, the first in the lowest bits of each 32-bit word, with a scale in
float16 for each group of 32: ``(number - 7) * scale`` or ``(number - 127) * scale``, computed in float16. In bfloat16
likewise. Numbers in e4m3 are weights themselves: scales of rows are for what follows a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, main_module, parameters

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, Stmt, Tensor

GROUP = 32
WORD_BITS = 32
_PLAIN_BITS = 16
_HALF, _BFLOAT = "float16", "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """``bits`` of a weight; ``group``: so many along K share a scale, 0 where they have none; ``bfloat``: products of
    bfloat16, else of float16. ``centred``: half of the numbers are below 0 (ONNX), else one fewer (MLC-LLM). ``e4m3``:
    8 bits are a number in floating point."""

    bits: int
    group: int = 0
    bfloat: bool = False
    centred: bool = False
    e4m3: bool = False

    @property
    def packed(self) -> bool:
        """Whether they lie in words, of which weights are made."""
        return self.bits < _PLAIN_BITS

    @property
    def offset(self) -> int:
        """What is taken from a quantised number."""
        return int(2 ** (self.bits - 1)) - (0 if self.centred else 1)

    @property
    def stored(self) -> str:
        """The type of what lies in memory."""
        return "float8_e4m3fn" if self.e4m3 else "uint32"

    @property
    def per_element(self) -> int:
        """Weights in one of these."""
        return 1 if self.e4m3 else WORD_BITS // self.bits

    @property
    def bytes_of_weight(self) -> float:
        """Of memory for one weight, its part of the scale included."""
        return self.bits / 8 + (2 / self.group if self.group else 0)


QUANTISED = (Format(bits=4, group=GROUP), Format(bits=8, group=GROUP))
E4M3 = Format(bits=8, e4m3=True)
CENTRED = tuple(replace(each, centred=True) for each in QUANTISED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantised:
    """Weights that ``blocks`` make of parameters of a function; ``scales``: None in e4m3."""

    format: Format
    weights: Buffer
    scales: Buffer | None
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


def decoded(weights: Tensor, dtype: str) -> Tensor:
    """The tensor expression of weights [N, K] in the type ``dtype``, of ``weights`` [N, K] in e4m3."""
    from tvm import te

    return te.compute(weights.shape, lambda *at: weights(*at).astype(dtype), name="compute")


def weights_made(given: Sequence[Tensor], form: Format, dtype: str) -> Tensor:
    """Those in the type ``dtype`` of words, and scales of groups, as TVM's tensors."""
    return decoded(given[0], dtype) if form.e4m3 else dequantised(given[0], given[1], form)


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
    if len(makers) != 1 or len(makers[0].reads) not in (1, 2):
        return None
    sources = [buffer_of(region) for region in makers[0].reads]
    if not all(any(source.same_as(each) for each in own) for source in sources):
        return None
    made = _kind(buffer)[1]
    for form in QUANTISED if len(sources) > 1 else (E4M3,):
        wanted = _canonical([_kind(source) for source in sources], form, made)
        if wanted is not None and structural_equal(makers[0], wanted, map_free_vars=True):
            form = replace(form, bfloat=made == _BFLOAT)
            scales = sources[1] if form.group else None
            return Quantised(format=form, weights=sources[0], scales=scales, blocks=(str(makers[0].name_hint),))
    return None


def _kind(buffer: Buffer) -> tuple[tuple[int, ...], str]:
    kind = buffer_kind(buffer)
    return tuple(int(extent) for extent in kind.shape), str(kind.dtype)


def _canonical(kinds: list[tuple[tuple[int, ...], str]], form: Format, made: str) -> Stmt | None:
    """The block of :func:`weights_made` for operands of these shapes and types and weights in the type ``made``, None
    where they do not fit."""
    from tvm import te

    (shape, word), *scaled = kinds
    if len(shape) != 2 or word != form.stored or made not in (_HALF, _BFLOAT):
        return None
    if scaled and scaled != [((shape[0], shape[1] * (WORD_BITS // form.bits) // form.group), made)]:
        return None
    given = [te.placeholder(*kind, name=name) for kind, name in zip(kinds, ("weights", "scales"), strict=False)]
    function = te.create_prim_func([*given, weights_made(given, form, made)], index_dtype_override="int64")
    return next(block for block in blocks_in(main_module(function)["main"].body) if block.iter_vars)
