"""Attention of whole tensors: what kernels for it are told, and what is known of its masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.paged_attention.cached import BLOCK, LANES
from tunehub.tir.statements import const, either, load, serial, store, vectorized

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, Stmt

LOWEST = -3.4028234663852886e38  # of float32
HIDDEN = -1e30  # what is this low leaves nothing of a weight, unless all of a query's are
LOG2_E = 1.4426950408889634
NOTHING, PLAIN, MIXED = 0, 1, 2  # what a mask leaves of a block: no key, all as they are, or some of them
NONE = -1  # all keys of a query are hidden by minus infinity; 0: some by less, 1: not all


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttention:
    """``lead`` are extents of batches; ``heads`` of queries, ``group`` of which share keys. ``query``, ``key`` and
    ``value`` give sixteen elements of float32 from one on, for a place along ``lead``, a head, a query or key, and that
    element. ``mask`` gives what is added to the score of a query and a key, None where nothing is; ``masked``: along
    which of ``lead``, and then of heads, it differs. ``scale``: of scores. ``safe``: a query that sees no key gets
    zeros. ``tiles``: many queries are multiplied in bfloat16 by AMX.
    """

    lead: tuple[Index, ...]
    heads: int
    group: int
    queries: PrimExpr
    keys: PrimExpr
    depth: int
    scale: float
    query: Callable[..., PrimExpr]
    key: Callable[..., PrimExpr]
    value: Callable[..., PrimExpr]
    mask: Callable[..., PrimExpr] | None
    masked: tuple[bool, ...]
    safe: bool
    tiles: bool = False

    @property
    def vectors(self) -> int:
        """Of a row."""
        return self.depth // LANES

    @property
    def blocks(self) -> PrimExpr:
        """Of keys."""
        from tvm import tirx

        return tirx.floordiv(self.keys + (BLOCK - 1), BLOCK)

    @property
    def states(self) -> list[PrimExpr]:
        """The shape of what the mask does: where it differs, for each query, with each block and, last, with all."""
        extents = [each for each, own in zip((*self.lead, self.heads), self.masked, strict=True) if own]
        return [*extents, self.queries, self.blocks + 1]

    def state_at(self, place: Sequence[PrimExpr], query: PrimExpr, block: PrimExpr) -> list[PrimExpr]:
        """The place in that of one along ``lead`` and heads."""
        return [*(each for each, own in zip(place, self.masked, strict=True) if own), query, block]

    def any_key(self, states: Buffer, place: Sequence[PrimExpr], query: PrimExpr) -> PrimExpr:
        """Whether a query sees any key: 1, 0 or `NONE`."""
        return load(states, *self.state_at(place, query, self.blocks))

    def masks_stored(
        self, into: Buffer, first: Index, place: Sequence[PrimExpr], query: PrimExpr, key: PrimExpr
    ) -> Stmt:
        """What is added to scores of ``query`` and sixteen keys from ``key`` on, put into ``into`` from ``first`` on;
        behind the last key that again. ``place``: along ``lead`` and heads."""
        from tvm import tirx

        mask = self.mask
        assert mask is not None

        def stored(each: PrimExpr, at: PrimExpr) -> Stmt:
            return store(into, [first + each], mask(*place, query, at))

        whole = vectorized("key", LANES, lambda each: stored(each, key + each))
        rest = serial("key", LANES, lambda each: stored(each, tirx.min(key + each, self.keys - 1)))
        return either(key + LANES <= self.keys, whole, rest)


def joined_state(found: Buffer, state: PrimExpr) -> Stmt:
    """One more query's ``state`` of a block joined to that of the queries before, which is ``found`` at 1, `NONE` of
    none."""
    from tvm import tirx

    same = tirx.Select(load(found, 1) == state, state, const(MIXED))
    return store(found, [1], tirx.Select(load(found, 1) < 0, state, same))


def decided_state(found: Buffer) -> Stmt:
    """Where a query sees no key at all, as ``found`` says at 0, no block is left out."""
    from tvm import tirx

    return store(found, [1], tirx.Select(load(found, 0) > 0, load(found, 1), const(MIXED)))
