"""The schedule of a low-batch GEMM: blocks of threads along its columns, in each of them the kernel's source in
place of the anchor block, and the epilogue where results are written.

The kernels stream weights from memory once, stages ahead by ``cp.async``, and dequantise them in registers between
``ldmatrix`` and ``mma.sync``, as Marlin does (Frantar et al. 2024, arXiv 2408.11743); weights lie as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.matmul import inline_consumers
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents, LowBatchProduct
from tunehub.kernels.cuda.low_batch.shared_memory import pool_bytes, stride
from tunehub.kernels.cuda.low_batch.source import name_of, source
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.tir.nodes import buffer_kind, buffer_of, element_type, with_children
from tunehub.tir.statements import address, const, marked, run, threads

if TYPE_CHECKING:
    from tunehub.tir.types import (
        BlockRV,
        Buffer,
        BufferRegion,
        For,
        IRModule,
        LoopRV,
        PrimExpr,
        Range,
        SBlockRealize,
        Schedule,
        Stmt,
    )

_VECTOR = 4  # results of a thread
_BANKS = 32
# Of __launch_bounds__, on a multiprocessor: where one is stated, the compiler keeps no registers free for others.
_FEWEST_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"


def apply(mod: IRModule, product: LowBatchProduct, tile: AnyTile) -> IRModule:
    """``mod``, one PrimFunc ``main``, so scheduled, as a module. TVM raises where a primitive does not take its
    place."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    main = schedule.get_sblock(product.name, "main")
    # Step 1. Weights are dequantised by the kernel; results are kept in shared memory before the epilogue.
    for name in product.made_by:
        schedule.compute_inline(schedule.get_sblock(name, "main"))
    result = schedule.cache_write(main, 0, "shared")
    if product.extents.rows > 1:
        schedule.storage_align(main, 0, -2, _BANKS, stride(tile) % _BANKS)
    # Step 2. Blocks of threads along columns.
    *rows, columns = schedule.get_loops(result)
    blocks, inside = schedule.split(columns, [None, tile.columns])
    schedule.reorder(blocks, *rows, inside)
    schedule.bind(blocks, "blockIdx.x")
    schedule.compute_at(main, blocks, preserve_unit_loops=True)
    # Step 3. Epilogue, by all threads, in vectors.
    inline_consumers(schedule, result)
    _written(schedule, result, product, tile)
    # Step 4. The kernel's source (kernel.cuh, staged.cuh or warpgroups.cuh) in place of the reduction.
    _replaced(schedule, main, blocks, product, tile)
    if isinstance(tile, WgmmaTile) and tile.cluster > 1:
        _clustered(schedule, blocks, tile.cluster)
    return schedule.mod


def _written(schedule: Schedule, result: BlockRV, product: LowBatchProduct, tile: AnyTile) -> None:
    """What a block has computed, by all its threads, neighbours of a row in vectors."""
    _, *loops = schedule.get_loops(result)
    vector = 1 if product.extents.columns % tile.columns else _VECTOR
    _, thread, inner = schedule.split(schedule.fuse(*loops), [None, tile.threads, vector])
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(inner)


def _replaced(schedule: Schedule, main: BlockRV, blocks: LoopRV, product: LowBatchProduct, tile: AnyTile) -> None:
    """Put the call of the kernel in place of the loops of ``main``."""
    outermost = schedule.get_loops(main)[1]
    node, result = schedule.get(outermost), buffer_of(schedule.get(main).writes[0])
    first = schedule.get(blocks).loop_var * tile.columns
    opaque = _opaque(_realize_in(node), product, tile, result, first)
    schedule.state.replace(schedule.get_sref(outermost), opaque)


def _clustered(schedule: Schedule, blocks: LoopRV, count: int) -> None:
    """Make clusters of ``count`` of the ``blocks``, by a loop inside that no one needs the variable of."""
    from tvm import tirx

    loop = schedule.get(blocks)
    rank = threads("clusterCtaIdx.x", count, loop.body, tirx.Var("rank", element_type(loop.loop_var)))
    schedule.state.replace(schedule.get_sref(blocks), with_children(loop, lambda _: rank))


def _realize_in(loop: For) -> Stmt:
    while type(loop).__name__ != "SBlockRealize":
        loop = loop.body
    return loop


def pool_of(extents: LowBatchExtents, tile: StagedTile | WgmmaTile) -> Buffer:
    """The shared memory of a block whose operands come there."""
    from tvm import tirx

    return tirx.decl_buffer((pool_bytes(extents, tile) // 4,), "float32", "pool", scope="shared.dyn")


def kernel_call(
    product: LowBatchProduct,
    tile: AnyTile,
    result: Buffer,
    first: PrimExpr,
    *,
    place: PrimExpr,
    pool: Buffer | None = None,
) -> Stmt:
    """The call that leaves results of the columns from ``first`` on in ``result`` from the column ``place`` on."""
    from tvm.backend.cuda.op import cuda_func_call

    def at(buffer: Buffer, *last: PrimExpr) -> PrimExpr:
        zeros = [const(0, element_type(first)) for _ in buffer_kind(buffer).shape]
        return address(buffer, *zeros[: len(zeros) - len(last)], *last)

    return run(
        cuda_func_call(
            name_of(product.extents, tile),
            at(product.data),
            at(product.weights),
            at(product.weights if product.scales is None else product.scales),
            at(result, place),
            at(result, *_second_row(result, first), place),
            first,
            *([] if pool is None else [at(pool), at(pool, buffer_kind(pool).shape[0] - 1)]),
            const(product.extents.rows),
            source_code=source(product.extents, tile),
        )
    )


def _second_row(result: Buffer, column: PrimExpr) -> list[PrimExpr]:
    """Where a result's second row is along its axes of rows; the first one where it has no other."""
    left, places = 1, []
    for extent in map(int, reversed(buffer_kind(result).shape[:-1])):
        places.append(const(left % extent, element_type(column)))
        left //= extent
    return places[::-1]


def _opaque(realize: SBlockRealize, product: LowBatchProduct, tile: AnyTile, result: Buffer, first: PrimExpr) -> Stmt:
    """The block that calls the kernel."""
    from tvm import ir, tirx

    def region(buffer: Buffer, *last: Range) -> BufferRegion:
        zero = const(0, element_type(first))
        whole = [ir.Range.from_min_extent(zero, extent) for extent in buffer_kind(buffer).shape]
        return tirx.BufferRegion(buffer, [*whole[: len(whole) - len(last)], *last])

    pool = None
    if not isinstance(tile, DirectTile):
        pool = pool_of(product.extents, tile)
    call = kernel_call(product, tile, result, first, place=first, pool=pool)
    if isinstance(tile, StagedTile) and tile.held:
        call = marked(_FEWEST_BLOCKS, 1, call)
    operands = [product.data, product.weights, *([] if product.scales is None else [product.scales])]
    columns = ir.Range.from_min_extent(first, const(tile.columns, element_type(first)))
    made = type(realize.block)(
        [],
        list(map(region, operands)),
        [region(result, columns)],
        product.name,
        call,
        alloc_buffers=[] if pool is None else [pool],
        annotations=realize.block.annotations,
    )
    return type(realize)([], True, made)
