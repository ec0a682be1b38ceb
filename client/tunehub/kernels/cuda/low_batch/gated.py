"""SiLU(gate) · up of few rows: a block computes as many columns of both halves, beside each other in shared memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tvm import tirx

from tunehub.kernels.cuda.low_batch.product import LowBatchProduct
from tunehub.kernels.cuda.low_batch.schedule import kernel_call
from tunehub.kernels.cuda.low_batch.shared_memory import stride
from tunehub.kernels.cuda.low_batch.tile import DirectTile
from tunehub.kernels.te.products import gated
from tunehub.tir.nodes import buffer_kind, parameters
from tunehub.tir.statements import INDEX, block_of, const, load, loop, sequence, store, threads, when

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, Stmt

_VECTOR = 4
_HALF = 8  # columns of a half beside as many of the other


def gated_kernel(function: PrimFunc, product: LowBatchProduct, tile: DirectTile) -> PrimFunc:
    """``function``, a gated product of known shapes whose product is ``product``, by ``tile``. Raises ValueError where
    blocks do not divide its columns."""
    own = replace(product, extents=replace(product.extents, gated=True))
    if own.extents.columns % tile.columns:
        raise ValueError("a block has columns beyond the end")
    rows = own.extents.rows
    result = tirx.decl_buffer((rows, stride(tile)), "float32", "result", scope="shared")
    block, thread = tirx.Var("block", INDEX), tirx.Var("thread", INDEX)
    body = sequence(
        kernel_call(own, tile, result, block * tile.columns, place=const(0)),
        _epilogue(parameters(function)[-1], result, own, tile, block, thread),
    )
    nest = threads("threadIdx.x", tile.threads, body, thread)
    grid = threads("blockIdx.x", own.extents.columns // tile.columns, nest, block)
    return function.with_body(block_of(function.body, grid, "root", [result]))


def _epilogue(
    out: Buffer, result: Buffer, product: LowBatchProduct, tile: DirectTile, block: PrimExpr, thread: PrimExpr
) -> Stmt:
    """What a block has computed, by all its threads, neighbours of a row in vectors."""
    across, dtype = tile.columns // 2 // _VECTOR, str(buffer_kind(out).dtype)
    count = product.extents.rows * across
    zeros = [const(0)] * (len(buffer_kind(out).shape) - 2)

    def some(i: PrimExpr) -> Stmt:
        index = i * tile.threads + thread
        row, column = index // across, index % across * _VECTOR
        first = column // _HALF * (2 * _HALF) + column % _HALF

        def one(v: PrimExpr) -> Stmt:
            value = gated(load(result, row, first + v), load(result, row, first + _HALF + v), dtype)
            return store(out, [*zeros, row, block * (tile.columns // 2) + column + v], value)

        return when(index < count, loop("v", _VECTOR, one))

    return loop("i", -(-count // tile.threads), some)
