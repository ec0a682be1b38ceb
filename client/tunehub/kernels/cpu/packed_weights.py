"""Weights of 4 or 8 bits in groups along K, in MLC-LLM's layout of rows, as products on CPUs read them.

A vector of words holds ``lanes`` words of a row, a chunk of K. Number ``i`` of each of its words is multiplied with
number ``i`` of as many words of activations, which are arranged so before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunehub.tir.nodes import integer
from tunehub.tir.statements import const

if TYPE_CHECKING:
    from tunehub.kernels.cpu.vectors import Vectors
    from tunehub.tir.types import Buffer, PrimExpr

GROUP = 32  # weights that share a scale
WORD = 32  # bits
_WIDEST = (16, 8, 4)
_TABLE_LANES = 16
_PLAIN_BITS = (8, 16)
_PAIR_BITS = (4, *_PLAIN_BITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedProduct:
    """A product with ``rows`` of ``depth`` numbers of ``bits``, by vectors of ``lanes`` words. ``integers``:
    activations are rounded to 8 bits; ``tiles``, ``pairs``: those of many rows and weights to bfloat16, for AMX or
    AVX512-BF16; ``wide``: only those of few rows in pairs; ``split``: those of several rows, in float32, are sums of
    three parts for AMX. ``plain``: weights are floats, and a word is what ``32 / bits`` vectors of them, one behind the
    other, have in a lane. ``centred``: half of all numbers are below 0, as ONNX has them; of MLC-LLM's one fewer.
    ``gated``: the first half of rows are gate's, the second
    up's, and results are SiLU(gate) · up."""

    rows: int
    depth: int
    bits: int
    lanes: int
    integers: bool
    tiles: bool = False
    pairs: bool = False
    wide: bool = False
    split: bool = False
    plain: bool = False
    centred: bool = False
    gated: bool = False

    @property
    def in_word(self) -> int:
        """Numbers of a word."""
        return WORD // self.bits

    @property
    def zero(self) -> int:
        """What is stored for 0."""
        return int(2 ** (self.bits - 1)) - (0 if self.centred else 1)

    @property
    def words(self) -> int:
        """Of a row."""
        return self.depth // self.in_word

    @property
    def chunks(self) -> int:
        """Vectors of words of a row."""
        return self.words // self.lanes

    @property
    def groups(self) -> int:
        """Of a row."""
        return self.depth // GROUP

    @property
    def words_of_group(self) -> int:
        """That share a scale."""
        return GROUP // self.in_word

    @property
    def byte_vectors(self) -> tuple[tuple[int, ...], ...]:
        """Which numbers of words are multiplied as bytes of a vector, for each vector."""
        return ((0, 2, 4, 6), (1, 3, 5, 7)) if self.bits == 4 else ((0, 1, 2, 3),)


def lanes_of(depth: int, bits: int, widest: int) -> int:
    """Of the widest vectors of words that fill a row of ``depth`` numbers, a multiple of ``GROUP``; ``widest``: those
    that a target has."""
    words = depth * bits // WORD
    return next(lanes for lanes in _WIDEST if lanes <= max(widest, _WIDEST[-1]) and words % lanes == 0)


def plain_product(
    rows: int,
    depth: int,
    widest: int,
    *,
    tiles: bool = False,
    pairs: bool = False,
    wide: bool = False,
    split: bool = False,
) -> PackedProduct | None:
    """The product with weights that are floats, where they fill vectors of ``widest`` lanes."""
    least = _PAIR_BITS if pairs else _PLAIN_BITS
    bits = next((each for each in least if depth % (widest * WORD // each) == 0 and depth % GROUP == 0), None)
    if bits is None:
        return None
    known = PackedProduct(rows=rows, depth=depth, bits=bits, lanes=widest, integers=False, plain=True)
    return replace(known, tiles=tiles, pairs=pairs, wide=wide, split=split)


def numbers_of(product: PackedProduct, vectors: Vectors, words: Buffer, at: int) -> PrimExpr:
    """Number ``at`` of each of a vector's ``words``, in float32, by a table where a vector has one for all."""
    from tvm import tirx

    shifted = vectors.get(words) >> vectors.all(at * product.bits, "uint32") if at else vectors.get(words)
    if product.bits == 4 and product.lanes == _TABLE_LANES:
        table = vectors.cast(vectors.ramp(-product.zero))
        return vectors.permuted(table, vectors.bits_as(shifted, "int32"))
    if (at + 1) * product.bits < WORD:
        shifted = tirx.bitwise_and(shifted, vectors.all(2**product.bits - 1, "uint32"))
    return vectors.cast(vectors.bits_as(shifted, "int32") - vectors.all(product.zero, "int32"))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of activations or results by their number, whatever shape they lie in; ``extents``: of it but for the
    last."""

    extents: Sequence[PrimExpr]

    @property
    def count(self) -> PrimExpr:
        """Of all rows."""
        count = const(1)
        for extent in self.extents:
            count = count * extent
        return count

    @property
    def are_one(self) -> bool:
        """Whether there is one."""
        return all(integer(each) == 1 for each in self.extents)

    def place(self, row: PrimExpr) -> list[PrimExpr]:
        """The indices of a row."""
        from tvm import tirx

        found: list[PrimExpr] = []
        for at, extent in reversed(list(enumerate(self.extents))):
            if integer(extent) == 1:
                found.insert(0, const(0))
            elif all(integer(each) == 1 for each in self.extents[:at]):
                found.insert(0, row)
            else:
                found.insert(0, tirx.floormod(row, extent))
                row = tirx.floordiv(row, extent)
        return found
