"""The kernel of a product for warpgroups, as statements of TIR around the instructions of :mod:`tunehub.tir.cuda.ptx`.

A block of threads computes ``rows`` x ``columns`` results. Operands come into shared memory 128 bytes of K at a time,
by ``cp.async``, into a ring of ``stages``; rows of 128 bytes are swizzled as ``wgmma`` asks for. While the mainloop
multiplies one stage, copies of later ones are under way. The epilogue takes accumulators through shared memory, where
operands were, to whatever follows. The loop is that of CUTLASS's ``MainloopSm90CpAsyncGmmaSs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper.product import Product, are_neighbours, padded, substituted
from tunehub.kernels.cuda.gemm.hopper.tiles import AHEAD, DEPTH, FLOAT, SHARED_BYTES, SKEW, WarpgroupTile
from tunehub.kernels.cuda.gemm.matmul import INT8, accumulator_of
from tunehub.kernels.cuda.gemm.tabulated import BYTES
from tunehub.tir.cuda.ptx.barriers import cluster_sync
from tunehub.tir.cuda.ptx.cp_async import (
    COPIED,
    COPIED_BYTES,
    cp_async_16,
    cp_async_16_or,
    cp_async_commit,
    cp_async_wait,
    cp_async_wait_and_sync,
    round_to_tf32,
    shared_address,
)
from tunehub.tir.cuda.ptx.function import Function
from tunehub.tir.cuda.ptx.registers import cluster_sum
from tunehub.tir.cuda.ptx.wgmma import (
    BYTE_KINDS,
    KINDS,
    ROW_BYTES,
    ROWS,
    WARPGROUP,
    wgmma,
    wgmma_finish,
    wgmma_of_bytes,
    wgmma_wait,
)
from tunehub.tir.index_expressions import operator_name, parts_of
from tunehub.tir.nodes import buffer_kind, element_type
from tunehub.tir.statements import (
    INDEX,
    address,
    allocate,
    barrier,
    bind,
    const,
    load,
    loop,
    sequence,
    store,
    threads,
    when,
)
from tunehub.tir.versions import TENSOR_LOAD, UNROLLED, VECTORIZED

if TYPE_CHECKING:
    from tunehub.kernels.cuda.gemm.hopper.product import Element
    from tunehub.tir.types import Buffer, BufferLoad, Index, Number, PrimExpr, PrimFunc, Stmt, Var

    _Load: TypeAlias = "tuple[Any, Callable[[Any], Any]]"

_ACROSS = ROW_BYTES // COPIED_BYTES  # copies of a row
_VECTOR = 4
_TOGETHER = 8  # results of a thread whose other operands are loaded before the first is written


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRows:
    """Rows of an unknown number, ``blocks`` blocks high, an expression of 64 bits. The product is of one piece, so
    ``high``: ``declared(piece)`` are the statements that make its parameters those of the number ``piece``, and bind
    the variable ``left`` to the number of rows that there are in it."""

    blocks: PrimExpr
    high: int
    left: Var
    declared: Callable[[PrimExpr], list[Stmt]]


def kernel(product: Product, tile: WarpgroupTile) -> PrimFunc:
    """The PrimFunc of ``product`` by ``tile``."""
    return product.function.with_body(KernelWriter(product, tile, None).statement())


def open_kernel(product: Product, tile: WarpgroupTile, rows: OpenRows) -> Stmt:
    """As a statement, what computes all ``rows``, of which ``product`` is a piece."""
    return KernelWriter(product, tile, rows).statement()


class KernelWriter:
    most_shared = SHARED_BYTES  # that a block may ask for

    def __init__(self, product: Product, tile: Any, open_rows: OpenRows | None) -> None:
        self.product, self.tile, self.open_rows = product, tile, open_rows
        batch, rows, columns, k = product.matmul.extents
        self.extents, self.batch_extent = (rows, columns, k), batch
        self.depth, self.copied = product.depth, product.copied
        self.all_steps = math.ceil(k / self.depth)
        self.steps = math.ceil(self.all_steps / tile.cluster)
        self.vector = _VECTOR if columns % _VECTOR == 0 else 1
        self.v = tirx.Var("v", INDEX)  # of neighbours
        self.grid_rows, self.grid_columns = (math.ceil(e / b) for e, b in zip((rows, columns), tile.block, strict=True))
        self.whole, self.thread = (tirx.Var(name, INDEX) for name in ("block", "thread"))
        self.batch = tirx.Var("batch", INDEX) if batch > 1 else const(0)
        self.block, self.rank = self.whole // tile.cluster, self.whole % tile.cluster
        self.first_rank = const(0)  # of the blocks of a cluster among which K is divided
        self.base = tirx.Var("base", "uint32")
        self.sum_type = accumulator_of(product.dtype)
        self.shared_bytes = tile.shared_bytes
        self.pool = self._buffer("pool", tile.shared_bytes // FLOAT, self.sum_type, "shared.dyn")
        self.row_stride = tile.block[1] + SKEW
        self.parts = tile.rows // ROWS
        self.count = self.parts * tile.columns // 2
        self.accumulators = self._buffer("sums", self.count, self.sum_type, "local")
        # of a row and a column, the bytes that are added
        self.residual: Callable[[PrimExpr, PrimExpr], PrimExpr] | None = None
        self.column = tirx.Var("column", INDEX) if open_rows is not None else self.block // self.grid_rows
        high = self.grid_rows if open_rows is None else open_rows.high
        self.first_row = self.block % high * tile.block[0] if high > 1 or open_rows is None else const(0)
        self.first_column = self.column * tile.block[1]

    def _zeros(self) -> Stmt:
        """Accumulators begin with zero."""
        return loop("i", self.count, lambda i: store(self.accumulators, [i], const(0, self.sum_type)), UNROLLED)

    def _buffer(self, name: str, size: int, dtype: str, scope: str) -> Buffer:
        return tirx.decl_buffer((size,), dtype, name, scope=scope)

    def statement(self) -> Stmt:
        ahead = self._ahead()
        self._leave_out_stages()
        self._stage_residual()
        self._make_room()
        words = int(buffer_kind(self.pool).shape[0])
        shared = address(self.pool, const(0)), address(self.pool, const(words - 1))
        # Step 1. Memory, and accumulators of zero.
        start = [
            allocate(self.pool),
            allocate(self.accumulators),
            bind(self.base, shared_address()(*shared, result="uint32")),
            self._zeros(),
        ]
        # Step 2. Prologue: copies of the first stages; each is a group, if only an empty one.
        for step in range(ahead):
            start += self._load_stage(const(step), step) if step < self.steps else []
            start += [*(self._copy_residual() if step == ahead - 1 else []), cp_async_commit()()]
        body = [
            *start,
            *self._kept(),
            # Step 3. Mainloop.
            loop("i", self.steps, partial(self._iteration, ahead=ahead)),
            # Step 4. Epilogue: accumulators into shared memory, and from there to what follows.
            *self._finished(),
            *([] if self.residual is None else [cp_async_wait(0)()]),
            barrier("shared.dyn"),
            *self._accumulators_to_shared(),
            *([barrier("shared.dyn"), self._epilogue()] if self.tile.cluster == 1 else self._cluster_epilogue()),
        ]
        if self.open_rows is not None:
            return self._over_rows(sequence(body), self.open_rows)
        blocks = self.grid_rows * self.grid_columns * self.tile.cluster
        return self._grid(sequence(body), (self.batch, self.batch_extent), (self.whole, blocks))

    def _make_room(self) -> None:
        """For a table, behind all other memory. Raises ValueError where there is none."""
        self.table_at = int(buffer_kind(self.pool).shape[0]) * FLOAT
        if self.product.table is not None:
            if self.table_at + BYTES > self.most_shared:
                raise ValueError("a block has no memory for a table of bytes")
            self.pool = self._buffer("pool", (self.table_at + BYTES) // FLOAT, self.sum_type, "shared.dyn")

    def _kept(self) -> list[Stmt]:
        """Numbers in registers and a table in shared memory, which all results are computed with."""
        numbers, table = [bind(*each) for each in self.product.numbers], self.product.table
        if table is None:
            return numbers
        place = bind(table.address, self.base + tirx.Cast("uint32", const(self.table_at)))
        return [*numbers, place, table.filled(self.thread, self.tile.threads), barrier("shared.dyn")]

    def _ahead(self) -> int:
        """How many stages copies are ahead of products."""
        return int(self.tile.stages - AHEAD)

    def _finished(self) -> list[Stmt]:
        """Wait for all products."""
        return [wgmma_finish(self.count, self.sum_type)(address(self.accumulators, const(0)))]

    def _iteration(self, step: PrimExpr, ahead: int) -> Stmt:
        """Wait for a stage, multiply it, and start the copies of one that nobody reads any more, ``ahead`` of it."""
        later = step + ahead
        copies = self._load_stage(later, later % self.tile.stages)
        return sequence(
            [
                *([] if self.product.dtype != "float32" else self._round_stage(step % self.tile.stages, ahead - 1)),
                cp_async_wait_and_sync(ahead - 1)(),
                self._mma(step % self.tile.stages),
                *([when(later < self.steps, sequence(copies))] if self.steps > ahead else []),
                cp_async_commit()(),
                wgmma_wait(1)(),
            ]
        )

    def _over_rows(self, body: Callable[[PrimExpr], Stmt], rows: OpenRows) -> Stmt:
        """The blocks of one column after the other, as for known extents, without a division by what is not known."""
        place = tirx.Var("place", "int64")
        piece = self.block // rows.high if rows.high > 1 else self.block
        body = sequence([bind(self.whole, tirx.Cast(INDEX, place)), *rows.declared(piece), body])
        return self._grid(body, (self.column, self.grid_columns), (place, rows.blocks * self.tile.cluster))

    def _grid(self, nest: Stmt, along_y: tuple[PrimExpr, int], along_x: tuple[Var, Index]) -> Stmt:
        for variable, extent, tag in (
            (self.thread, self.tile.threads, "threadIdx.x"),
            (*along_y, "blockIdx.y"),
            *([(tirx.Var("rank", INDEX), self.tile.cluster, "clusterCtaIdx.x")] if self.tile.cluster > 1 else []),
            (*along_x, "blockIdx.x"),
        ):
            nest = threads(tag, extent, nest, variable) if type(variable).__name__ == "Var" else nest
        return nest

    # -- operands into shared memory

    def _load_stage(self, step: PrimExpr, stage: Index) -> list[Stmt]:
        start = stage * self.tile.stage_bytes
        rows, columns = self.tile.block
        step = self.rank * self.steps + step if self.tile.cluster > 1 else step
        a = self._copy_k_major(step, start, rows, self.product.a, self.first_row, 0)
        start = start + rows * ROW_BYTES
        if self.product.matmul.k_last:
            return [a, self._copy_k_major(step, start, columns, self.product.b, self.first_column, 1)]
        return [a, self._copy_transposed(step, start, columns)]

    def _copy_k_major(
        self,
        step: PrimExpr,
        start: Index,
        rows: int,
        element: Element,
        first: PrimExpr,
        axis: int,
    ) -> Stmt:
        """Rows of 128 bytes of K."""

        def one(i: PrimExpr) -> Stmt:
            row, chunk, place = self._place(i, start)
            return self._copy(place, element, first + row, step * self.depth + chunk * self.copied, axis)

        return self._over_threads(rows * _ACROSS, one)

    def _place(self, i: PrimExpr, start: Index) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """Row and part of it of the copy number ``i`` of a thread, and the bytes to where it goes, behind ``start``."""
        index = i * self.tile.threads + self.thread
        row, chunk = index // _ACROSS, index % _ACROSS
        return row, chunk, start + row * ROW_BYTES + self._swizzled(chunk, row) * COPIED_BYTES

    def _copy_transposed(self, step: PrimExpr, start: Index, columns: int) -> Stmt:
        """Rows of 64 columns of B transposed, for each of 64 elements of K."""
        across = columns // COPIED

        def one(i: PrimExpr) -> Stmt:
            index = i * self.tile.threads + self.thread
            row, chunk = index // across, index % across
            part, inside = chunk // 8, chunk % 8
            place = start + part * (DEPTH * ROW_BYTES) + row * ROW_BYTES
            place = place + self._swizzled(inside, row) * COPIED_BYTES
            return self._copy(place, self.product.b, self.first_column + chunk * COPIED, step * DEPTH + row, 1)

        return self._over_threads(DEPTH * across, one)

    def _round_stage(self, stage: Index, under_way: int) -> list[Stmt]:
        """Each thread rounds what it copied itself, which it need not wait for others to do; no weights that were
        rounded when the network was compiled."""
        start = stage * self.tile.stage_bytes

        def one(i: PrimExpr) -> Stmt:
            return round_to_tf32()(self.base + tirx.Cast("uint32", self._place(i, start)[2]))

        rows = sum(self.tile.block[: self.product.operands_to_round])
        return [cp_async_wait(under_way)(), self._over_threads(rows * _ACROSS, one)]

    def _over_threads(self, copies: int, one: Callable[[PrimExpr], Stmt]) -> Stmt:
        threads = self.tile.threads
        if copies % threads == 0:
            return loop("i", copies // threads, one, UNROLLED)
        return loop(
            "i",
            math.ceil(copies / threads),
            lambda i: when(i * threads + self.thread < copies, one(i)),
            UNROLLED,
        )

    def _swizzled(self, chunk: PrimExpr, row: PrimExpr) -> PrimExpr:
        return tirx.bitwise_xor(chunk, row % 8)

    def _copy(
        self,
        place: PrimExpr,
        element: Element,
        other: PrimExpr,
        k: PrimExpr,
        axis: int,
    ) -> Stmt:
        value, holds, padding = padded(element(self.batch, other, k))
        holds += self._inside(other, axis)
        if self.extents[2] % self.depth or self.all_steps % self.tile.cluster:
            holds.append(k < self.extents[2])
        inside = tirx.all(*holds) if holds else const(True, "bool")
        copied = cp_async_16() if padding == 0 else cp_async_16_or(_four_of(padding))
        return copied(self.base + tirx.Cast("uint32", place), tirx.address_of(value), inside)

    def _inside(self, place: PrimExpr, axis: int) -> list[PrimExpr]:
        """The condition under which the rows or columns of a block are there; none where they always are."""
        if axis == 0 and self.open_rows is not None:
            return [place < self.open_rows.left]
        return [place < self.extents[axis]] if self.extents[axis] % self.tile.block[axis] else []

    # -- a tensor of bytes that is added to products of integers, into shared memory

    def _leave_out_stages(self) -> None:
        """Products of integers have no memory for stages that a short K does not fill, so that more blocks fit."""
        tile = self.tile
        if self.sum_type == "int32" and self.open_rows is None:
            results = tile.block[0] * self.row_stride * FLOAT
            self.shared_bytes = max(min(tile.stages, self.steps) * tile.stage_bytes, results)
            self.pool = self._buffer("pool", self.shared_bytes // FLOAT, self.sum_type, "shared.dyn")

    def _stage_residual(self) -> None:
        """Find it, and a place behind what the tile takes, where there is room."""
        tile, (rows, columns, _) = self.tile, self.extents
        more = math.prod(tile.block)
        if self.sum_type != "int32" or tile.cluster > 1 or self.open_rows is not None or columns % COPIED_BYTES:
            return
        table = 0 if self.product.table is None else BYTES
        if self.batch_extent > 1 or self.shared_bytes + more + table > self.most_shared:
            return
        self.residual = next((each for each in self._bytes_beside() if _is_matrix(each, (rows, columns))), None)
        if self.residual is not None:
            self.pool = self._buffer("pool", (self.shared_bytes + more) // FLOAT, self.sum_type, "shared.dyn")

    def _bytes_beside(self) -> list[Callable[[PrimExpr, PrimExpr], PrimExpr]]:
        """What of 8 bits a result is computed from beside accumulators, as loads at a row and a column."""
        row, column = tirx.Var("row", INDEX), tirx.Var("column", INDEX)
        value = self.product.result(self.batch, row, column, load(self.pool, const(0)))[2]

        def at(found: PrimExpr) -> Callable[[PrimExpr, PrimExpr], PrimExpr]:
            return lambda r, c: substituted(found, {hash(row): r, hash(column): c})

        return [at(each) for each in _loads_in(value) if element_type(each) in INT8]

    def _copy_residual(self) -> list[Stmt]:
        """Start the copies of a block's part, row by row."""
        if self.residual is None:
            return []
        across, residual = self.tile.block[1] // COPIED_BYTES, self.residual

        def one(i: PrimExpr) -> Stmt:
            index = i * self.tile.threads + self.thread
            row, column = self.first_row + index // across, self.first_column + index % across * COPIED_BYTES
            holds = [*self._inside(row, 0), *self._inside(column, 1)]
            inside = tirx.all(*holds) if holds else const(True, "bool")
            place = self.base + tirx.Cast("uint32", index * COPIED_BYTES + self.shared_bytes)
            return cp_async_16()(place, tirx.address_of(residual(row, column)), inside)

        return [self._over_threads(self.tile.block[0] * across, one)]

    def _staged_vector(self, loaded: _Load, index: Index | None) -> PrimExpr | None:
        """Neighbours of what is added, those of the results number ``index`` of a block; None of what else is
        loaded."""
        if self.residual is None or index is None:
            return None
        if not loaded[0].source.same_as(self.residual(const(0), const(0)).source):
            return None
        word = load(self.pool, self.shared_bytes // FLOAT + index)
        return tirx.reinterpret(f"{element_type(loaded[0])}x{_VECTOR}", word)

    # -- products

    def _operands_at(self, stage: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        """Where those of a warpgroup begin in shared memory, in bytes."""
        tile = self.tile
        group = self.thread // WARPGROUP
        start = stage * tile.stage_bytes
        a = start + group // tile.groups[1] * (tile.rows * ROW_BYTES)
        b = start + tile.block[0] * ROW_BYTES
        return a, b + group % tile.groups[1] * (tile.columns * ROW_BYTES)

    def _mma(self, stage: PrimExpr) -> Stmt:
        places = (self.base + tirx.Cast("uint32", place) for place in self._operands_at(stage))
        return self._instructions()(address(self.accumulators, const(0)), *places)

    def _instructions(self) -> Function:
        """The products of a warpgroup for 128 bytes of K."""
        tile, product, apart = self.tile, self.product, ROWS * ROW_BYTES
        if product.dtype in BYTE_KINDS:
            return wgmma_of_bytes(product.dtype, product.b_dtype, tile.columns, tile.rows)
        return wgmma(KINDS[product.dtype], tile.columns, tile.rows, not product.matmul.k_last, apart, apart)

    # -- epilogue

    def _accumulators_to_shared(self) -> list[Stmt]:
        """Accumulators into shared memory, as ``wgmma`` leaves them in registers: a warp has 16 rows, 4 threads one."""
        tile = self.tile
        group, warp, lane = self.thread // WARPGROUP, self.thread % WARPGROUP // 32, self.thread % 32
        row = group // tile.groups[1] * tile.rows + warp * 16 + lane // 4
        column = group % tile.groups[1] * tile.columns + lane % 4 * 2

        def pair(part: int, half: int) -> Stmt:
            def one(j: PrimExpr) -> Stmt:
                to = (row + part * ROWS + half * 8) * self.row_stride + column + j * 8

                def each(v: PrimExpr) -> Stmt:
                    own = part * (tile.columns // 2) + j * 4 + half * 2 + v
                    return store(self.pool, [to + v], load(self.accumulators, own))

                return loop("i", 2, each, VECTORIZED)

            return loop("i", tile.columns // 8, one, UNROLLED)

        return [pair(part, half) for part in range(self.parts) for half in (0, 1)]

    def _cluster_epilogue(self) -> list[Stmt]:
        """Each block of a cluster adds up its part of what all of them have, and writes it."""
        return [
            cluster_sync()(),
            self._epilogue(),
            cluster_sync()(),
        ]

    def _epilogue(self) -> Stmt:
        tile = self.tile
        count = math.prod(tile.block) // _VECTOR // tile.cluster
        if count % tile.threads:
            raise ValueError("a block writes less than its threads")
        first = self.thread + (self.rank * count if tile.cluster > 1 else 0)
        together = math.gcd(count // tile.threads, _TOGETHER)

        def some(i: PrimExpr) -> Stmt:
            indices = [(i * together + j) * tile.threads + first for j in range(together)]
            return self._write_vectors([self._neighbours(index) for index in indices], indices=indices)

        return loop("i", count // tile.threads // together, some)

    def _neighbours(self, index: PrimExpr) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """Neighbouring results of a thread, the number ``index`` of its block: row, column, place in shared memory."""
        across = self.tile.block[1] // _VECTOR
        row, column = index // across, index % across * _VECTOR
        return self.first_row + row, self.first_column + column, row * self.row_stride + column

    def _write_vectors(
        self,
        places: Sequence[tuple[PrimExpr, PrimExpr, PrimExpr]],
        ahead: Sequence[Buffer] = (),
        indices: Sequence[Index] = (),
    ) -> Stmt:
        """Results of a thread. All that they are computed from is loaded before the first is written, beyond the end
        what is there last, so that a thread waits once. ``ahead``: what :meth:`_load_ahead` loaded for them;
        ``indices``: their numbers in a block, which may have what is added to them in shared memory."""
        clusters = self.summed
        held: list[Buffer] = list(ahead)
        first, then = [], []
        totals = self._buffer("totals", _VECTOR * len(places), self.sum_type, "local")
        for number, (row, column, place) in enumerate(places):
            start = number * _VECTOR
            if clusters:
                first.append(store(totals, [tirx.Ramp(start, 1, _VECTOR)], self._four_accumulators(place)))
            totals_at = (totals, start) if clusters else (self.pool, place)
            loads = self._beside(row, column, totals_at) if ahead else self._loads(row, column, totals_at)
            held = held or self._held(loads, len(places))
            for buffer, each in () if ahead else zip(held, loads, strict=True):
                vector = self._staged_vector(each, indices[number] if indices else None)
                whole = [tirx.Ramp(start, 1, _VECTOR)]
                first.append(self._vector(buffer, start, each[1]) if vector is None else store(buffer, whole, vector))
            known = [(load, buffer, start) for (load, _), buffer in zip(loads, held, strict=True)]
            then.append(self._results(row, column, totals_at, known))
        buffers = [allocate(each) for each in [*([totals] if clusters else []), *([] if ahead else held)]]
        return sequence([*buffers, *first, *then])

    def _load_ahead(self, places: Sequence[tuple[PrimExpr, PrimExpr, PrimExpr]]) -> tuple[list[Buffer], list[Stmt]]:
        """What results at these places are computed from beside accumulators, in registers, and the statements that
        load it."""
        totals_at = self._buffer("totals", _VECTOR, self.sum_type, "local"), 0
        loads = [self._beside(row, column, totals_at) for row, column, _ in places]
        held = self._held(loads[0], len(places))
        vectors = [
            self._vector(buffer, number * _VECTOR, inside)
            for number, each in enumerate(loads)
            for buffer, (_, inside) in zip(held, each, strict=True)
        ]
        return held, [*map(allocate, held), *vectors]

    def _beside(self, row: PrimExpr, column: PrimExpr, totals_at: tuple[Buffer, Index]) -> list[_Load]:
        """As :meth:`_loads`, of what are no accumulators."""
        loads = self._loads(row, column, totals_at)
        return [each for each in loads if not each[0].source.same_as(totals_at[0])]

    def _held(self, loads: Sequence[_Load], count: int) -> list[Buffer]:
        """Registers of a thread for so many vectors of each."""
        return [self._buffer("held", _VECTOR * count, element_type(load), "local") for load, _ in loads]

    @property
    def summed(self) -> bool:
        """Whether accumulators are not in shared memory as a buffer."""
        return bool(self.tile.cluster > 1)

    def _four_accumulators(self, place: Index) -> PrimExpr:
        """Four numbers at a place, summed over all blocks among which K is divided."""
        address = self.base + tirx.Cast("uint32", place * FLOAT)
        found = cluster_sum(self.tile.cluster, self.sum_type)
        return found(address, self.first_rank, result=f"{self.sum_type}x{_VECTOR}")

    def _value(
        self, row: PrimExpr, column: PrimExpr, totals_at: tuple[Buffer, Index], v: PrimExpr
    ) -> tuple[Buffer, list[PrimExpr], PrimExpr]:
        total = load(totals_at[0], totals_at[1] + v)
        return self.product.result(self.batch, row, column + v, total)

    def _loads(self, row: PrimExpr, column: PrimExpr, totals_at: tuple[Buffer, Index]) -> list[_Load]:
        """What a result is computed from, as it is written for the variable ``v``, and as a function of that, within
        the bounds of rows and columns. None where it is loaded under a condition."""
        if self.vector == 1:
            return []
        inside = self._last(row, 0), self._last(column, 1)
        found, bounded = (_loads_in(self._value(*at, totals_at, self.v)[2]) for at in ((row, column), inside))
        if len(found) != len(bounded):
            return []
        return [(load, partial(self._at, other)) for load, other in zip(found, bounded, strict=True)]

    def _at(self, expression: PrimExpr, v: PrimExpr) -> PrimExpr:
        """``expression``, which is of the neighbour that a variable says, of the number ``v``."""
        return substituted(expression, {hash(self.v): v})

    def _last(self, place: PrimExpr, axis: int) -> PrimExpr:
        """``place`` along the rows or columns, the last one where that is beyond the end."""
        if not self._inside(place, axis):
            return place
        if axis == 0:
            last = self.extents[0] if self.open_rows is None else self.open_rows.left
            return tirx.min(place, last - 1)
        return tirx.min(place, self.extents[1] - _VECTOR)

    def _vector(self, buffer: Buffer, start: int, value: Callable[[PrimExpr], PrimExpr]) -> Stmt:
        return loop("i", _VECTOR, lambda v: store(buffer, [start + v], value(v)), VECTORIZED)

    def _results(
        self,
        row: PrimExpr,
        column: PrimExpr,
        totals_at: tuple[Buffer, Index],
        known: Sequence[tuple[PrimExpr, Buffer, int]],
    ) -> Stmt:
        """What is computed of accumulators, and written: as vectors, and where it calls what TVM makes no vectors of,
        in registers in between. ``known``: loads that are in a buffer from a place on."""
        buffer, indices, value = self._value(row, column, totals_at, self.v)
        value = _replaced(value, [(old, load(other, at + self.v)) for old, other, at in known])

        def at(v: PrimExpr) -> tuple[PrimExpr, list[PrimExpr]]:
            return self._at(value, v), [self._at(index, v) for index in indices]

        def written(v: PrimExpr, own: PrimExpr | None = None) -> Stmt:
            computed, places = at(v)
            return store(buffer, places, computed if own is None else own)

        holds = [*self._inside(row, 0), *(self._inside(column, 1) if self.vector > 1 else [])]
        if self.vector == 1:
            body = [when(column + v < self.extents[1], written(const(v))) for v in range(_VECTOR)]
        elif not _has_calls(value):
            body = [loop("i", _VECTOR, written, VECTORIZED)]
        else:
            found = self._buffer("found", _VECTOR, element_type(value), "local")
            body = [
                allocate(found),
                *(store(found, [v], at(const(v))[0]) for v in range(_VECTOR)),
                loop("i", _VECTOR, lambda v: written(v, load(found, v)), VECTORIZED),
            ]
        statement = sequence(body)
        return when(tirx.all(*holds), statement) if holds else statement


def _four_of(number: int) -> int:
    """A word of four bytes that are each ``number``."""
    return (number & 0xFF) * 0x01010101


def _loads_in(value: PrimExpr) -> list[PrimExpr]:
    """The different loads of an expression; none where one is loaded under a condition."""
    from tvm_ffi import structural_equal

    found: list[Stmt] = []

    def visit(node: Number) -> bool:
        kind = type(node).__name__
        if kind == TENSOR_LOAD:
            if not any(structural_equal(node, other) for other in found):
                found.append(node)
            return True
        if kind == "Select" or (kind == "Call" and operator_name(node) == "if_then_else"):
            return False
        return all(map(visit, parts_of(node)))

    return found if visit(value) else []


def _replaced(value: PrimExpr, known: Sequence[tuple[PrimExpr, PrimExpr]]) -> PrimExpr:
    """``value`` with other expressions for some of its loads."""
    import tvm
    import tvm_ffi

    def other(load: BufferLoad) -> PrimExpr:
        return next((new for old, new in known if tvm_ffi.structural_equal(load, old)), load)

    return tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, other)], order="pre")


def _is_matrix(element: Callable[[PrimExpr, PrimExpr], PrimExpr], extents: tuple[int, int]) -> bool:
    """Whether copies of 16 bytes take rows of a tensor of bytes."""
    return are_neighbours(lambda _, row, column: element(row, column), (1, *extents), COPIED_BYTES)


def _has_calls(expression: Number) -> bool:
    called = type(expression).__name__ == "Call" and operator_name(expression) != "if_then_else"
    return called or any(map(_has_calls, parts_of(expression)))
