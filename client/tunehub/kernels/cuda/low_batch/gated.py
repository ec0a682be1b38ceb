"""SiLU(gate) · up of few rows: a block computes as many columns of both halves, beside each other in shared memory.
Weights in e4m3 have scales of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tvm import tirx

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.low_batch.choice import chosen, of_registers, seconds
from tunehub.kernels.cuda.low_batch.gated_functions import gated_maker
from tunehub.kernels.cuda.low_batch.product import LowBatchProduct, find_product, has_low_batch
from tunehub.kernels.cuda.low_batch.rule import LowBatchSchedule, LowBatchWorkload
from tunehub.kernels.cuda.low_batch.schedule import kernel_call, pool_of
from tunehub.kernels.cuda.low_batch.shared_memory import stride
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, WgmmaTile
from tunehub.kernels.cuda.open_function import OpenFunction
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.kernels.te.products import gated
from tunehub.tir.branches import SizeBranch
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import buffer_kind, main_module, parameters
from tunehub.tir.statements import INDEX, block_of, const, load, loop, sequence, store, threads, when

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, IRModule, PrimExpr, PrimFunc, Stmt

NAME, VERSION, ALONE = "low_batch_gated", 1, True
_VECTOR = 4
_HALF = 8  # columns of a half beside as many of the other
_LENGTHS = (8, 16, 32)  # rows that a kernel is for
MOST_GATED = max(_LENGTHS)


def match(mod: IRModule, target: Target) -> LowBatchWorkload | None:
    """Such a function of few rows."""
    product = find_product(mod) if has_low_batch(target) and gated_maker(mod["main"]) is not None else None
    return None if product is None else LowBatchWorkload(mod=mod, target=target, product=product)


def candidates(workload: LowBatchWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tile of as many rows. Raises NoTileError where blocks do not divide the columns."""
    tile = _tile(workload.product, workload.target)
    yield KernelCandidate(tile=tile, seconds=seconds(workload.product.extents, device))


def build(workload: LowBatchWorkload, tile: AnyTile) -> LowBatchSchedule:
    """The kernel."""
    made = gated_kernel(workload.mod["main"], workload.product, tile)
    return LowBatchSchedule(mod=main_module(_targeted(made, tile, workload.target)))


def few_gated_rows(whole: OpenFunction, target: Target, lengths: Sequence[int] = _LENGTHS) -> list[SizeBranch]:
    """Branches of a gated product of open rows for its first sizes. Raises NoTileError where there is no kernel."""
    branches = []
    for length in lengths:
        piece = whole.piece(length)
        found = find_product(piece)
        if found is None:
            raise NoTileError("it is no product of few rows")
        tile = _tile(found, target)
        made = whole.over(gated_kernel(piece["main"], found, tile), length)
        check_function(made, whole.function, target)
        branches.append(SizeBranch(up_to=length, function=_targeted(made, tile, target)))
    return branches


def _targeted(function: PrimFunc, tile: AnyTile, target: Target) -> PrimFunc:
    return warpgroups.for_own_target(function, target) if isinstance(tile, WgmmaTile) else function


def _tile(product: LowBatchProduct, target: Target) -> AnyTile:
    """As a product alone has it, of those of blocks that are by themselves."""
    device = device_of(target)
    tile = chosen(product.extents, limits_of(target).asked_shared_memory, device, warpgroups.serves(target))
    alone = not isinstance(tile, WgmmaTile) or tile.cluster == 1
    tile = tile if alone and product.extents.columns % tile.columns == 0 else of_registers(product.extents, device)
    if product.extents.columns % tile.columns:
        raise NoTileError("a block has columns beyond the end")
    return tile


def gated_kernel(function: PrimFunc, product: LowBatchProduct, tile: AnyTile) -> PrimFunc:
    """``function``, a gated product of known shapes whose product is ``product``, by ``tile``. Raises ValueError where
    blocks do not divide its columns."""
    own = replace(product, extents=replace(product.extents, gated=True))
    if own.extents.columns % tile.columns:
        raise ValueError("a block has columns beyond the end")
    rows = own.extents.rows
    result = tirx.decl_buffer((rows, stride(tile)), "float32", "result", scope="shared")
    block, thread = tirx.Var("block", INDEX), tirx.Var("thread", INDEX)
    pool = None if isinstance(tile, DirectTile) else pool_of(own.extents, tile)
    body = sequence(
        kernel_call(own, tile, result, block * tile.columns, place=const(0), pool=pool),
        _epilogue(parameters(function), result, own, tile, block, thread),
    )
    nest = threads("threadIdx.x", tile.threads, body, thread)
    grid = threads("blockIdx.x", own.extents.columns // tile.columns, nest, block)
    return function.with_body(block_of(function.body, grid, "root", [result, *([] if pool is None else [pool])]))


def _epilogue(
    own: Sequence[Buffer], result: Buffer, product: LowBatchProduct, tile: AnyTile, block: PrimExpr, thread: PrimExpr
) -> Stmt:
    """What a block has computed, by all its threads, neighbours of a row in vectors."""
    *_, of_columns, out = own
    apart = product.extents.columns // 2
    across, dtype = tile.columns // 2 // _VECTOR, str(buffer_kind(out).dtype)
    count = product.extents.rows * across
    zeros = [const(0)] * (len(buffer_kind(out).shape) - 2)

    def some(i: PrimExpr) -> Stmt:
        index = i * tile.threads + thread
        row, column = index // across, index % across * _VECTOR
        first = column // _HALF * (2 * _HALF) + column % _HALF

        def one(v: PrimExpr) -> Stmt:
            place = block * (tile.columns // 2) + column + v
            halves = [load(result, row, first + of * _HALF + v) for of in (0, 1)]
            if product.extents.weights.e4m3:
                halves = [each * load(of_columns, place + of * apart) for of, each in enumerate(halves)]
            return store(out, [*zeros, row, place], gated(halves[0], halves[1], dtype))

        return when(index < count, loop("v", _VECTOR, one))

    return loop("i", -(-count // tile.threads), some)
