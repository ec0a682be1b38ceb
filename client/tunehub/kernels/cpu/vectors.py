"""Vectors of a CPU, written one by one: memory of a block for them, and what is computed with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.tir.nodes import buffer_kind
from tunehub.tir.statements import const, load, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, Stmt

_PERMUTE = {16: "llvm.x86.avx512.permvar.sf.512", 8: "llvm.x86.avx2.permps"}


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

    def total(self, buffer: Buffer) -> PrimExpr:
        """The sum of all lanes of a vector, in a tree."""
        values = [load(buffer, const(lane)) for lane in range(self.lanes)]
        while len(values) > 1:
            half = len(values) // 2
            values = [low + high for low, high in zip(values[:half], values[half:], strict=True)]
        return values[0]
