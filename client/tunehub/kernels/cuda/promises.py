"""What a function should take on a CUDA GPU without a record, for those that compare graphs, or records, with that.

Which kernel serves is said by :mod:`tunehub.kernels.cuda.choose`; here a kernel counts also where TVM's own schedule
takes its place, since it does not promise the margin of a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm import half_default
from tunehub.kernels.cuda.gemm.cost import default_s
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper import tf32
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.split_k import rule as split_k
from tunehub.kernels.cuda.gemm.tensor_core import rule as tensor_core
from tunehub.kernels.cuda.gemm.tensor_core.cost import seconds
from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
from tunehub.kernels.cuda.gemm.tiles import ReductionBlock, best_tile, is_narrow, reduction_block_of
from tunehub.kernels.devices.known import device_of
from tunehub.tir.cuda.limits import limits_of

if TYPE_CHECKING:
    from tunehub.options import Precision
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule


def without_record_s(mod: IRModule, target: Target) -> float | None:
    """Seconds that ``mod``, one PrimFunc ``main``, should take: by a tile, by TVM's own schedule, or with
    split-K; None for a function without a product in float32, or groups of them."""
    reducing, device = reduction_block_of(mod), device_of(target)
    if reducing is None or reducing.problem is None:
        return None
    tile_s = _tile_s(reducing, target)
    known = (tile_s if tile_s is not None else default_s(reducing.problem, device), split_k.promised_s(mod, device))
    return min((each for each in known if each is not None), default=None)


def half_product_s(mod: IRModule, target: Target) -> float | None:
    """Seconds that ``mod`` should take by a kernel for warpgroups, on tensor cores, or by a plain tile; None when it
    has no product of operands in half precision."""
    matmul = warpgroups.matmul_in(mod)
    if matmul is None:
        return None
    device, own_s = device_of(target), warpgroups.expected_s(matmul, target)
    known: list[float | None] = [own_s]
    *_, columns, k = matmul.extents
    has_windows = matmul.runs[0] < k  # which are for warpgroups, where there are some
    if matmul_of(mod) is not None and not (has_windows and own_s is not None):
        known += [seconds(matmul, tile, device) for tile in tensor_core.ranked(matmul, 1, device)]
    if own_s is None or is_narrow(columns, k):
        known.append(_tile_s(reduction_block_of(mod, narrow=True), target))
    return min((each for each in known if each is not None), default=None)


def fastest_s(mod: IRModule, target: Target, precision: Precision) -> float | None:
    """Seconds that ``mod``, one PrimFunc ``main``, should take by the fastest of all that may serve, TVM's own schedule
    among them; None when it has no product."""
    device, half = device_of(target), warpgroups.matmul_in(mod)
    rounded = tf32.matmul_in(mod) if precision == "tf32" else None
    best = None if rounded is None else tf32.expected(rounded, device)
    known = (
        None if half is None else half_default.default_s(half, device),
        half_product_s(mod, target),
        without_record_s(mod, target),
        None if best is None else best[0],
    )
    return min((each for each in known if each is not None), default=None)


def _tile_s(reducing: ReductionBlock | None, target: Target) -> float | None:
    """By the rule's tile; None where the rule leaves it to TVM."""
    if reducing is None or reducing.problem is None:
        return None
    try:
        return best_tile(reducing, limits_of(target), device_of(target)).expected_s
    except NoTileError:
        return None
