"""Attention of whole tensors in float32 as one function for CPUs with AVX-512, which arrives scheduled:
FlashAttention-2 as over the paged cache (:mod:`tunehub.kernels.cpu.paged_attention.prefill`), of queries, keys and
values that lie anywhere. Blocks of keys of which the mask leaves nothing for a tile's queries are left out, whatever
the mask is made of: what it does with each block is found out once for all heads that share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.flash_tiles import flash_by_tiles
from tunehub.kernels.cpu.paged_attention.cached import BLOCK, KEYS, LANES, VALUES, VECTORS
from tunehub.kernels.cpu.paged_attention.prefill import QueryTile
from tunehub.kernels.cpu.whole_attention import (
    HIDDEN,
    LOG2_E,
    LOWEST,
    MIXED,
    NONE,
    NOTHING,
    PLAIN,
    FlashAttention,
    decided_state,
    joined_state,
)
from tunehub.tir.statements import (
    block_of,
    const,
    either,
    f32,
    load,
    nest,
    parallel,
    sequence,
    serial,
    store,
    when,
    with_root,
)
from tunehub.tir.versions import SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Index, PrimExpr, SBlockRealize, Stmt


def flash_attention(attention: FlashAttention, output: Buffer, root: SBlockRealize) -> SBlockRealize:
    """The root block of a function, for its own ``root``, that writes ``output`` [*lead, heads, queries, depth]."""
    from tvm import tirx

    states = [tirx.decl_buffer(attention.states, "int32", "states")] if attention.mask is not None else []
    rows, shared = attention.queries * attention.group, attention.heads // attention.group
    tiles, batches = tirx.floordiv(rows + (LANES - 1), LANES), const(1)
    for extent in attention.lead:
        batches = batches * extent

    def task(at: PrimExpr) -> Stmt:
        rest, head = tirx.floordiv(at, shared), tirx.floormod(at, shared)
        nth, rest = tirx.floormod(rest, tiles), tirx.floordiv(rest, tiles)
        half = tirx.floordiv(nth, 2)
        tile = tirx.Select(tirx.floormod(nth, 2) == 0, half, tiles - 1 - half)  # short and long ones in turns
        return _TensorTile(attention, root, head, _along(attention.lead, rest), output, *states).attended(tile)

    found, memory = [_found_states(attention, root, each) for each in states], states
    attended = parallel("task", batches * tiles * shared, task)
    if attention.tiles:
        many, words = flash_by_tiles(attention, root, lambda at: _along(attention.lead, at), batches, output, states)
        attended, memory = either(rows > LANES, many, attended), [*states, *words]
    return with_root(root, [*found, attended], memory)


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
    masks, largest = VECTORS.buffer("masks"), VECTORS.buffer("largest")

    def block(place: list[PrimExpr], at: PrimExpr) -> Stmt:
        whole, mask = _whole_place(attention, place[:-1]), VECTORS.get(masks)
        return sequence(
            attention.masks_stored(masks, 0, whole, place[-1], at * BLOCK),
            store(states, [*place, at], _state(mask)),
            VECTORS.set(largest, tirx.max(VECTORS.get(largest), mask)),
        )

    def row(at: PrimExpr) -> Stmt:
        place, infinite = _along(extents, at), float("-inf")
        most = _reduced("fmax", VECTORS.get(largest))
        less = tirx.Or(most > f32(infinite), blocks == 1)  # where there is no key, none is hidden
        any_key = tirx.Select(most > f32(HIDDEN), const(1), tirx.Select(less, const(0), const(NONE)))
        body = sequence(
            VECTORS.set(largest, VECTORS.all(infinite)),
            serial("block", blocks - 1, lambda each: block(place, each)),
            store(states, [*place, blocks - 1], any_key),
        )
        return block_of(root, body, "mask", [masks, largest])

    return parallel("row", rows, row)


def _state(mask: PrimExpr) -> PrimExpr:
    """What ``mask`` of sixteen keys does with them; one that is NaN hides nothing."""
    from tvm import tirx

    one, other = VECTORS.all(1, "int32"), VECTORS.all(0, "int32")
    hidden = _reduced("smin", tirx.Select(mask <= VECTORS.all(HIDDEN), one, other)) > 0
    plain = _reduced("smin", tirx.Select(mask == VECTORS.all(0.0), one, other)) > 0
    return tirx.Select(hidden, const(NOTHING), tirx.Select(plain, const(PLAIN), const(MIXED)))


def _reduced(how: str, vector: PrimExpr) -> PrimExpr:
    """The one number of a vector's lanes by an LLVM reduction of this name."""
    from tvm import tirx

    kind, short = ("float32", "f32") if how[0] == "f" else ("int32", "i32")
    return tirx.call_llvm_pure_intrin(kind, f"llvm.vector.reduce.{how}.v{LANES}{short}", vector)


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
            VECTORS.set(self.largest, VECTORS.all(LOWEST)),
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
            some = attention.any_key(self.states, (*self.lead, head), query)
            sees = store(self.place, [0], tirx.min(load(self.place, 0), some))
        lanes = store(self.of_lane, [lane], query), store(self.of_lane, [LANES + lane], head)
        return sequence(*lanes, stored, sees)

    def _if_seen(self, block: PrimExpr) -> Stmt:
        """The block, unless its keys are hidden from all queries, each of which sees others."""

        if self.states is None:
            return self._attend(block, None)
        states, found = self.states, self.place  # at 0 whether all see any, then what of the block is seen

        def lane(at: PrimExpr) -> Stmt:
            query, head = self._of_lane(at)
            return joined_state(found, load(states, *self.flash.state_at((*self.lead, head), query, block)))

        body = sequence(store(found, [1], const(NONE)), serial("lane", LANES, lane), decided_state(found))
        return sequence(body, when(load(found, 1) > NOTHING, self._attend(block, load(found, 1) > PLAIN)))

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
        return value * VECTORS.all(LOG2_E)

    def _written(self, lane: PrimExpr, first: PrimExpr, rows: PrimExpr) -> Stmt:
        from tvm import tirx

        query, head = self._of_lane(lane)
        total = load(self.total, lane)
        total = tirx.Select(total == f32(0), f32(1), total)  # of no keys at all
        stored, alone = [], 0.0 if self.flash.safe else float("nan")
        for vector in range(self.flash.vectors):
            value = load(self.outputs, VECTORS.ramp(vector * LANES * LANES + lane, LANES)) / VECTORS.all(total)
            if self.states is not None:
                some = self.flash.any_key(self.states, (*self.lead, head), query)
                value = tirx.Select(VECTORS.all(some) == VECTORS.all(NONE, "int32"), VECTORS.all(alone), value)
            stored.append(store(self.output, [*self.lead, head, query, VECTORS.ramp(vector * LANES)], value))
        return when(first + lane < rows, stored)


def _at(element: PrimExpr) -> PrimExpr:
    return VECTORS.ramp(element * LANES)
