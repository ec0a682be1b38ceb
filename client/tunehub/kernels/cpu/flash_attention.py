"""Attention of whole tensors in float32 as one function for CPUs with AVX-512, which arrives scheduled:
FlashAttention-2 as over the paged cache (:mod:`tunehub.kernels.cpu.paged_attention.prefill`), of queries, keys and
values that lie anywhere. Blocks of keys of which the mask leaves nothing for a tile's queries are left out, whatever
the mask is made of: what it does with each block is found out once for all heads that share it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.paged_attention.cached import BLOCK, KEYS, LANES, VALUES, VECTORS
from tunehub.kernels.cpu.paged_attention.prefill import QueryTile
from tunehub.tir.statements import block_of, const, f32, load, nest, parallel, sequence, serial, store, when, with_root
from tunehub.tir.versions import SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, SBlockRealize, Stmt

_LOWEST = -3.4028234663852886e38  # of float32
HIDDEN = -1e30  # what is this low leaves nothing of a weight, unless all of a query's are
_LOG2_E = 1.4426950408889634
_NOTHING, _PLAIN, _MIXED = 0, 1, 2  # what a mask leaves of a block: no key, all as they are, or some of them
_NONE = -1  # all keys of a query are hidden by minus infinity; 0: some by less, 1: not all


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttention:
    """``lead`` are extents of batches; ``heads`` of queries, ``group`` of which share keys. ``query``, ``key`` and
    ``value`` give sixteen elements of float32 from one on, for a place along ``lead``, a head, a query or key, and that
    element. ``mask`` gives what is added to the score of a query and a key, None where nothing is; ``masked``: along
    which of ``lead``, and then of heads, it differs. ``scale``: of scores. ``safe``: a query that sees no key gets
    zeros.
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


def flash_attention(attention: FlashAttention, output: Buffer, root: SBlockRealize) -> SBlockRealize:
    """The root block of a function, for its own ``root``, that writes ``output`` [*lead, heads, queries, depth]."""
    from tvm import tirx

    states = [tirx.decl_buffer(attention.states, "int32", "states")] if attention.mask is not None else []
    rows = attention.queries * attention.group
    tiles, shared = tirx.floordiv(rows + (LANES - 1), LANES), attention.heads // attention.group
    whole: PrimExpr = tiles * shared
    for extent in attention.lead:
        whole = whole * extent

    def task(at: PrimExpr) -> Stmt:
        rest, head = tirx.floordiv(at, shared), tirx.floormod(at, shared)
        nth, rest = tirx.floormod(rest, tiles), tirx.floordiv(rest, tiles)
        half = tirx.floordiv(nth, 2)
        tile = tirx.Select(tirx.floormod(nth, 2) == 0, half, tiles - 1 - half)  # short and long ones in turns
        return _TensorTile(attention, root, head, _along(attention.lead, rest), output, *states).attended(tile)

    stages = [*(_found_states(attention, root, each) for each in states), parallel("task", whole, task)]
    return with_root(root, stages, states)


def _along(extents: Sequence[Index], at: PrimExpr) -> list[PrimExpr]:
    """The place along ``extents`` of a number that counts through all."""
    from tvm import tirx

    found: list[PrimExpr] = []
    for extent in reversed(extents):
        found.append(tirx.floormod(at, extent))
        at = tirx.floordiv(at, extent)
    return found[::-1]


