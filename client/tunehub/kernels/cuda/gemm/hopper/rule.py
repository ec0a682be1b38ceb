"""Kernels of current TVM for the warpgroups of GPUs of compute capability 9.0, by rule: products and convolutions of
operands in half precision, where these promise to beat what tensor cores do otherwise, and TVM's own schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from heapq import nsmallest
from itertools import zip_longest
from typing import TYPE_CHECKING

from tunehub.comparison.guess import against_guess
from tunehub.kernels.cuda.gemm.half_default import default_s
from tunehub.kernels.cuda.gemm.hopper import bulk_tiles
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.cost import bulk_seconds, seconds
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile, suits, tiles
from tunehub.kernels.cuda.gemm.matmul import Matmul, find_matmul
from tunehub.kernels.cuda.gemm.workload import ProductWorkload
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.cuda.nvrtc import compile_for_warpgroups
from tunehub.tir.cuda.ptx.cp_async import COPIED
from tunehub.tir.cuda.ptx.wgmma import ARCHITECTURE
from tunehub.tir.nodes import main_module
from tunehub.tir.versions import TENSOR_LOAD

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

NAME, VERSION, ALONE = "tensor_cores", 1, False  # in reports as what other GPUs have for such functions
WARPGROUPS, BULK = "warpgroups", "bulk_copies"  # in records
TEMPLATES = {WARPGROUPS: WarpgroupTile, BULK: BulkTile}
ByWarpgroups = WarpgroupTile | BulkTile
_MEASURED = 8  # tiles
# Of what other kernels should take, what those by the copy engine must promise: costs of these are newer.
MARGIN = 0.95


@dataclass(frozen=True, slots=True)
class WarpgroupSchedule:
    """A kernel as a module with one PrimFunc ``main``, as a schedule of TVM has it."""

    mod: IRModule


def serves(target: Target) -> bool:
    """Whether ``target`` has warpgroups, and this TVM (0.27 and newer) functions of CUDA C++ in its kernels."""
    return str(target.attrs.get("arch", "")).rstrip("a") == "sm_90" and has_functions()


@cache
def has_functions() -> bool:
    """Whether this TVM has functions of CUDA C++ in its kernels: that whose loads are of the class that these name."""
    import tvm

    return hasattr(tvm.ir, TENSOR_LOAD)


def matmul_in(mod: IRModule) -> Matmul | None:
    """The anchor block of ``mod``, one PrimFunc ``main``, as a product of operands that warpgroups take, or None."""
    found = (find_matmul(mod, dtype) for dtype in ("float16", "bfloat16"))
    return next((matmul for matmul in found if matmul is not None), None)


def ranked(matmul: Matmul, count: int, device: GpuDevice) -> list[WarpgroupTile]:
    """The ``count`` tiles that should take least on ``device``, the best first."""
    return nsmallest(count, tiles(matmul), key=lambda tile: (seconds(matmul, tile, device), tile))


def bulk_ranked(matmul: Matmul, count: int, device: GpuDevice) -> list[BulkTile]:
    """As :func:`ranked`, of kernels whose operands the copy engine brings; none where it cannot."""
    if not bulk_tiles.suits(matmul):
        return []
    known = bulk_tiles.tiles(matmul, device)
    return nsmallest(count, known, key=lambda tile: (bulk_seconds(matmul, tile, device), tile))


def expected_s(matmul: Matmul, target: Target) -> float | None:
    """What the best kernel should take; None where there is none for ``target``."""
    found = best(matmul, device_of(target)) if serves(target) and suits(matmul) else ()
    return found[0][0] if found else None


@lru_cache(maxsize=256)  # asked by rules that come after it, and for each function that differs in what follows only
def best(matmul: Matmul, device: GpuDevice) -> tuple[tuple[float, ByWarpgroups], ...]:
    """The best tile of each kind and the seconds that it should take on ``device``, the best first."""
    bulk: list[tuple[float, ByWarpgroups]] = [
        (bulk_seconds(matmul, tile, device), tile) for tile in bulk_ranked(matmul, 1, device)
    ]
    plain = [(seconds(matmul, tile, device), tile) for tile in ranked(matmul, 1, device)]
    both = sorted([*bulk, *plain], key=lambda each: each[0] * (1.0 if isinstance(each[1], BulkTile) else MARGIN))
    return tuple(both)


def channels_last_s(matmul: Matmul, device: GpuDevice) -> float:
    """What a convolution that is ``matmul`` should take with channels last."""
    transposed = replace(matmul, rows_first=False, k_last=True, columns_first=False, runs=(COPIED, COPIED), window=1)
    return min((seconds(transposed, tile, device) for tile in tiles(transposed)), default=math.inf)


def match(mod: IRModule, target: Target) -> ProductWorkload | None:
    """A product of operands in half precision that lie as warpgroups take them."""
    matmul = matmul_in(mod) if serves(target) else None
    suited = matmul is not None and suits(matmul)
    return ProductWorkload(mod=mod, target=target, matmul=matmul) if matmul is not None and suited else None


def candidates(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The best tile of each kind, none where TVM's own schedule should take as little, within the margin of every
    guess. Operands may lie so that only the second kind can take them, which then comes before all that the first one
    came before."""
    other_s, known = default_s(workload.matmul, device), best(workload.matmul, device)
    for own_s, tile in known:
        if against_guess(own_s, other_s, launches_s=device.launches.tensor_cores) is not None:
            return
        yield KernelCandidate(tile=tile, seconds=own_s, compared_s=known[0][0])


