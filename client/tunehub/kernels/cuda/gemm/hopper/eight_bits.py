"""Products of operands of 8 bits by warpgroups: floats (e4m3, e5m2), whose sums are promoted to float32 each 128 of K,
and integers, in any mix of signs, with sums in int32. Both operands lie along K; what follows a product, scales of
rows and columns, say, is part of its kernel. A convolution of integers with channels last is a product, too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import nsmallest
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile, PromotedTile, are_matrices, promoted_tiles
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import tiles as bulk_tiles
from tunehub.kernels.cuda.gemm.hopper.cost import bulk_seconds, integer_bulk_seconds, integer_seconds
from tunehub.kernels.cuda.gemm.hopper.tiles import suits, tiles
from tunehub.kernels.cuda.gemm.matmul import FLOAT8, INT8, Matmul, find_mixed_matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.workload import ProductWorkload
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES, ROWS

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

NAME, VERSION, ALONE = "tensor_cores_8bit", 1, False
_HALF = 2  # numbers of 8 bits in one of half precision
_COPIED, _DEPTH = 16, ROW_BYTES  # numbers in a copy, and of K in a step
_TRIED = 4  # tiles
# Times what costs say, where sums are promoted: all of a warpgroup's at once, or some rows or columns after the other.
_PROMOTED, _PROMOTED_APART = 1.08, 1.15
# Up to so many rows, where sums that are promoted are waited for, seconds of a step of 128 of K: of any block, beside
# that of one with a single warpgroup, of one that shares loads; what costs say too much where K is divided; of a
# start. Fitted to 460 pairs of a tile and rows on an H200 (`language-models-e4m3-h200-2026-11-29.jsonl.xz`).
_FEW_ROWS = 512
_STEP, _ALONE, _SHARED, _JOINED, _STARTED = 0.015e-6, 0.009e-6, 0.033e-6, -1.3e-6, 1.1e-6


def matmul_in(mod: IRModule) -> Matmul | None:
    """The anchor block of ``mod``, one PrimFunc ``main``, as a product of operands of 8 bits that lie as warpgroups
    take them; None for others."""
    matmul = product_in(mod)
    return None if matmul is None or why_not(matmul) is not None else matmul


def product_in(mod: IRModule) -> Matmul | None:
    """The anchor block of ``mod``, one PrimFunc ``main``, as a product of operands of 8 bits; None for others."""
    found = (find_mixed_matmul(mod, types) for types in (FLOAT8, INT8))
    return next((matmul for matmul in found if matmul is not None), None)


def why_not(matmul: Matmul) -> str | None:
    """Why warpgroups do not take the operands of ``matmul``; None where they do."""
    if not matmul.k_last or matmul.rows_first:
        return "operands of 8 bits do not lie along what is added up"
    if any(run % _COPIED for run in matmul.runs) or not suits(as_halves(matmul)):
        return f"rows of operands of 8 bits are no multiples of {_COPIED}"
    if is_promoted(matmul) and not are_matrices(as_halves(matmul)):
        return "operands in floats of 8 bits are no two matrices whose rows lie behind each other"
    return None


def is_promoted(matmul: Matmul) -> bool:
    """Whether sums are promoted."""
    return matmul.types[0] in FLOAT8


def as_halves(matmul: Matmul) -> Matmul:
    """What takes as long in half precision: half as much of K, of which instructions take the same bytes."""
    *others, last = matmul.k
    return replace(
        matmul,
        k=(*others, last._replace(extent=last.extent // _HALF)),
        runs=(matmul.runs[0] // _HALF, matmul.runs[1] // _HALF),
    )


@lru_cache(maxsize=256)  # asked for each function that differs in what follows only
def ranked(matmul: Matmul, device: GpuDevice, count: int = _TRIED) -> tuple[tuple[float, warpgroups.ByWarpgroups], ...]:
    """The tiles that should take least on ``device``, and the seconds that they should take, the best first. Half of
    those of integers are of kernels without the copy engine, which operands may lie so that it cannot take them."""
    halves = as_halves(matmul)
    bulk = (promoted_tiles if is_promoted(matmul) else bulk_tiles)(halves, device) if are_matrices(halves) else ()
    plain = () if is_promoted(matmul) else tiles(halves)
    kinds: list[list[tuple[float, warpgroups.ByWarpgroups]]] = [
        [(tile_s(matmul, tile, device), tile) for tile in bulk],
        [(integer_seconds(halves, tile, device), tile) for tile in plain],
    ]
    most = count // 2 if all(kinds) else count
    found = [each for kind in kinds for each in nsmallest(most, kind, key=lambda each: (each[0], each[1]))]
    return tuple(sorted(found, key=lambda each: each[0]))


def tile_s(matmul: Matmul, tile: BulkTile, device: GpuDevice) -> float:
    """The seconds that a kernel whose operands the copy engine brings should take."""
    if not is_promoted(matmul):
        return integer_bulk_seconds(as_halves(matmul), tile, device)
    at_once = isinstance(tile, PromotedTile) and (tile.rows, tile.columns) == (ROWS, tile.together)
    found = bulk_seconds(as_halves(matmul), tile, device) * (_PROMOTED if at_once else _PROMOTED_APART)
    return found + (_waited_s(matmul, tile, device) if matmul.extents[1] <= _FEW_ROWS else 0.0)


def _waited_s(matmul: Matmul, tile: BulkTile, device: GpuDevice) -> float:
    """What a product of few rows takes beside."""
    _, rows, columns, k = matmul.extents
    rounds = math.ceil(math.prod(tile.over(rows, columns)) / tile.resident(device))
    steps = rounds * math.ceil(math.ceil(k / _DEPTH) / tile.cluster)
    alone, shared = math.prod(tile.groups) == 1, math.prod(tile.shared) > 1
    return _STARTED + (_JOINED if tile.cluster > 1 else 0.0) + steps * (_STEP + _ALONE * alone + _SHARED * shared)


def match(mod: IRModule, target: Target) -> ProductWorkload | None:
    """A product of floats of 8 bits, or of integers that lie as warpgroups take them: others have kernels for warps."""
    matmul = product_in(mod) if warpgroups.serves(target) else None
    if matmul is None or not (is_promoted(matmul) or why_not(matmul) is None):
        return None
    return ProductWorkload(mod=mod, target=target, matmul=matmul)


def candidates(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tiles that should cost least. Raises NoTileError where operands do not lie as warpgroups take them."""
    reason = why_not(workload.matmul)
    if reason is not None:
        raise NoTileError(reason)
    for own_s, tile in ranked(workload.matmul, device):
        yield KernelCandidate(tile=tile, seconds=own_s)


def build(workload: ProductWorkload, tile: warpgroups.ByWarpgroups) -> warpgroups.WarpgroupSchedule:
    """The kernel. Raises ValueError where operands cannot be copied as they lie, or what TVM raises."""
    return warpgroups.by_tile(workload.mod, workload.matmul, tile, workload.target)