def _found_states(attention: FlashAttention, root: SBlockRealize, states: Buffer) -> Stmt:
    """What the mask does with each block of keys of each query, and whether it leaves any key."""
    from tvm import tirx

    *extents, blocks = attention.states
    rows: PrimExpr = const(1)
    for each in extents:
        rows = rows * each
    # The largest of all blocks; of one the largest, the least, and a sum that is NaN where one is.
    bounds, infinite = tirx.decl_buffer((4,), "float32", "bounds"), float("inf")

    def block(place: list[PrimExpr], at: PrimExpr) -> Stmt:
        own, query = _whole_place(attention, place[:-1]), place[-1]

        def key(each: PrimExpr) -> Stmt:
            assert attention.mask is not None
            value = attention.mask(*own, query, at * BLOCK + each)
            near = tirx.max(f32(-1), tirx.min(f32(1), value))
            found = ((1, tirx.max, value), (2, tirx.min, value), (3, operator.add, near))
            return sequence([store(bounds, [n], join(load(bounds, n), each)) for n, join, each in found])

        most, least, total = (load(bounds, n) for n in (1, 2, 3))
        plain = tirx.Select(tirx.all(most == f32(0), least == f32(0), total == f32(0)), const(_PLAIN), const(_MIXED))
        nothing = tirx.And(most <= f32(HIDDEN), total <= f32(0))
        return sequence(
            store(bounds, [1], f32(-infinite)),
            store(bounds, [2], f32(infinite)),
            store(bounds, [3], f32(0)),
            serial("key", tirx.min(attention.keys - at * BLOCK, const(BLOCK)), key),
            store(states, [*place, at], tirx.Select(nothing, const(_NOTHING), plain)),
            store(bounds, [0], tirx.max(load(bounds, 0), most)),
        )

    def row(at: PrimExpr) -> Stmt:
        place = _along(extents, at)
        most = load(bounds, 0)
        less = tirx.Or(most > f32(-infinite), blocks == 1)  # where there is no key, none is hidden
        any_key = tirx.Select(most > f32(HIDDEN), const(1), tirx.Select(less, const(0), const(_NONE)))
        body = sequence(
            store(bounds, [0], f32(-infinite)),
            serial("block", blocks - 1, lambda each: block(place, each)),
            store(states, [*place, blocks - 1], any_key),
        )
        return block_of(root, body, "mask", [bounds])

    return parallel("row", rows, row)


def _whole_place(attention: FlashAttention, place: Sequence[PrimExpr]) -> list[PrimExpr]:
    """The place along ``lead`` and heads of one where the mask differs; 0 elsewhere."""
    given = iter(place)
    return [next(given) if own else const(0) for own in attention.masked]