def takes(workload: ProductWorkload, tile: ByWarpgroups) -> bool:
    """Whether it is one of all tiles of its kind."""
    matmul = workload.matmul
    if isinstance(tile, BulkTile):
        return bulk_tiles.suits(matmul) and tile in set(bulk_tiles.tiles(matmul, device_of(workload.target)))
    return tile in set(tiles(matmul))


def space(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The rule's tile, and then as many of both kinds."""
    matmul = workload.matmul
    bulk, others = bulk_ranked(matmul, _MEASURED, device), ranked(matmul, _MEASURED, device)
    first, both = best(matmul, device)[0][1], zip_longest(bulk, others)
    found = [first, *(tile for pair in both for tile in pair if tile is not None)]
    for tile in list(dict.fromkeys(found))[:_MEASURED]:
        own_s = bulk_seconds(matmul, tile, device) if isinstance(tile, BulkTile) else seconds(matmul, tile, device)
        yield KernelCandidate(tile=tile, seconds=own_s)


def build(workload: ProductWorkload, tile: ByWarpgroups) -> WarpgroupSchedule:
    """The kernel. Raises ValueError where operands cannot be copied as they lie."""
    return by_tile(workload.mod, workload.matmul, tile, workload.target)


def by_tile(mod: IRModule, matmul: Matmul, tile: ByWarpgroups, target: Target) -> WarpgroupSchedule:
    """The schedule of ``mod`` by ``tile``, for a ``target`` with warpgroups; not checked. Raises ValueError where
    operands cannot be copied as they lie, or what TVM raises."""
    from tunehub.kernels.cuda.gemm.hopper.bulk import bulk_kernel
    from tunehub.kernels.cuda.gemm.hopper.kernel import kernel
    from tunehub.kernels.cuda.gemm.hopper.product import product_of

    product = product_of(mod, matmul)
    function = bulk_kernel(product, tile, device_of(target)) if isinstance(tile, BulkTile) else kernel(product, tile)
    return WarpgroupSchedule(main_module(for_own_target(function, target)))


def for_own_target(function: PrimFunc, target: Target) -> PrimFunc:
    """``function``, which has kernels for warpgroups, as it is compiled for ``target``."""
    compile_for_warpgroups()
    return function.with_attr("target", own_target(target))


def own_target(target: Target) -> Target:
    """``target`` with the instructions of its architecture alone."""
    import tvm

    config = dict(target.attrs.items())
    return tvm.target.Target({"kind": target.kind.name, **config, "arch": ARCHITECTURE})
