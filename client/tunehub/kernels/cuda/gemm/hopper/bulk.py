"""A persistent, warp-specialised product whose operands come by TMA, written as :mod:`.kernel` is: a producer, one
thread, loads boxes of both operands, all other warpgroups, the consumers, multiply. Blocks of a cluster load what they
have in common once, by multicast. A block computes one tile after the other; boxes of the next one arrive during the
epilogue of the last. CUTLASS calls it ``KernelTmaWarpSpecializedPersistent``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import PIECE, STAGED, WARP, BulkTile, PromotedTile
from tunehub.kernels.cuda.gemm.hopper.kernel import KernelWriter
from tunehub.kernels.cuda.gemm.hopper.product import Product, load_of
from tunehub.kernels.cuda.gemm.hopper.tiles import FLOAT
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.ptx.barriers import bar_sync_warpgroup, cluster_sync_of_parted_warps
from tunehub.tir.cuda.ptx.cp_async import shared_address
from tunehub.tir.cuda.ptx.mbarrier import (
    BARRIER_BYTES,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_arrive_remote,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait,
)
from tunehub.tir.cuda.ptx.registers import ld_shared_4, setmaxnreg, st_shared_2
from tunehub.tir.cuda.ptx.tma import flat_place, tensor_map, tensor_map_encode, tma_load_2d, tma_load_2d_multicast
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES, ROWS, WARPGROUP, wgmma_finish, wgmma_of_bytes, wgmma_wait
from tunehub.tir.nodes import buffer_kind, symbolic
from tunehub.tir.statements import (
    INDEX,
    address,
    allocate,
    bind,
    const,
    either,
    load,
    loop,
    sequence,
    store,
    threads,
    when,
)
from tunehub.tir.versions import UNROLLED

if TYPE_CHECKING:
    from tunehub.kernels.cuda.gemm.hopper.product import Element
    from tunehub.tir.types import Buffer, Index, PrimExpr, PrimFunc, Stmt, Var


_VECTOR = 4
_TOGETHER = 8  # vectors of a thread that are loaded before the first is written


def bulk_kernel(product: Product, tile: BulkTile, device: GpuDevice) -> PrimFunc:
    """The PrimFunc of ``product`` by ``tile`` for ``device``. Raises ValueError where an operand is no matrix."""
    writer = BulkWriter(product, tile, None)
    writer.device = device
    return product.function.with_body(writer.statement())


class BulkWriter(KernelWriter):
    tile: Any
    device: GpuDevice
    summed = True

    @cached_property
    def promoted(self) -> Buffer | None:
        """What instructions add up before it is added to accumulators; None where these add to them."""
        if not isinstance(self.tile, PromotedTile):
            return None
        return self._buffer("promoted", self.tile.together // 2, self.sum_type, "local")

    def statement(self) -> Stmt:
        tile = self.tile
        self._count_tiles()
        self.rank = self.whole % tile.blocks
        self.part = self.rank % tile.cluster
        self.first_rank = self.rank - self.part
        of_tile = self.rank // tile.cluster
        self.own_row, self.own_column = of_tile % tile.shared[0], of_tile // tile.shared[0]
        self._next_number()
        self.maps = [tensor_map(name) for name in ("a_map", "b_map")]
        self._make_room()
        words = int(buffer_kind(self.pool).shape[0])
        shared = address(self.pool, const(0)), address(self.pool, const(words - 1))
        # Step 1. Memory and barriers, which all threads, of all blocks of a cluster, see before they go on.
        # Step 2. The producer fills stages; the consumers multiply them and write their tiles.
        # Step 3. Where K is divided among a cluster, its blocks add up what they have; consumers have registers for it.
        body = [
            allocate(self.pool),
            allocate(self.accumulators),
            *([] if self.promoted is None else [allocate(self.promoted)]),
            bind(self.base, shared_address()(*shared, result="uint32")),
            *self._kept(),
            when(self.thread.equal(0), self._init_barriers()),
            mbarrier_init_fence(cluster=tile.blocks > 1)(),
            *([bind(self.number, self.whole // tile.blocks)] if tile.cluster > 1 else []),
            self._specialized(self._producer(), self._consumers()),
        ]
        grid = self._grid(sequence(body), (self.batch, 1), (self.whole, self.clusters * tile.blocks))
        return sequence([*self._tensor_maps(), grid])

    def _count_tiles(self) -> None:
        """Clusters along rows and columns, and how many are started."""
        self.high, self.wide = self.tile.over(*self.extents[:2])
        self.clusters = self.tile.started(self.high * self.wide, self.device)

    def _specialized(self, producer: Stmt, consumers: Stmt) -> Stmt:
        """What the producer does, and what the consumers, with registers moved from the one to the others. Where K is
        divided each block adds up its part of what those of its cluster have, and writes it."""
        tile = self.tile
        producer = when(self.thread.equal(tile.multiplying), producer)
        if tile.cluster > 1:
            met = cluster_sync_of_parted_warps()()
            kept, written = sequence(self._accumulators_to_shared()), self._epilogue()
            producer, consumers = sequence([producer, *[met] * 3]), sequence([consumers, met, kept, met, written, met])
        if tile.registers is not None:
            fewer, more = tile.registers
            producer = sequence([setmaxnreg(fewer, more=False)(), producer])
            consumers = sequence([setmaxnreg(more, more=True)(), consumers])
        return either(self.thread < tile.multiplying, consumers, producer)

    def _grid(self, nest: Stmt, along_y: tuple[PrimExpr, int], along_x: tuple[Var, Index]) -> Stmt:
        rank, blocks = tirx.Var("rank", INDEX), self.tile.blocks
        cluster = [(rank, blocks, "clusterCtaIdx.x")] if blocks > 1 else []
        for variable, extent, tag in (
            (self.thread, self.tile.threads, "threadIdx.x"),
            *cluster,
            (*along_x, "blockIdx.x"),
        ):
            nest = threads(tag, extent, nest, variable)
        return nest

    def _tensor_maps(self) -> list[Stmt]:
        """What tells the copy engine where operands lie."""
        tile, product, found, k = self.tile, self.product, [], self.extents[2]
        for at, (element, dtype) in enumerate(((product.a, product.dtype), (product.b, product.b_dtype))):
            extent = self.extents[at]
            box, buffer = (self.depth, self._height(at) // tile.shared[1 - at]), self._operand(element, extent)
            found += tensor_map_encode(self.maps[at], buffer, dtype, extents=(k, extent), apart=(k,), box=box)
        return found

    def _height(self, which: int) -> int:
        """Rows of an operand that blocks load together, one box each."""
        return int(self.tile.block[which])

    def _operand(self, element: Element, extent: Index) -> Buffer:
        """The matrix in memory, of so many rows, whose elements these are. Raises ValueError where it is none."""
        return _matrix(element, (extent, self.extents[2]))

    # -- tiles, one after the other

    def _place_of(self, number: Var) -> tuple[PrimExpr, PrimExpr]:
        """The row and the column of a cluster's tile: rows first, in bands."""
        band = self.tile.band(self.high)
        if band == self.high:
            return number % self.high, number // self.high
        inside = number % (band * self.wide)
        return number // (band * self.wide) * band + inside % band, inside // band

    def _next_number(self) -> None:
        """A variable for the number of a cluster's tile, and its place."""
        tile, number = self.tile, tirx.Var("number", INDEX)
        row, column = self._place_of(number)
        row, column = row * tile.shared[0] + self.own_row, column * tile.shared[1] + self.own_column
        self.number, self.first_row, self.first_column = number, row * tile.block[0], column * tile.block[1]

    def _over_tiles(self, body: Callable[[PrimExpr], Stmt]) -> Stmt:
        """``body(turn)`` for each tile of a cluster. Where K is divided it has one, whose place all threads know."""
        own = self.whole // self.tile.blocks
        if self.tile.cluster > 1:
            return body(const(0))
        self._next_number()
        if self._is_one_tile_each():
            return sequence([bind(self.number, own), body(const(0))])
        turn = tirx.Var("turn", INDEX)
        each = sequence([bind(self.number, own + turn * self.clusters), body(turn)])
        return loop(turn, self._turns(), each)

    def _is_one_tile_each(self) -> bool:
        """Whether a cluster has a single tile."""
        return bool(self.clusters == self.high * self.wide)

    def _turns(self) -> PrimExpr:
        """Tiles of a cluster."""
        total, own = self.high * self.wide, self.whole // self.tile.blocks
        return (total + (self.clusters - 1) - own) // self.clusters

    def _inside(self, place: Index, axis: int) -> list[PrimExpr]:
        """The condition under which rows or columns are there; a cluster may have blocks beyond the end."""
        extent, tile = self.extents[axis], self.tile
        return [place < extent] if extent % (tile.block[axis] * tile.shared[axis]) else []

    # -- barriers

    def _address(self, place: Index) -> PrimExpr:
        return self.base + tirx.Cast("uint32", place)

    def _full_barrier(self, stage: PrimExpr) -> PrimExpr:
        """The barrier that a stage is full: its operands are there."""
        return self._address(stage * BARRIER_BYTES + self.tile.barriers_at)

    def _empty_barrier(self, stage: PrimExpr) -> PrimExpr:
        """That a stage is empty: read no more, in all blocks that this one loads it for."""
        first = self.tile.barriers_at + self.tile.stages * BARRIER_BYTES
        return self._address(stage * BARRIER_BYTES + first)

    @property
    def _peers(self) -> int:
        """Blocks that write into this one's memory, itself among them."""
        rows, columns = self.tile.shared
        return int(rows + columns - 1)

    def _init_barriers(self) -> Stmt:
        tile, made = self.tile, []
        for stage in range(tile.stages):
            own = const(stage)
            made.append(mbarrier_init()(self._full_barrier(own), 1))
            made.append(mbarrier_init()(self._empty_barrier(own), tile.multiplying // WARP * self._peers))
        return sequence(made)

    # -- producer

    def _producer(self) -> Stmt:
        tile = self.tile

        def one(turn: PrimExpr, step: PrimExpr) -> Stmt:
            at = turn * self.steps + step
            stage = at % tile.stages
            k, start = (self.part * self.steps + step) * self.depth, stage * tile.stage_bytes
            return sequence(
                [
                    mbarrier_wait()(self._empty_barrier(stage), (at // tile.stages + 1) % 2),
                    mbarrier_arrive_expect_tx(tile.stage_bytes)(self._full_barrier(stage)),
                    self._tma_load(0, stage, start, k, self.first_row),
                    self._tma_load(1, stage, start + tile.block[0] * ROW_BYTES, k, self.first_column),
                ]
            )

        loaded = self._over_tiles(lambda turn: loop("i", self.steps, lambda step: one(turn, step)))
        return sequence([loaded, self._drain()]) if self._peers > 1 and tile.cluster == 1 else loaded

    def _drain(self) -> Stmt:
        """Wait until all that was loaded is read. Other blocks say so at this one's barriers, which it must not leave
        before; where K is divided all wait for each other anyway."""
        stages, loaded = self.tile.stages, self._turns() * self.steps

        def one(i: PrimExpr) -> Stmt:
            at = loaded + i
            return mbarrier_wait()(self._empty_barrier(at % stages), (at // stages + 1) % 2)

        return loop("i", stages, one)

    def _tma_load(self, which: int, stage: PrimExpr, start: Index, k: Index, first: PrimExpr) -> Stmt:
        """Load this block's part of the first (0) or second operand, for all that have it in common."""
        tile = self.tile
        count = tile.shared[1 - which]
        rows = self._height(which) // count
        own = (self.own_column, self.own_row)[which]
        part = own * rows if count > 1 else 0
        place = self._address(start + part * ROW_BYTES)
        box = place, tirx.address_of(self.maps[which]), self._full_barrier(stage), k, first + part
        if count == 1:
            return tma_load_2d()(*box)
        apart = tile.cluster * (tile.shared[0] if which == 0 else 1)  # of their ranks
        bits = const(sum(1 << (apart * i) for i in range(count)))
        return tma_load_2d_multicast()(*box, tirx.shift_left(bits, self.rank - own * apart))

    # -- consumers

    def _consumers(self) -> Stmt:
        tile = self.tile

        def step(at: PrimExpr, i: PrimExpr) -> Stmt:
            stage, before = (at + i) % tile.stages, (at + i + (tile.stages - 1)) % tile.stages
            arrived = mbarrier_wait()(self._full_barrier(stage), (at + i) // tile.stages % 2)
            if self.promoted is not None:
                scales, products = self._promoted(i, stage, self.promoted)
                return sequence([*scales, arrived, *products])
            return sequence(
                [
                    arrived,
                    self._mma(stage),
                    wgmma_wait(1)(),
                    when(i > 0, self._release(before)),
                ]
            )

        def one(turn: PrimExpr) -> Stmt:
            at = turn * self.steps
            early, epilogue = self._staged_epilogue() if tile.cluster == 1 else ([], [])
            return sequence(
                [
                    self._zeros(),
                    loop("i", self.steps, lambda i: step(at, i)),
                    *early,
                    *([] if self.promoted is not None else self._last_products(at)),
                    *epilogue,
                ]
            )

        return self._over_tiles(one)

    def _last_products(self, at: PrimExpr) -> list[Stmt]:
        """They are waited for."""
        done = wgmma_finish(self.count, self.sum_type)(address(self.accumulators, const(0)))
        return [done, self._release((at + (self.steps - 1)) % self.tile.stages)]

    def _promoted(self, step: PrimExpr, stage: PrimExpr, sums: Buffer) -> tuple[list[Stmt], list[Stmt]]:
        """Products of a stage, some rows and columns at a time, whose sums are then added to accumulators, times their
        scales if they have some, which are loaded first."""
        tile, product, (a, b) = self.tile, self.product, self._operands_at(stage)
        count, scales, found = tile.together // 2, [], list[Any]()
        function = wgmma_of_bytes(product.dtype, product.b_dtype, tile.together, ROWS, fresh=True)
        pieces = [(part, first) for part in range(self.parts) for first in range(0, tile.columns, tile.together)]
        for part, first in pieces:
            own = [] if product.scale is None else self._scales(step, part, first)
            scales += [bind(*each) for each in own]
            places = self._address(a + part * ROWS * ROW_BYTES), self._address(b + first * ROW_BYTES)
            found += [function(address(sums, const(0)), *places), wgmma_finish(count)(address(sums, const(0)))]
            found += [self._release(stage)] if (part, first) == pieces[-1] else []
            start = part * (tile.columns // 2) + first // 2
            found.append(self._added(sums, count, start, [variable for variable, _ in own]))
        return scales, found

    def _added(self, sums: Buffer, count: int, start: int, scales: Sequence[Var]) -> Stmt:
        """``sums`` to accumulators from ``start`` on; ``scales``: of the two rows of a thread."""

        def one(i: PrimExpr, own: int = 0) -> Stmt:
            value: PrimExpr = load(sums, i)
            value = value * scales[own] if scales else value
            return store(self.accumulators, [start + i], load(self.accumulators, start + i) + value)

        if not scales:
            return loop("i", count, one, UNROLLED)
        rows = [(0, 0), (0, 1), (1, 2), (1, 3)]
        return loop("i", count // 4, lambda i: sequence([one(i * 4 + v, half) for half, v in rows]), UNROLLED)

    def _scales(self, step: PrimExpr, part: int, first: int) -> list[tuple[Buffer, PrimExpr]]:
        """Variables of the scales of a thread's two rows, and these, for 128 of K and columns with one scale."""
        assert self.product.scale is not None
        tile, group, inside = self.tile, self.thread // WARPGROUP, self.thread % WARPGROUP
        row = (
            self.first_row
            + group // tile.groups[1] * tile.rows
            + part * ROWS
            + inside // WARP * 16
            + inside % WARP // 4
        )
        column = self.first_column + group % tile.groups[1] * tile.columns + first
        rows, columns, _ = self.extents
        k, column = step * self.depth, tirx.min(column, columns - 1)
        return [
            (tirx.Var("scale", "float32"), self.product.scale(tirx.min(row + half * 8, rows - 1), column, k))
            for half in (0, 1)
        ]

    def _release(self, stage: PrimExpr) -> Stmt:
        """A lane for each block that loads operands for this one says that the stage is empty."""
        tile = self.tile
        lane, free, (rows, columns) = self.thread % WARP, self._empty_barrier(stage), tile.shared
        if self._peers == 1:
            return when(lane.equal(0), mbarrier_arrive()(free))
        of_column = self.part + tile.cluster * (lane + rows * self.own_column)
        other = lane - rows
        other = other + tirx.Cast(INDEX, other >= self.own_column)
        of_row = self.part + tile.cluster * (self.own_row + rows * other)
        rank = of_column if columns == 1 else tirx.if_then_else(lane < rows, of_column, of_row)
        return when(lane < self._peers, mbarrier_arrive_remote()(free, rank))

    # -- epilogue

    def _staged_epilogue(self) -> tuple[list[Stmt], list[Stmt]]:
        """Results of a warpgroup, some at a time through its own part of shared memory. What they are computed from
        beside accumulators is loaded some pieces ahead, the first before all products are done."""
        group = self.thread // WARPGROUP
        self.staged = self.tile.staged_at + group * self.tile.staged_bytes
        met = bar_sync_warpgroup()(group + 1)
        pieces = self._pieces()
        early = self.tile.pieces_ahead
        ahead = [self._load_ahead(self._piece_places(*piece)) if early else ([], []) for piece in pieces]
        found: list[Stmt] = []
        for number, piece in enumerate(pieces):
            later = [statement for _, loads in ahead[number + early : number + early + 1] for statement in loads]
            written = self._write_vectors(self._piece_places(*piece), ahead[number][0])
            found += [*self._piece_to_shared(*piece), *later, met, written, met]
        return [statement for _, loads in ahead[:early] for statement in loads], found

    def _pieces(self) -> list[tuple[int, int, int]]:
        """Of a warpgroup's results: the part of its rows, the first column, how many."""
        columns = range(0, self.tile.columns, PIECE)
        return [(part, at, min(PIECE, self.tile.columns - at)) for part in range(self.parts) for at in columns]

    def _piece_to_shared(self, part: int, first: int, width: int) -> list[Stmt]:
        lane = self.thread % WARP
        row = self.thread % WARPGROUP // WARP * 16 + lane // 4

        def pair(j: int, half: int) -> Stmt:
            own = part * (self.tile.columns // 2) + (first // 8 + j) * 4 + half * 2
            at = ((row + half * 8) * STAGED + lane % 4 * 2 + j * 8) * FLOAT + self.staged
            pair = (load(self.accumulators, const(own + v)) for v in (0, 1))
            return st_shared_2(self.sum_type)(self._address(at), *pair)

        return [pair(j, half) for j in range(width // 8) for half in (0, 1)]

    def _piece_places(self, part: int, first: int, width: int) -> list[tuple[PrimExpr, PrimExpr, PrimExpr]]:
        """Row, column and place in shared memory of the vectors of a thread."""
        tile, inside = self.tile, self.thread % WARPGROUP
        group, across = self.thread // WARPGROUP, width // _VECTOR
        top = self.first_row + group // tile.groups[1] * tile.rows + part * ROWS
        left = self.first_column + group % tile.groups[1] * tile.columns + first

        def place(i: int) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
            index = i * WARPGROUP + inside
            row, column = index // across, index % across * _VECTOR
            return top + row, left + column, row * STAGED + column

        return [place(i) for i in range(ROWS * across // WARPGROUP)]

    def _four_accumulators(self, place: Index) -> PrimExpr:
        if self.tile.cluster > 1:
            return super()._four_accumulators(place)
        place = self._address(place * FLOAT + self.staged)
        return ld_shared_4(self.sum_type)(place, result=f"{self.sum_type}x4")

    def _epilogue(self) -> Stmt:
        threads = self.tile.multiplying
        count = math.prod(self.tile.block) // _VECTOR // self.tile.cluster
        if count % threads:
            raise ValueError("a block writes less than its threads")
        first, together = self.thread + self.part * count, math.gcd(count // threads, _TOGETHER)

        def some(i: PrimExpr) -> Stmt:
            return self._write_vectors(
                [self._neighbours((i * together + j) * threads + first) for j in range(together)]
            )

        return loop("i", count // threads // together, some)


def _matrix(element: Element, extents: tuple[Index, Index]) -> Buffer:
    """The buffer of an operand that is a matrix of these ``extents``. Raises ValueError where its rows do not lie
    behind each other in memory, or where it is padded."""
    import tvm

    analyzer, zero = symbolic().Analyzer(), const(0)
    row, k = (tirx.Var(name, INDEX) for name in ("row", "k"))
    for variable, extent in zip((row, k), extents, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, extent))
    load, conditions = load_of(element(zero, row, k))
    if conditions or not analyzer.can_prove_equal(flat_place(load), row * extents[1] + k):
        raise ValueError("an operand is no matrix whose rows lie behind each other")
    return load.source