class _TensorTile(QueryTile):
    """Sixteen rows: queries one after the other, and of each the heads that share keys."""

    def __init__(
        self,
        attention: FlashAttention,
        root: SBlockRealize,
        head: PrimExpr,
        lead: Sequence[PrimExpr],
        output: Buffer,
        states: Buffer | None = None,
    ) -> None:
        from tvm import tirx

        super().__init__(attention.depth, root, head)
        self.flash, self.lead, self.output, self.states = attention, lead, output, states
        self.of_lane = tirx.decl_buffer((2 * LANES,), "int32", "of_lane")  # its query, and its head
        self.masks = tirx.decl_buffer((BLOCK * LANES,), "float32", "masks")

    def attended(self, tile: PrimExpr) -> Stmt:
        """The tile of that number of its heads."""
        attention, rows = self.flash, self.flash.queries * self.flash.group
        first = tile * LANES
        body = sequence(
            # Step 1. Queries of the tile, transposed; row_max, row_sum and outputs begin.
            store(self.place, [0], const(1)),
            serial("lane", LANES, lambda lane: self._begin(lane, first, rows)),
            VECTORS.set(self.largest, VECTORS.all(_LOWEST)),
            VECTORS.set(self.total, VECTORS.all(0.0)),
            serial("element", attention.depth, lambda each: store(self.outputs, [_at(each)], VECTORS.all(0.0))),
            # Step 2. Block by block of keys and values: scores, online softmax, outputs.
            serial("block", attention.blocks, self._if_seen),
            # Step 3. Outputs divided by row_sum.
            serial("lane", LANES, lambda lane: self._written(lane, first, rows)),
        )
        buffers = [self.place, self.queries, self.outputs, self.keys, self.values, self.weights, self.of_lane]
        vectors = [self.largest, self.total, self.before, self.spare, *self.scores, *self.sums]
        return block_of(self.root, body, "attention", [*buffers, self.masks, *vectors])

    def _begin(self, lane: PrimExpr, first: PrimExpr, rows: PrimExpr) -> Stmt:
        """A query in its lane; behind the last row that again."""
        from tvm import tirx

        attention, row = self.flash, tirx.min(first + lane, rows - 1)
        query = tirx.floordiv(row, attention.group)
        head = self.head * attention.group + tirx.floormod(row, attention.group)
        stored = []
        for vector in range(attention.vectors):
            value = attention.query(*self.lead, head, query, const(vector * LANES)) * VECTORS.all(attention.scale)
            stored.append(store(self.queries, [VECTORS.ramp(vector * LANES * LANES + lane, LANES)], value))
        sees = None
        if self.states is not None:
            some = load(self.states, *attention.state_at((*self.lead, head), query, attention.blocks))
            sees = store(self.place, [0], tirx.min(load(self.place, 0), some))
        lanes = store(self.of_lane, [lane], query), store(self.of_lane, [LANES + lane], head)
        return sequence(*lanes, stored, sees)

    def _if_seen(self, block: PrimExpr) -> Stmt:
        """The block, unless its keys are hidden from all queries, each of which sees others."""
        from tvm import tirx

        if self.states is None:
            return self._attend(block, None)
        states, found = self.states, self.place  # at 0 whether all see any, then what of the block is seen

        def lane(at: PrimExpr) -> Stmt:
            query, head = self._of_lane(at)
            state = load(states, *self.flash.state_at((*self.lead, head), query, block))
            same = tirx.Select(load(found, 1) == state, state, const(_MIXED))
            return store(found, [1], tirx.Select(load(found, 1) < 0, state, same))

        unseen = store(found, [1], tirx.Select(load(found, 0) > 0, load(found, 1), const(_MIXED)))
        body = sequence(store(found, [1], const(-1)), serial("lane", LANES, lane), unseen)
        return sequence(body, when(load(found, 1) > _NOTHING, self._attend(block, load(found, 1) > _PLAIN)))

    def _of_lane(self, lane: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Its query and head."""
        return load(self.of_lane, lane), load(self.of_lane, LANES + lane)

    def _attend(self, block: PrimExpr, mixed: PrimExpr | None) -> Stmt:
        added = None if mixed is None else when(mixed, self._masked(block))
        copies = [self._copied(kind, into, block) for kind, into in ((KEYS, self.keys), (VALUES, self.values))]
        return sequence(copies, self._scores(), added, self._softmax(block), self._outputs())

    def _copied(self, kind: int, into: Buffer, block: PrimExpr) -> Stmt:
        """Keys or values; behind the last that again."""
        from tvm import tirx

        attention, head = self.flash, self.head * self.flash.group
        row = attention.key if kind == KEYS else attention.value

        def vector(key: PrimExpr, at: PrimExpr) -> Stmt:
            place = tirx.min(block * BLOCK + key, attention.keys - 1)
            value = row(*self.lead, head, place, at * LANES)
            return store(into, [VECTORS.ramp(key * attention.depth + at * LANES)], value)

        return serial("key", BLOCK, lambda key: nest("vector", [attention.vectors], lambda at: vector(key, at)))

    def _masked(self, block: PrimExpr) -> Stmt:
        """What the mask adds is added to scores; of hidden keys these are as if they were not there: NaN, too."""
        from tvm import tirx

        def one(key: PrimExpr, lane: PrimExpr) -> Stmt:
            assert self.flash.mask is not None
            query, head = self._of_lane(lane)
            value = self.flash.mask(*self.lead, head, query, tirx.min(block * BLOCK + key, self.flash.keys - 1))
            return store(self.masks, [key * LANES + lane], value)

        def added(score: Buffer, key: int) -> Stmt:
            mask = load(self.masks, VECTORS.ramp(key * LANES))
            return VECTORS.set(score, tirx.Select(mask <= VECTORS.all(HIDDEN), mask, VECTORS.get(score) + mask))

        shown = [added(score, key) for key, score in enumerate(self.scores)]
        return sequence(nest("key lane", [BLOCK, LANES], one, SERIAL), shown)

    def _shown(self, block: PrimExpr, key: int) -> PrimExpr:
        """The score of a key, minus infinity behind the last."""
        from tvm import tirx

        there = VECTORS.all(block * BLOCK + key) < VECTORS.all(self.flash.keys.astype("int32"))
        return tirx.Select(there, VECTORS.get(self.scores[key]), VECTORS.all(float("-inf")))

    def _exponent(self, value: PrimExpr) -> PrimExpr:
        return value * VECTORS.all(_LOG2_E)

    def _written(self, lane: PrimExpr, first: PrimExpr, rows: PrimExpr) -> Stmt:
        from tvm import tirx

        query, head = self._of_lane(lane)
        total = load(self.total, lane)
        total = tirx.Select(total == f32(0), f32(1), total)  # of no keys at all
        stored, alone = [], 0.0 if self.flash.safe else float("nan")
        for vector in range(self.flash.vectors):
            value = load(self.outputs, VECTORS.ramp(vector * LANES * LANES + lane, LANES)) / VECTORS.all(total)
            if self.states is not None:
                some = load(self.states, *self.flash.state_at((*self.lead, head), query, self.flash.blocks))
                value = tirx.Select(VECTORS.all(some) == VECTORS.all(_NONE, "int32"), VECTORS.all(alone), value)
            stored.append(store(self.output, [*self.lead, head, query, VECTORS.ramp(vector * LANES)], value))
        return when(first + lane < rows, stored)


def _at(element: PrimExpr) -> PrimExpr:
    return VECTORS.ramp(element * LANES)
