"""Keys and values of sequences, in pages or in rows of their own, as kernels for CPUs read them: sixteen at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.vectors import Vectors
from tunehub.tir.statements import const, load, nest, sequence, serial, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, Stmt

BLOCK = 16  # keys, and lanes: a page
LANES = 16
VECTORS = Vectors(LANES)
TWICE = Vectors(2 * LANES)  # of 16 bits
KEYS, VALUES = 0, 1
LEAST = -5e4  # that scores are at least, as TVM's kernels have it
MASKED = -1e30  # scores of keys that are not seen


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionOverKeys:
    """``heads`` of queries share ``key_heads`` of ``depth`` elements of type ``dtype``, a multiple of ``LANES``.
    ``buffers``: of TVM's kernels, by what they are; ``scale``: of scores as exponents of 2; ``causal``: whether queries
    see no later keys; ``pairs``: many queries are multiplied in pairs of bfloat16, to which other types are rounded;
    ``tiles``: by AMX."""

    heads: int
    key_heads: int
    depth: int
    dtype: str
    buffers: Mapping[str, Buffer]
    scale: PrimExpr
    causal: PrimExpr
    pairs: bool = False
    tiles: bool = False

    @property
    def group(self) -> int:
        """Heads of queries that share keys."""
        return self.heads // self.key_heads

    @property
    def vectors(self) -> int:
        """Of a row."""
        return self.depth // LANES

    @property
    def sequences(self) -> PrimExpr:
        """Their number."""
        return self.buffers["key_offset"].shape[0].astype("int32")

    @property
    def in_pages(self) -> bool:
        """Whether keys are in pages."""
        return "pages" in self.buffers

    def length(self, sequence_: PrimExpr) -> PrimExpr:
        """Keys of a sequence."""
        from tvm import tirx

        table = self.buffers["table"]
        count = load(table, sequence_ + 1) - load(table, sequence_)
        if not self.in_pages:
            return count
        whole = (count - 1) * BLOCK + load(self.buffers["lengths"], sequence_)
        return tirx.Select(count > 0, whole, const(0))

    def first(self, sequence_: PrimExpr, block: PrimExpr) -> PrimExpr:
        """Where a block of keys begins: its page, or its first row."""
        place = load(self.buffers["table"], sequence_)
        return load(self.buffers["values"], place + block) if self.in_pages else place + block * BLOCK

    def row(self, kind: int, first: PrimExpr, head: PrimExpr, key: PrimExpr, vector: PrimExpr) -> PrimExpr:
        """A vector of a key or value of the block at ``first``, in float32."""
        return self._wide(self._row(kind, first, head, key, VECTORS.ramp(vector * LANES)))

    def row_words(self, kind: int, first: PrimExpr, head: PrimExpr, key: PrimExpr, vector: PrimExpr) -> PrimExpr:
        """The same as words of two numbers each."""
        return self._words(lambda elements: self._row(kind, first, head, key, elements), vector)

    def _row(self, kind: int, first: PrimExpr, head: PrimExpr, key: PrimExpr, elements: PrimExpr) -> PrimExpr:
        if self.in_pages:
            return load(self.buffers["pages"], first, const(kind), head, key, elements)
        return load(self.buffers[("keys", "own_values")[kind]], first + key, head, elements)

    def query(self, row: PrimExpr, head: PrimExpr, vector: PrimExpr) -> PrimExpr:
        """A vector of a query, scaled."""
        loaded = self._wide(load(self.buffers["queries"], row, head, VECTORS.ramp(vector * LANES)))
        return loaded * VECTORS.all(self.scale)

    def query_words(self, row: PrimExpr, head: PrimExpr, vector: PrimExpr) -> PrimExpr:
        """A vector of words of two numbers each, not scaled."""
        return self._words(lambda elements: load(self.buffers["queries"], row, head, elements), vector)

    def copied(self, kind: int, into: Buffer, first: PrimExpr, head: PrimExpr, last: PrimExpr) -> Stmt:
        """The keys or values of the block at ``first`` in float32 [BLOCK, depth]; what lies behind key ``last`` is that
        again."""
        from tvm import tirx

        def vector(key: PrimExpr, at: PrimExpr) -> Stmt:
            value = self.row(kind, first, head, tirx.min(key, last), at)
            return store(into, [VECTORS.ramp(key * self.depth + at * LANES)], value)

        return serial("key", BLOCK, lambda key: nest("vector", [self.vectors], lambda at: vector(key, at)))

    def stored(self, row: PrimExpr, head: PrimExpr, values: list[PrimExpr], largest: PrimExpr, total: PrimExpr) -> Stmt:
        """The results of a query, divided by what ``total`` is where that is not 0, and the logarithm of its sum."""
        from tvm import tirx

        whole = tirx.Select(total > const(0.0, "float32"), total, const(1.0, "float32"))
        output = self.buffers["output"]
        written = [
            store(output, [row, head, VECTORS.ramp(at * LANES)], self._narrow(each / VECTORS.all(whole)))
            for at, each in enumerate(values)
        ]
        return sequence([*written, store(self.buffers["lse"], [row, head], largest + tirx.log2(whole))])

    @property
    def are_neighbours(self) -> bool:
        """Whether two numbers of a word lie side by side in memory, else in two vectors."""
        return self.dtype == "bfloat16"

    def _words(self, loaded: Callable[[PrimExpr], PrimExpr], vector: PrimExpr) -> PrimExpr:
        """Vector ``vector`` of words of two numbers, in bfloat16."""
        if self.are_neighbours:
            return VECTORS.bits_as(loaded(TWICE.ramp(vector * TWICE.lanes)), "uint32")
        first = vector * TWICE.lanes
        return VECTORS.half_words(*(self._wide(loaded(VECTORS.ramp(first + at))) for at in (0, LANES)))

    def _wide(self, value: PrimExpr) -> PrimExpr:
        return value if self.dtype == "float32" else VECTORS.cast(value)

    def _narrow(self, value: PrimExpr) -> PrimExpr:
        return value if self.dtype == "float32" else VECTORS.cast(value, self.dtype)
