"""What the kernels of attention know of its two products, scores of queries and keys, and weighted values: where a
thread has its part of their accumulators, and how it adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, Stmt


class AttentionProducts(Protocol):
    """The products of a block, by one kind of instructions. A thread has ``rows`` queries of its warp, and of each
    ``columns`` scores of a tile of keys and ``outputs`` numbers of the result."""

    @property
    def bytes(self) -> int:
        """Of an element of queries, keys and values."""

    @property
    def masks(self) -> tuple[int, ...]:
        """By which the numbers of the lanes that share a row differ."""

    @property
    def rows(self) -> int:
        """Queries of a thread."""

    @property
    def columns(self) -> int:
        """Scores that a thread has of each of its queries."""

    @property
    def outputs(self) -> int:
        """Numbers that a thread has of each of its results."""

    @property
    def neighbours(self) -> int:
        """How many of these lie side by side in memory."""

    @property
    def acc_s(self) -> Buffer:
        """Accumulators of scores, then the weights of the softmax, in float32 registers."""

    @property
    def acc_o(self) -> Buffer:
        """Accumulators of the output, in float32 registers."""

    def allocate(self) -> None:
        """Declare the accumulators and what else the products need, in the kernel's memory."""

    def row(self, h: PrimExpr) -> PrimExpr:
        """Which query of its warp row ``h`` of a thread is."""

    def column(self, c: PrimExpr) -> PrimExpr:
        """Which key of a warp's tile score ``c`` of a thread belongs to."""

    def output_column(self, u: PrimExpr) -> PrimExpr:
        """Which number of a result output ``u`` of a thread is."""

    def score_at(self, h: PrimExpr, c: PrimExpr) -> list[PrimExpr]:
        """The indices in :attr:`acc_s` of score ``c`` of row ``h``."""

    def output_at(self, h: PrimExpr, u: PrimExpr) -> list[PrimExpr]:
        """The indices in :attr:`acc_o` of output ``u`` of row ``h``."""

    def load_query(self) -> Stmt:
        """Bring the queries of a block to where the first product reads them."""

    def clear_outputs(self) -> Stmt:
        """Accumulators of the output are zero."""

    def scores(self, stage: Index) -> Stmt:
        """S = Q Kᵀ, of the keys in a ``stage`` of shared memory."""

    def weighted(self, stage: Index) -> Stmt:
        """O += P V, of the values in a ``stage`` of shared memory; P is what the softmax has made of S."""
