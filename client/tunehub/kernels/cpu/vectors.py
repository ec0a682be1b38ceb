"""Vectors of a CPU, written one by one: memory of a block for them, and what is computed with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.target.tvm_generation import find_tvm
from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import const, load, store

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, Index, PrimExpr, Stmt

_DOT = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}
_PERMUTE = {16: "llvm.x86.avx512.permvar.sf.512", 8: "llvm.x86.avx2.permps"}

_PERMUTED_BY_TWO = 16  # lanes
_LINE = 64  # bytes
_ROUNDING = 12582912.0  # 1.5 · 2²³: what is added to it is rounded to an integer, in its lowest bits
_HALF = 0x8000  # of the last place of a bfloat16
_HIGH_HALF = 0xFFFF0000
_ONE = 0x3F800000  # the bits of 1.0
_POWERS = tuple(math.log(2) ** at / math.factorial(at) for at in range(7))  # of 2 ** x, for x from -0.5 to 0.5
_QUARTER = (
    1.5703125,
    0.0004839897155761719,
    -1.6292067961387602e-07,
)  # of a turn, in parts of few bits: their multiples are exact
_SINE = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COSINE = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
_OLDEST_TVM = (0, 27)  # which lowers such vectors of bfloat16


def vector_types() -> tuple[str, ...]:
    """Types of floats that vectors are loaded and stored as with the installed TVM."""
    installed = find_tvm()
    narrow = ("bfloat16",) if installed is not None and installed.release >= _OLDEST_TVM else ()
    return ("float32", "float16", *narrow)


def widest_lanes(target: Target) -> int:
    """Lanes of vectors of which elements can be permuted, as ``target`` has them."""
    from tvm.target import codegen

    if codegen.target_has_features(["avx512f"], target):
        return 16
    return 8 if codegen.target_has_features(["avx2"], target) else 4


def line_of(buffer: Buffer) -> int:
    """Elements of a line of a cache."""
    from tvm import DataType

    return _LINE // int(DataType(str(buffer_kind(buffer).dtype)).itemsize)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Of so many ``lanes`` of 32 bits."""

    lanes: int

    def buffer(self, name: str, dtype: str = "float32") -> Buffer:
        """One vector, which LLVM keeps in a register."""
        from tvm import tirx

        return tirx.decl_buffer((self.lanes,), dtype, name)

    def get(self, buffer: Buffer) -> PrimExpr:
        """What such a buffer holds."""
        return load(buffer, self.ramp(0))

    def set(self, buffer: Buffer, value: PrimExpr) -> Stmt:
        """Put a value into it."""
        return store(buffer, [self.ramp(0)], value)

    def clear(self, buffers: Sequence[Buffer]) -> list[Stmt]:
        """Put zeros into some."""
        return [self.set(each, self.all(0, str(buffer_kind(each).dtype))) for each in buffers]

    def add(self, buffer: Buffer, value: PrimExpr) -> Stmt:
        """Add to what it holds."""
        return self.set(buffer, self.get(buffer) + value)

    def ramp(self, first: Index, step: int = 1) -> PrimExpr:
        """Indices of a vector in memory."""
        from tvm import tirx

        return tirx.Ramp(const(first) if isinstance(first, int) else first, const(step), self.lanes)

    def all(self, value: PrimExpr | float, dtype: str = "float32") -> PrimExpr:
        """A number in all lanes."""
        from tvm import tirx

        return tirx.Broadcast(const(value, dtype) if isinstance(value, (int, float)) else value, self.lanes)

    def cast(self, value: PrimExpr, dtype: str = "float32") -> PrimExpr:
        """As numbers of another type."""
        from tvm import tirx

        return tirx.Cast(f"{dtype}x{self.lanes}", value)

    def bits_as(self, value: PrimExpr, dtype: str, of_lane: int = 1) -> PrimExpr:
        """The same bits, ``of_lane`` numbers in each lane."""
        from tvm import tirx

        return tirx.reinterpret(f"{dtype}x{self.lanes * of_lane}", value)

    def permuted(self, value: PrimExpr, lanes: PrimExpr) -> PrimExpr:
        """In each lane what ``value``, in float32, has in the lane that ``lanes`` says, modulo their number. On x86
        with AVX2 (8 lanes) or AVX-512 (16)."""
        from tvm import tirx

        return tirx.call_llvm_pure_intrin(f"float32x{self.lanes}", _PERMUTE[self.lanes], value, lanes)

    def shuffled(self, values: Sequence[PrimExpr], lanes: Sequence[int]) -> PrimExpr:
        """Of some vectors behind each other the elements at ``lanes``, on any CPU."""
        from tvm import tirx

        return tirx.Shuffle(list(values), [const(lane) for lane in lanes])

    def high_half(self, value: PrimExpr) -> PrimExpr:
        """The bits of floats that are rounded to bfloat16, in the upper half of words; the lower is not cleared."""
        return self.bits_as(value, "uint32") + self.all(_HALF, "uint32")

    def half_words(self, low: PrimExpr, high: PrimExpr) -> PrimExpr:
        """Words of two floats each, rounded to bfloat16."""
        from tvm import tirx

        mask = self.all(_HIGH_HALF, "uint32")
        return tirx.bitwise_or(
            self.high_half(low) >> self.all(16, "uint32"), tirx.bitwise_and(self.high_half(high), mask)
        )

    def floats_of(self, words: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """The lower and the upper numbers of words of two in bfloat16."""
        from tvm import tirx

        high = tirx.bitwise_and(words, self.all(_HIGH_HALF, "uint32"))
        return self.bits_as(words << self.all(16, "uint32"), "float32"), self.bits_as(high, "float32")

    def dot(self, sums: PrimExpr, numbers: PrimExpr, data: PrimExpr) -> PrimExpr:
        """In each lane of ``sums`` four products more, of unsigned ``numbers`` and of ``data`` in 8 bits. On x86 with
        AVX512-VNNI or, of 8 lanes, AVX-VNNI."""
        from tvm import tirx

        return tirx.call_llvm_pure_intrin(f"int32x{self.lanes}", _DOT[self.lanes], sums, numbers, data)

    def transposed(self, buffers: Sequence[Buffer], spare: Buffer) -> list[Stmt]:
        """Let as many buffers as there are lanes change their elements: number n of m becomes number m of n. ``spare``,
        of their type, is written."""
        statements: list[Stmt] = []
        for step in (2**at for at in range(self.lanes.bit_length() - 1)):
            low = [lane if not lane & step else self.lanes + lane - step for lane in range(self.lanes)]
            high = [lane + step if not lane & step else self.lanes + lane for lane in range(self.lanes)]
            for at in (at for at in range(self.lanes) if not at & step):
                statements += self.exchanged(buffers[at], buffers[at + step], spare, (low, high))
        return statements

    def exchanged(self, one: Buffer, other: Buffer, spare: Buffer, lanes: Sequence[Sequence[int]]) -> list[Stmt]:
        """Of both behind each other put the elements at ``lanes[0]`` into ``one``, at ``lanes[1]`` into ``other``.
        ``spare``, of their type, is written."""
        return [
            self.set(spare, self._chosen(one, other, lanes[0])),
            self.set(other, self._chosen(one, other, lanes[1])),
            self.set(one, self.get(spare)),
        ]

    def _chosen(self, one: Buffer, other: Buffer, lanes: Sequence[int]) -> PrimExpr:
        """Of two vectors behind each other the elements at ``lanes``; of 16 by AVX-512's instruction, as LLVM takes
        seconds to find it in TVM's code of a shuffle."""
        from tvm import tirx

        if self.lanes != _PERMUTED_BY_TWO:
            return self.shuffled([self.get(one), self.get(other)], lanes)
        values = [self.bits_as(self.get(each), "int32") for each in (one, other)]
        places = tirx.Shuffle([const(lane) for lane in lanes], [const(at) for at in range(self.lanes)])
        found = tirx.call_llvm_pure_intrin("int32x16", "llvm.x86.avx512.vpermi2var.d.512", values[0], places, values[1])
        return self.bits_as(found, str(buffer_kind(one).dtype))

    def largest(self, buffer: Buffer) -> list[Stmt]:
        """Put the largest of its lanes into all of them."""
        from tvm import tirx

        steps = [2**at for at in range(self.lanes.bit_length() - 1)]
        places = [[lane ^ step for lane in range(self.lanes)] for step in steps]
        return [
            self.set(buffer, tirx.max(self.get(buffer), self.shuffled([self.get(buffer)], each))) for each in places
        ]

    def sums_of(self, buffers: Sequence[Buffer]) -> list[Stmt]:
        """Put into the first of as many buffers as there are lanes the sums of all, one a lane."""
        statements: list[Stmt] = []
        step, left = 1, list(buffers)
        while len(left) > 1:
            low = [lane if not lane & step else self.lanes + lane - step for lane in range(self.lanes)]
            high = [lane + step if not lane & step else self.lanes + lane for lane in range(self.lanes)]
            for one, other in zip(left[::2], left[1::2], strict=True):
                both = [self.get(one), self.get(other)]
                statements.append(self.set(one, self.shuffled(both, low) + self.shuffled(both, high)))
            step, left = 2 * step, left[::2]
        return statements

    def exp2(self, buffer: Buffer, spare: Buffer) -> list[Stmt]:
        """Replace what it holds, at most 0, by powers of 2, to 2e-7 of these and not below 2 ** -126. ``spare`` is
        written."""
        from tvm import tirx

        value, moved = self.get(buffer), self.get(spare)
        power = self._polynomial(_POWERS, value)
        bits = (self.bits_as(moved, "int32") << self.all(23, "int32")) + self.all(_ONE, "int32")
        return [
            self.set(buffer, tirx.max(self.all(-126.0), value)),  # in this order NaN stays
            self.set(spare, value + self.all(_ROUNDING)),
            self.set(buffer, value - (moved - self.all(_ROUNDING))),
            self.set(buffer, power * self.bits_as(bits, "float32")),
        ]

    def sines(self, angle: Buffer, sine: Buffer, cosine: Buffer, spare: Buffer, quadrant: Buffer) -> list[Stmt]:
        """Put those of ``angle``, up to 1e5, into ``sine`` and ``cosine``, to 2e-7 (Cody and Waite's reduction, Cephes'
        polynomials). All others are written, ``quadrant``, of integers, too."""
        from tvm import tirx

        value, square, whole = self.get(angle), self.get(spare), self.get(quadrant)
        odd = tirx.bitwise_and(whole, self.all(1, "int32")) > self.all(0, "int32")

        def signed(values: tuple[Buffer, Buffer], turns: PrimExpr) -> PrimExpr:
            sign = tirx.bitwise_and(turns, self.all(2, "int32")) << self.all(30, "int32")
            bits = self.bits_as(tirx.Select(odd, *map(self.get, values)), "int32")
            return self.bits_as(tirx.bitwise_xor(bits, sign), "float32")

        return [
            self.set(sine, value * self.all(2 / math.pi) + self.all(_ROUNDING)),
            self.set(quadrant, self.bits_as(self.get(sine), "int32")),
            self.set(sine, self.get(sine) - self.all(_ROUNDING)),
            *(self.set(angle, value - self.get(sine) * self.all(part)) for part in _QUARTER),
            self.set(spare, value * value),
            self.set(sine, self._polynomial(_SINE, square) * square * value + value),
            self.set(cosine, (self._polynomial(_COSINE, square) * square - self.all(0.5)) * square + self.all(1.0)),
            self.set(spare, signed((cosine, sine), whole)),
            self.set(cosine, signed((sine, cosine), whole + self.all(1, "int32"))),
            self.set(sine, self.get(spare)),
        ]

    def _polynomial(self, factors: Sequence[float], value: PrimExpr) -> PrimExpr:
        """The last of ``factors`` is that of the highest power."""
        found = self.all(factors[-1])
        for each in reversed(factors[:-1]):
            found = found * value + self.all(each)
        return found

    def total(self, buffer: Buffer) -> PrimExpr:
        """The sum of all lanes of a vector, in a tree."""
        values = [load(buffer, const(lane)) for lane in range(self.lanes)]
        while len(values) > 1:
            half = len(values) // 2
            values = [low + high for low, high in zip(values[:half], values[half:], strict=True)]
        return values[0]
