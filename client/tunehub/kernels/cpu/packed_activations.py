"""Activations as products with packed weights read them: in the order of the numbers of words, in float32 or in 8 bits.

Of 8 bits, each group of 32 has a factor by its largest number, as llama.cpp's Q8_0 has: half a percent of noise, an
eighteenth of what weights of 4 bits have themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.packed_weights import PackedProduct, Rows
from tunehub.kernels.cpu.vectors import Vectors
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import block_of, const, load, parallel, sequence, serial, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt

_LARGEST = 127.0
_SMALLEST = 1e-30  # that the largest of a group is taken to be
_ROUNDING, _ROUNDING_BITS = 12582912.0, 0x4B400000  # 1.5 · 2²³, and its bits: a float added to it is rounded in these
_BYTE = 0xFF


class Activations:
    """Memory for them, and the statements that fill it. ``data`` as it is given; ``root``: the block of the function,
    for the classes of blocks."""

    def __init__(self, product: PackedProduct, data: Buffer, rows: Rows, root: SBlockRealize) -> None:
        self.product, self.data, self.rows, self.root = product, data, rows, root
        self.vectors = Vectors(product.lanes)

    @property
    def buffers(self) -> list[Buffer]:
        """That hold them."""
        raise NotImplementedError

    def arranged(self) -> Stmt:
        """All rows, by one thread where there is one."""

        def row(at: PrimExpr) -> Stmt:
            return serial("chunk", self.product.chunks, lambda chunk: self._chunk(at, chunk))

        return row(const(0)) if self.rows.are_one else parallel("row", self.rows.count, row)

    def _chunk(self, row: PrimExpr, chunk: PrimExpr) -> Stmt:
        raise NotImplementedError

    def _given(self, row: PrimExpr, chunk: PrimExpr, number: int) -> PrimExpr:
        """Number ``number`` of each word of a chunk."""
        in_word, lanes = self.product.in_word, self.product.lanes
        if self.product.plain:
            place = self.vectors.ramp((chunk * in_word + number) * lanes)
            return self.vectors.cast(load(self.data, *self.rows.place(row), place))
        first = chunk * (lanes * in_word) + number
        return self.vectors.cast(load(self.data, *self.rows.place(row), self.vectors.ramp(first, in_word)))

    def _memory(self, name: str, in_word: int, dtype: str) -> Buffer:
        """For so many elements for each word of a row."""
        from tvm import tirx

        return tirx.decl_buffer((self.rows.count * self.product.words * in_word,), dtype, name)

    def _place(self, row: PrimExpr, chunk: PrimExpr, of_chunk: int = 1, vector: int = 0) -> PrimExpr:
        """Where a vector of a chunk lies among ``of_chunk`` of them."""
        first = (row * self.product.chunks + chunk) * (of_chunk * self.product.lanes)
        return self.vectors.ramp(first + vector * self.product.lanes)


class Floats(Activations):
    """In float32."""

    def __init__(self, product: PackedProduct, data: Buffer, rows: Rows, root: SBlockRealize) -> None:
        super().__init__(product, data, rows, root)
        self._numbers = self._memory("numbers", product.in_word, "float32")

    @property
    def buffers(self) -> list[Buffer]:
        return [self._numbers]

    def number(self, row: PrimExpr, chunk: PrimExpr, number: int) -> PrimExpr:
        """Number ``number`` of each word."""
        return load(self._numbers, self._place(row, chunk, self.product.in_word, number))

    def element(self, row: PrimExpr, step: PrimExpr) -> PrimExpr:
        """One, by its place in that order."""
        return load(self._numbers, row * self.product.depth + step)

    def _chunk(self, row: PrimExpr, chunk: PrimExpr) -> Stmt:
        count = self.product.in_word
        places = [self._place(row, chunk, count, number) for number in range(count)]
        return sequence(
            [store(self._numbers, [at], self._given(row, chunk, number)) for number, at in enumerate(places)]
        )


class Pairs(Activations):
    """In bfloat16, in the order that they are given in, as tiles of AMX read them, and ``vdpbf16ps`` in words."""

    def __init__(self, product: PackedProduct, data: Buffer, rows: Rows, root: SBlockRealize) -> None:
        super().__init__(product, data, rows, root)
        self.numbers = self._memory("pairs", product.in_word, "uint16")

    @property
    def buffers(self) -> list[Buffer]:
        return [self.numbers]

    def pair(self, row: PrimExpr, at: PrimExpr) -> PrimExpr:
        """Two numbers, as a word."""
        from tvm import tirx

        first = row * self.product.depth + at * 2
        return tirx.reinterpret("int32", load(self.numbers, tirx.Ramp(first, const(1), 2)))

    def words(self, row: PrimExpr, first: PrimExpr) -> PrimExpr:
        """A vector of words, from number ``first`` on."""
        place = Vectors(2 * self.vectors.lanes).ramp(row * self.product.depth + first)
        return self.vectors.bits_as(load(self.numbers, place), "int32")

    def _chunk(self, row: PrimExpr, chunk: PrimExpr) -> Stmt:
        vectors, statements = self.vectors, []
        for at in range(self.product.in_word):
            first = (chunk * self.product.in_word + at) * self.product.lanes
            given = vectors.cast(load(self.data, *self.rows.place(row), vectors.ramp(first)))
            number = vectors.cast(vectors.high_half(given) >> vectors.all(16, "uint32"), "uint16")
            statements.append(store(self.numbers, [vectors.ramp(row * self.product.depth + first)], number))
        return sequence(statements)


class Integers(Activations):
    """In 8 bits. ``factors``: by lane, what sums are multiplied with; ``begins``: what they begin with, so that what is
    stored for 0 counts nothing. ``group_factors``, ``group_begins``: the same of whole groups, one behind the other."""

    def __init__(self, product: PackedProduct, data: Buffer, rows: Rows, root: SBlockRealize) -> None:
        from tvm import tirx

        super().__init__(product, data, rows, root)
        self._bytes = self._memory("bytes", len(product.byte_vectors), "int32")
        self._factors = self._memory("factors", 1, "float32")
        self._begins = self._memory("begins", 1, "int32")
        of_groups = rows.count * product.groups
        self._group_factors = tirx.decl_buffer((of_groups,), "float32", "group_factors")
        self._group_begins = tirx.decl_buffer((of_groups,), "int32", "group_begins")

    @property
    def buffers(self) -> list[Buffer]:
        return [self._bytes, self._factors, self._begins, self._group_factors, self._group_begins]

    def bytes(self, row: PrimExpr, chunk: PrimExpr, vector: int) -> PrimExpr:
        """A vector of bytes."""
        loaded = load(self._bytes, self._place(row, chunk, len(self.product.byte_vectors), vector))
        return self.vectors.bits_as(loaded, "int8", 4)

    def factor(self, row: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        """By lane."""
        return load(self._factors, self._place(row, chunk))

    def begin(self, row: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        """By lane."""
        return load(self._begins, self._place(row, chunk))

    def word(self, row: PrimExpr, chunk: PrimExpr, vector: PrimExpr, lane: PrimExpr) -> PrimExpr:
        """Four bytes, of a lane of a vector."""
        place = (row * self.product.chunks + chunk) * len(self.product.byte_vectors) + vector
        return load(self._bytes, place * self.product.lanes + lane)

    def group_factor(self, row: PrimExpr, group: PrimExpr) -> PrimExpr:
        """Of a group."""
        return load(self._group_factors, row * self.product.groups + group)

    def group_begin(self, row: PrimExpr, group: PrimExpr) -> PrimExpr:
        """Of a group as a whole."""
        return load(self._group_begins, row * self.product.groups + group)

    def groups_of(self, row: PrimExpr, chunk: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Factors and begins of a chunk's groups."""
        place = self._group_place(row, chunk)
        return load(self._group_factors, place), load(self._group_begins, place)

    def _group_place(self, row: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        """Where a chunk's groups lie."""
        count = self.product.lanes // self.product.words_of_group
        first = row * self.product.groups + chunk * count
        return first if count == 1 else Vectors(count).ramp(first)

    def _chunk(self, row: PrimExpr, chunk: PrimExpr) -> Stmt:
        vectors, count = self.vectors, self.product.in_word
        numbers = [vectors.buffer(f"number_{at}") for at in range(count)]
        rounded = [vectors.buffer(f"rounded_{at}", "int32") for at in range(count)]
        largest = vectors.buffer("largest")
        inverse = vectors.all(_LARGEST) / vectors.get(largest)
        statements = [vectors.set(each, self._given(row, chunk, at)) for at, each in enumerate(numbers)]
        statements += [*self._largest(numbers, largest)]
        statements += [
            vectors.set(one, to_integers(vectors, vectors.get(each) * inverse))
            for each, one in zip(numbers, rounded, strict=True)
        ]
        total = sum((vectors.get(each) for each in rounded[1:]), vectors.get(rounded[0]))
        place, begin = self._place(row, chunk), vectors.buffer("begin", "int32")
        statements += [
            vectors.set(largest, vectors.get(largest) * vectors.all(1 / _LARGEST)),
            store(self._factors, [place], vectors.get(largest)),
            vectors.set(begin, total * vectors.all(-self.product.zero, "int32")),
            store(self._begins, [place], vectors.get(begin)),
            *self._over_group(begin, lambda one, other: one + other),
            *self._of_groups(row, chunk, largest, begin),
            *self._stored(row, chunk, rounded),
        ]
        return block_of(self.root, sequence(statements), "quantise", [*numbers, *rounded, largest, begin])

    def _of_groups(self, row: PrimExpr, chunk: PrimExpr, factor: Buffer, begin: Buffer) -> list[Stmt]:
        """Store what each group has in all of its lanes."""
        place, lanes = self._group_place(row, chunk), range(0, self.product.lanes, self.product.words_of_group)
        return [
            store(into, [place], self.vectors.shuffled([self.vectors.get(each)], lanes))
            for into, each in ((self._group_factors, factor), (self._group_begins, begin))
        ]

    def _largest(self, numbers: list[Buffer], largest: Buffer) -> list[Stmt]:
        """The largest absolute number of each group, in all of its lanes."""
        from tvm import tirx

        vectors = self.vectors
        value = vectors.all(_SMALLEST)
        for each in numbers:
            one = vectors.get(each)
            value = tirx.max(value, tirx.max(one, vectors.all(0.0) - one))
        return [vectors.set(largest, value), *self._over_group(largest, tirx.max)]

    def _over_group(self, buffer: Buffer, joined: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> list[Stmt]:
        """Join the lanes of each group, in all of them."""
        from tvm import tirx

        vectors, statements, step, dtype = self.vectors, [], 1, str(buffer_kind(buffer).dtype)
        while step < self.product.words_of_group:
            lanes = tirx.bitwise_xor(vectors.ramp(0), vectors.all(step, "int32"))
            other = vectors.permuted(vectors.bits_as(vectors.get(buffer), "float32"), lanes)
            statements.append(vectors.set(buffer, joined(vectors.get(buffer), vectors.bits_as(other, dtype))))
            step *= 2
        return statements

    def _stored(self, row: PrimExpr, chunk: PrimExpr, rounded: list[Buffer]) -> list[Stmt]:
        """The lowest bytes of numbers, four of them in a word."""
        from tvm import tirx

        vectors, chosen = self.vectors, self.product.byte_vectors
        statements = []
        for vector, members in enumerate(chosen):
            word = vectors.all(0, "int32")
            for byte, number in enumerate(members):
                low = tirx.bitwise_and(vectors.get(rounded[number]), vectors.all(_BYTE, "int32"))
                word = tirx.bitwise_or(word, low << vectors.all(8 * byte, "int32"))
            statements.append(store(self._bytes, [self._place(row, chunk, len(chosen), vector)], word))
        return statements


def to_integers(vectors: Vectors, value: PrimExpr) -> PrimExpr:
    """The nearest integers, ties to even, of numbers up to 2²²."""
    moved = vectors.bits_as(value + vectors.all(_ROUNDING), "int32")
    return moved - vectors.all(_ROUNDING_BITS, "int32")


def in_buffer(buffer: Buffer) -> Rows:
    """The rows of a buffer [..., K]."""
    return Rows([each.astype("int32") for each in list(buffer_kind(buffer).shape)[:-1]])
