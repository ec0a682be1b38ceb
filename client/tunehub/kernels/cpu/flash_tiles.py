"""Attention of whole tensors (:mod:`tunehub.kernels.cpu.flash_attention`) by tiles of AMX in bfloat16, as of prompts
over the paged cache (:mod:`tunehub.kernels.cpu.paged_attention.tiles`): keys and values are copied as words once, and
blocks of keys that the mask hides from a tile's queries are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.paged_attention.cached import BLOCK, KEYS, LANES, TWICE, VECTORS
from tunehub.kernels.cpu.paged_attention.tiles import QUERIES, TOGETHER, CachedWords, TiledQueries, in_turns
from tunehub.kernels.cpu.whole_attention import (
    HIDDEN,
    LOG2_E,
    LOWEST,
    NONE,
    NOTHING,
    PLAIN,
    FlashAttention,
    decided_state,
    joined_state,
)
from tunehub.tir.statements import block_of, const, either, f32, load, loop, nest, sequence, serial, store, when
from tunehub.tir.versions import PARALLEL, SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, SBlockRealize, Stmt


@dataclass(frozen=True, slots=True)
class _Tensors:
    """What :class:`TiledQueries` reads and writes; a place along the batches is one number."""

    flash: FlashAttention
    place: Callable[[PrimExpr], list[PrimExpr]]  # along the batches, of their number
    written: Callable[..., Stmt] | None = None

    @property
    def depth(self) -> int:
        return self.flash.depth

    @property
    def vectors(self) -> int:
        return self.flash.vectors

    @property
    def group(self) -> int:
        return self.flash.group

    @property
    def key_heads(self) -> int:
        return self.flash.heads // self.flash.group

    @property
    def scale(self) -> PrimExpr:
        """Queries have it: a product is added to exactly, also where a mask hides by the least of all floats."""
        return f32(1)

    def row(self, kind: int, lead: PrimExpr, head: PrimExpr, key: PrimExpr, vector: PrimExpr) -> PrimExpr:
        """A vector of a key or value."""
        rows = self.flash.key if kind == KEYS else self.flash.value
        return rows(*self.place(lead), head * self.group, key, vector * LANES)

    def row_words(self, kind: int, lead: PrimExpr, head: PrimExpr, key: PrimExpr, vector: PrimExpr) -> PrimExpr:
        """The same as words of two numbers each."""
        return VECTORS.half_words(*(self.row(kind, lead, head, key, vector * 2 + at) for at in (0, 1)))

    def stored(self, query: PrimExpr, head: PrimExpr, values: list[PrimExpr], _: PrimExpr, total: PrimExpr) -> Stmt:
        """The results of a query."""
        assert self.written is not None
        return self.written(head, query, values, total)


class _TensorWords(CachedWords):
    """Of all batches."""

    def __init__(self, tensors: Any, batches: PrimExpr) -> None:
        from tvm import tirx

        self.attention, self.words = tensors, TOGETHER * tensors.depth // 2  # of a block of a head
        self.own = tirx.floordiv(tensors.flash.keys + (TOGETHER - 1), TOGETHER)  # blocks of a batch
        self.blocks = self.own * batches
        count = self.blocks * (tensors.key_heads * self.words)
        self.keys, self.values = (tirx.decl_buffer((count,), "uint32", name) for name in ("key_words", "pairs"))

    def _found(self, root: SBlockRealize, block: PrimExpr, head: PrimExpr) -> Stmt:
        from tvm import tirx

        firsts, keys = (tirx.decl_buffer((TOGETHER,), "int32", name) for name in ("firsts", "of_block"))
        taken = [VECTORS.buffer(f"taken_{at}", "uint32") for at in range(LANES)]
        spare, last = VECTORS.buffer("spare", "uint32"), self.attention.flash.keys - 1

        def key(each: PrimExpr) -> Stmt:
            place = tirx.min(tirx.floormod(block, self.own) * TOGETHER + each, last)  # behind the last key that again
            return sequence(store(firsts, [each], tirx.floordiv(block, self.own)), store(keys, [each], place))

        body = sequence(
            serial("key", TOGETHER, key),
            self._keys(firsts, keys, block, head),
            self._values(firsts, keys, block, head, (taken, spare)),
        )
        return block_of(root, body, "copy", [firsts, keys, *taken, spare])


def flash_by_tiles(
    flash: FlashAttention,
    root: SBlockRealize,
    place: Callable[[PrimExpr], list[PrimExpr]],
    batches: PrimExpr,
    output: Buffer,
    states: Sequence[Buffer],
) -> tuple[Stmt, list[Buffer]]:
    """The statement, and memory for keys and values. ``place``: along the batches, of a number that counts these;
    ``states``: what the mask does with blocks of keys, if there is one."""
    from tvm import tirx

    tensors = _Tensors(flash, place)
    words = _TensorWords(tensors, batches)
    tiles = tirx.floordiv(flash.queries * flash.group + (QUERIES - 1), QUERIES)

    def task(at: PrimExpr) -> Stmt:
        rest, head = tirx.floordiv(at, tensors.key_heads), tirx.floormod(at, tensors.key_heads)
        lead, nth = tirx.floordiv(rest, tiles), tirx.floormod(rest, tiles)
        return _TensorQueries(words, root, head, lead, (output, *states)).found(in_turns(nth, tiles))

    imported = {"pragma_import_llvm": amx.IMPORTED}
    tasks = loop("task", batches * tiles * tensors.key_heads, task, PARALLEL, annotations=imported)
    return sequence(words.copied(root), tasks), [words.keys, words.values]


class _TensorQueries(TiledQueries):
    """Those of one tile."""

    LEAST: ClassVar = LOWEST

    def __init__(
        self, words: _TensorWords, root: SBlockRealize, head: PrimExpr, lead: PrimExpr, own: tuple[Buffer, ...]
    ) -> None:
        from tvm import tirx

        super().__init__(words, root, head)
        tensors = words.attention
        self.flash, self.number, self.lead = tensors.flash, lead, tensors.place(lead)
        self.attention = _Tensors(tensors.flash, tensors.place, self._written)
        self.output, self.states = own[0], own[1] if len(own) > 1 else None
        self.own = words.own  # blocks
        self.of_lane = tirx.decl_buffer((2 * QUERIES,), "int32", "of_lane")  # its query, and its head
        self.of_queries, self.masks = (
            tirx.decl_buffer((TOGETHER * QUERIES,), "float32", name) for name in ("of_queries", "masks")
        )
        self.found_state = tirx.decl_buffer((2,), "int32", "state")  # whether all see any; what of a block is seen

    def found(self, tile: PrimExpr) -> Stmt:
        """The tile with this number among those of its batch and head."""
        released = when(load(self.place, 2) == 0, amx.call_tiles("llvm.x86.tilerelease"))
        body = sequence(store(self.place, [2], amx.whole_tiles()), self._steps(tile), released)
        return self._in_block(body, self.of_lane, self.of_queries, self.masks, self.found_state)

    def _steps(self, tile: PrimExpr) -> Stmt:
        first, rows = tile * QUERIES, self.flash.queries * self.flash.group
        vectors = range(QUERIES // LANES)
        return sequence(
            # Step 1. Queries of the tile as words, transposed; row_max, row_sum and outputs begin.
            store(self.found_state, [0], const(1)),
            [self._queries(const(each), first, rows, first, first) for each in vectors],
            [store(self.largest, [VECTORS.ramp(each * LANES)], VECTORS.all(self.LEAST)) for each in vectors],
            [store(self.total, [VECTORS.ramp(each * LANES)], VECTORS.all(0.0)) for each in vectors],
            serial(
                "each",
                self.flash.depth * len(vectors),
                lambda each: store(self.outputs, [VECTORS.ramp(each * LANES)], VECTORS.all(0.0)),
            ),
            # Step 2. Block by block of keys and values: scores, online softmax, outputs.
            serial("block", self.own, self._if_seen),
            # Step 3. Outputs divided by row_sum.
            [self._results(const(each), const(0), rows, first) for each in vectors],
        )

    def _lane(self, row: PrimExpr, at: PrimExpr) -> Stmt:
        """What is known of a query, and its words."""
        from tvm import tirx

        flash, width = self.flash, self.flash.depth // 2
        query = tirx.floordiv(row, flash.group)
        head = self.head * flash.group + tirx.floormod(row, flash.group)
        stored = []
        for each in range(width // LANES):
            loaded = (flash.query(*self.lead, head, query, const(each * TWICE.lanes + n)) for n in (0, LANES))
            vectors = (vector * VECTORS.all(flash.scale * LOG2_E) for vector in loaded)
            place = VECTORS.ramp(tirx.floormod(at, LANES) * width + each * LANES)
            stored.append(store(self.words, [place], VECTORS.half_words(*vectors)))
        sees = None
        if self.states is not None:
            some = flash.any_key(self.states, (*self.lead, head), query)
            sees = store(self.found_state, [0], tirx.min(load(self.found_state, 0), some))
        return sequence(store(self.of_lane, [at], query), store(self.of_lane, [QUERIES + at], head), stored, sees)

    def _queries(self, vector: PrimExpr, begin: PrimExpr, rows: PrimExpr, first: PrimExpr, length: PrimExpr) -> Stmt:
        """Sixteen of them; behind the last query that again."""
        from tvm import tirx

        def lane(at: PrimExpr) -> Stmt:
            number = vector * LANES + at
            return self._lane(tirx.min(first + number, rows - 1), number)

        return sequence(serial("lane", LANES, lane), self._words_turned(vector))

    def _if_seen(self, block: PrimExpr) -> Stmt:
        """The block, unless its keys are hidden from all queries, each of which sees others."""
        from tvm import tirx

        if self.states is None:
            return self._block(self.number, block)
        states, found, blocks = self.states, self.found_state, self.flash.blocks

        def lane(at: PrimExpr, part: PrimExpr) -> Stmt:
            query, head = (load(self.of_lane, at + first) for first in (0, QUERIES))
            own = tirx.min(block * (TOGETHER // BLOCK) + part, blocks - 1)
            return joined_state(found, load(states, *self.flash.state_at((*self.lead, head), query, own)))

        return sequence(
            store(found, [1], const(NONE)),
            nest("lane part", [QUERIES, TOGETHER // BLOCK], lane, SERIAL),
            decided_state(found),
            when(load(found, 1) != NOTHING, self._block(self.number, block)),
        )

    def _block(self, at: PrimExpr, block: PrimExpr) -> Stmt:
        scores, outputs = self._products(self.cached.place(at * self.own + block, self.head))
        masked = None if self.states is None else when(load(self.found_state, 1) != PLAIN, self._added(block))
        return sequence(
            self._multiplied(scores),
            masked,
            when((block + 1) * TOGETHER > self.flash.keys, self._masked(block)),
            self._weighted_values(outputs),
        )

    def _masked(self, block: PrimExpr) -> Stmt:
        """Scores behind the last key."""

        def score(key: PrimExpr, vector: PrimExpr) -> Stmt:
            place = VECTORS.ramp(key * QUERIES + vector * LANES)
            return store(self.scores, [place], VECTORS.all(float("-inf")))

        behind = self.flash.keys - block * TOGETHER
        vectors = QUERIES // LANES
        return nest("key vector", [TOGETHER, vectors], lambda key, at: when(key >= behind, score(key, at)), SERIAL)

    def _added(self, block: PrimExpr) -> Stmt:
        """What the mask adds is added to scores; of hidden keys these are as if they were not there: NaN, too."""
        from tvm import tirx

        parts, vectors = TOGETHER // LANES, QUERIES // LANES

        def turn(vector: PrimExpr, part: PrimExpr) -> Stmt:
            return self._turned(
                self.of_queries,
                lambda at: (vector * LANES + at) * TOGETHER + part * LANES,
                self.masks,
                lambda at: (part * LANES + at) * QUERIES + vector * LANES,
            )

        def added(key: PrimExpr, vector: PrimExpr) -> Stmt:
            place = VECTORS.ramp(key * QUERIES + vector * LANES)
            mask, score = load(self.masks, place), load(self.scores, place)
            value = score + mask * VECTORS.all(LOG2_E)
            return store(self.scores, [place], tirx.Select(mask <= VECTORS.all(HIDDEN), mask, value))

        return sequence(
            serial("lane", QUERIES, lambda lane: self._masks_of(lane, block)),
            nest("vector part", [vectors, parts], turn, SERIAL),
            nest("key vector", [TOGETHER, vectors], added, SERIAL),
        )

    def _masks_of(self, lane: PrimExpr, block: PrimExpr) -> Stmt:
        """Those of a query and the keys of a block; of the query before, where heads have the same mask."""
        from tvm import tirx

        query, head = (load(self.of_lane, lane + first) for first in (0, QUERIES))
        before, parts, place = tirx.max(lane - 1, 0), TOGETHER // LANES, (*self.lead, head)

        def found(part: PrimExpr) -> Stmt:
            first = part * LANES
            key = block * TOGETHER + first
            return self.flash.masks_stored(self.of_queries, lane * TOGETHER + first, place, query, key)

        def copied(part: PrimExpr) -> Stmt:
            into, taken = (VECTORS.ramp(row * TOGETHER + part * LANES) for row in (lane, before))
            return store(self.of_queries, [into], load(self.of_queries, taken))

        if self.flash.masked[-1]:
            return serial("part", parts, found)
        same = tirx.all(lane > 0, load(self.of_lane, before) == query)
        return either(same, serial("part", parts, copied), serial("part", parts, found))

    def _written(self, head: PrimExpr, query: PrimExpr, values: Sequence[PrimExpr], total: PrimExpr) -> Stmt:
        from tvm import tirx

        stored, alone = [], 0.0 if self.flash.safe else float("nan")
        total = tirx.Select(total == f32(0), f32(1), total)  # of no keys at all
        for vector, each in enumerate(values):
            value = each / VECTORS.all(total)
            if self.states is not None:
                some = self.flash.any_key(self.states, (*self.lead, head), query)
                value = tirx.Select(VECTORS.all(some) == VECTORS.all(NONE, "int32"), VECTORS.all(alone), value)
            stored.append(store(self.output, [*self.lead, head, query, VECTORS.ramp(vector * LANES)], value))
        return sequence(stored)
