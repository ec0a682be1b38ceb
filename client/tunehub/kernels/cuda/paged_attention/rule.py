"""Attention over a paged cache by our kernels: which functions, and the tile that should take least.

Not among :mod:`tunehub.kernels.cuda.rules`: these functions arrive scheduled, and take lengths from memory, by which
alone seconds could be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.hopper.rule import for_own_target
from tunehub.kernels.cuda.gemm.hopper.rule import serves as has_warpgroups
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.paged_attention.function import with_kernel
from tunehub.kernels.cuda.paged_attention.matching import paged_attention_of
from tunehub.kernels.cuda.paged_attention.spec import (
    ByWarpgroups,
    DecodeTile,
    Kind,
    PagedAttention,
    PagedBulkTile,
    PagedWarpgroupTile,
    PrefillTile,
    Tile,
)
from tunehub.kernels.devices.known import device_of

if TYPE_CHECKING:
    from tunehub.kernels.devices.device import GpuDevice
    from tunehub.target.types import Target
    from tunehub.tir.types import PrimFunc

NAME = "paged_attention"
_FIRST_ARCHITECTURE = 80  # with copies that are not waited for, and products of 16 × 8 × 16
_TYPES = ("float16", "bfloat16")
_WIDTH, _LARGEST = 16, 256  # of which depths are multiples; depth that a warp keeps in registers
_TWICE = 128  # depth up to which a warp keeps twice as many rows
_DEPTHS = (64, 96, 128)  # for which warpgroups have registers with keys that a warp brings
_PART = 64  # of which depths are multiples for warpgroups
_RESERVED = 1 << 10  # bytes of shared memory that CUDA takes of each block
# One block a multiprocessor: each part of a sequence leaves results of all its queries' heads, which others sum up. One
# H200, four models' heads, 1 to 32 sequences of 512 to 8,192 tokens, in turns: 0.96 of the time of two blocks.
_DECODE = tuple(
    DecodeTile(warps=warps, stages=stages, blocks=blocks)
    for warps, stages, blocks in ((4, 3, 1), (4, 3, 2), (4, 2, 2), (4, 2, 1), (2, 2, 1))
)
# Of so many heads of queries a head of keys: 0.89 of that time where _DECODE's first takes 0.96 (7 heads; of 4 and 1
# head 1.01, 0.98).
_MANY_HEADS = 7
_DECODE_OF_MANY_HEADS = (DecodeTile(warps=8, stages=2, blocks=1), *_DECODE)
# Of pages in e4m3: more bytes are under way where a step reads most (one H200, 32 sequences of 8,192 tokens: 165 us,
# by the others 171 to 195).
_DECODE_OF_E4M3 = (DecodeTile(warps=4, stages=5, blocks=1), *_DECODE)
_WARPGROUPS = (
    PagedBulkTile(groups=2, keys=128, stages=3),
    PagedBulkTile(groups=2, keys=128, stages=2),
    PagedWarpgroupTile(groups=2, keys=128),
)
_MOST_GROUPS = 2  # of warpgroups that multiply, where pages are in e4m3


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedWorkload:
    """``attention`` for ``target``, and the ``device`` that this is."""

    attention: PagedAttention
    device: GpuDevice
    target: Target


def serves(target: Target) -> bool:
    """Whether kernels can be made for ``target``."""
    arch = str(target.attrs.get("arch", "")).removeprefix("sm_").rstrip("af")
    return target.kind.name == "cuda" and arch.isdigit() and int(arch) >= _FIRST_ARCHITECTURE


def match(function: PrimFunc, target: Target, cross: Iterable[int] = ()) -> PagedWorkload | None:
    """The workload of a function that came scheduled; None for others, and where there is no kernel of ours."""
    found = paged_attention_of(function, target, cross) if serves(target) else None
    if found is None or found.dtype not in _TYPES or found.depth > _LARGEST:
        return None
    if found.depth % (2 * _WIDTH if found.e4m3 else _WIDTH):
        return None
    return PagedWorkload(attention=found, device=device_of(target), target=target)


def candidates(workload: PagedWorkload) -> Iterator[KernelCandidate]:
    """Tiles, the likeliest first."""
    attention = workload.attention
    for tile in _decode(attention) if attention.kind is Kind.DECODE else _prefill(attention):
        blocks = tile.blocks if isinstance(tile, DecodeTile) else 1
        if fits(workload, tile) and blocks * _taken(workload, tile) <= workload.device.shared_memory:
            yield KernelCandidate(tile=tile, seconds=None)


def fits(workload: PagedWorkload, tile: Tile) -> bool:
    """Whether a block has enough shared memory, and the GPU its instructions."""
    attention = workload.attention
    if isinstance(tile, ByWarpgroups) and not has_warpgroups(workload.target):
        return False
    if isinstance(tile, PagedWarpgroupTile) and (attention.e4m3 or attention.depth % _PART):
        return False  # what warpgroups multiply has to lie in shared memory in half precision
    if isinstance(tile, PagedBulkTile) and attention.e4m3 and tile.groups > _MOST_GROUPS:
        return False  # a warpgroup that makes it has too few registers
    if isinstance(tile, PagedBulkTile) and (attention.window or attention.depth not in _DEPTHS):
        return False  # keys behind a sink do not begin with a page
    return tile.shared_bytes(workload.attention) <= workload.device.block_shared_memory


def _taken(workload: PagedWorkload, tile: Tile) -> int:
    return tile.shared_bytes(workload.attention) + _RESERVED


def _decode(attention: PagedAttention) -> tuple[DecodeTile, ...]:
    if attention.e4m3:
        return _DECODE_OF_E4M3
    return _DECODE_OF_MANY_HEADS if attention.group >= _MANY_HEADS else _DECODE


def _prefill(attention: PagedAttention) -> list[Tile]:
    """By warpgroups where there are some: products of warps reach a third of what an H200 can, 330 TFLOP/s."""
    tall = 2 if attention.depth <= _TWICE else 1
    by_warps = [PrefillTile(warps=4, tall=tall, keys=keys) for keys in ((64, 32) if tall == 2 else (32, 16))]
    return [*_WARPGROUPS, *by_warps]


def build(workload: PagedWorkload, tile: Tile) -> PrimFunc:
    """The function by ``tile``, scheduled."""
    made = with_kernel(workload.attention, tile, workload.device)
    return for_own_target(made, workload.target) if isinstance(tile, ByWarpgroups) else made
