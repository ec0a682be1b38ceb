"""Attention as one kernel without a record: the tile that should take least."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.attention.kernel import AttentionTile
from tunehub.kernels.cuda.attention.kernels import kernel_of
from tunehub.kernels.cuda.attention.shared_heads import heads_of_a_key, with_heads_as_queries
from tunehub.kernels.cuda.attention.spec import Attention, attention_of
from tunehub.kernels.cuda.gemm.hopper.rule import for_own_target
from tunehub.kernels.cuda.gemm.hopper.rule import serves as has_warpgroups
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.known import device_of
from tunehub.tir.branches import SizeBranch, joined, size_of
from tunehub.tir.guard import GuardError, check_function
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import instance, symbols_of

if TYPE_CHECKING:
    from tunehub.kernels.devices.device import GpuDevice
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

NAME, VERSION, ALONE = "attention", 1, True
_FIRST_ARCHITECTURE = 80  # with copies that are not waited for, and products of 16 × 8 × 16
_SHORT = 256  # keys that a block takes at once
_FEW = 256  # queries of all matrices of a batch, for which blocks are small
_PART = 64  # of which depths are multiples for warpgroups
_WIDE = 128  # depth and outputs together, up to which warpgroups take 128 keys at a time
_ENOUGH = 80  # blocks of 128 queries, from which another warpgroup copies keys for two that share them
_FULL = 0.9  # of what blocks and multiprocessors could compute at once is asked for
_MANY, _NEARLY_FULL = 16, 0.85  # blocks of each multiprocessor, of heads of 64; measured with 21 and more, and 0.89
_LONGEST = 2048  # keys of these that were measured
_TWO_WARPGROUPS = 1024  # queries up to which two take less than three
_VERY_LONG = 2000  # queries and keys; twice as many with a causal mask
# Warps along queries and keys, keys of a warp, from many queries to large depths.
_ANY_HALVES = ((4, 1, 64), (4, 1, 32), (4, 1, 16))
_ANY_SINGLES = ((4, 1, 32), (2, 2, 32), (2, 1, 32), (2, 1, 16), (1, 1, 16))


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """``mod``: with the kernel as ``main``."""

    mod: IRModule


def serves(target: Target) -> bool:
    """Whether kernels can be made for ``target`` by the TVM that is installed: since 0.27 it takes functions of CUDA
    C++."""
    arch = str(target.attrs.get("arch", "")).removeprefix("sm_").rstrip("af")
    newest = find_spec("tvm.backend") is not None and find_spec("tvm.backend.cuda.ptx") is not None
    return newest and target.kind.name == "cuda" and arch.isdigit() and int(arch) >= _FIRST_ARCHITECTURE


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWorkload:
    """``attention`` for ``target``, one query of heads with keys in common together; ``likeliest``: the tile of these,
    before all others."""

    attention: Attention
    likeliest: tuple[AttentionTile, ...]
    target: Target


def match(mod: IRModule, target: Target) -> AttentionWorkload | None:
    """Attention as :mod:`tunehub.kernels.cuda.attention.function` makes it."""
    attention = attention_of(mod["main"])
    if attention is None:
        return None
    together, *likeliest = _one_query(attention, target) or (attention,)
    return AttentionWorkload(attention=together, likeliest=tuple(likeliest), target=target)


def candidates(workload: AttentionWorkload, _device: GpuDevice) -> Iterator[KernelCandidate]:
    """All tiles that may be launched, without seconds: which is the best was measured, what it takes has no cost."""
    likely = chain(workload.likeliest, tiles(workload.attention, workload.target))
    return (KernelCandidate(tile=tile, seconds=None) for tile in likely)


def build(workload: AttentionWorkload, tile: AttentionTile) -> AttentionSchedule:
    """The kernel by ``tile``."""
    kernel = kernel_of(workload.attention, tile, device_of(workload.target).multiprocessors)
    return AttentionSchedule(main_module(for_own_target(kernel, workload.target) if tile.warpgroups else kernel))


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> AttentionSchedule | None:
    """A kernel for few queries and one for many. Raises GuardError when no tile can be launched, or for what would be
    wrong."""
    function = mod["main"]
    attention = attention_of(function)
    if attention is None:
        return None
    few, many = (_first(attention, order, target) for order in _open_tiles(attention, target))
    branches = [SizeBranch(up_to=_FEW, function=few), SizeBranch(up_to=None, function=many)]
    return AttentionSchedule(main_module(_own(joined(function, size_of(function), branches), many)))


def _own(function: PrimFunc, other: PrimFunc) -> PrimFunc:
    """``function`` for the target that ``other`` names, if any."""
    target = (other.attrs or {}).get("target")
    return function if target is None else function.with_attr("target", target)


def _first(attention: Attention, order: Iterable[AttentionTile], target: Target) -> PrimFunc:
    """The kernel by the first tile that does."""
    failure: Exception = GuardError("no tile")
    for tile in order:
        try:
            kernel = kernel_of(attention, tile, device_of(target).multiprocessors)
            _check(kernel, attention.function, tile, target)
        except GuardError as error:  # of too much shared memory, say; another tile may do
            failure = error
        else:
            return for_own_target(kernel, target) if tile.warpgroups else kernel
    raise failure


def _check(kernel: PrimFunc, function: PrimFunc, tile: AttentionTile, target: Target) -> None:
    check_function(kernel, function, target)
    symbols = symbols_of(function)
    if symbols:  # shared memory is all in use only when tiles of keys follow each other
        many = [4 * tile.step + 1] * len(symbols)
        check_function(instance(kernel, many), instance(function, many), target)


def tiles(attention: Attention, target: Target) -> Iterator[AttentionTile]:
    """Tiles for known extents, the best first, as far as measured: see docs/adr/0036-attention-on-cuda.md."""
    if attention.rounded is not None:
        yield from (AttentionTile(warps=(rows, 1), rows=1, keys=-(-attention.keys // 16) * 16) for rows in (4, 2, 1))
        return
    heads = math.prod(attention.lead)
    most = heads * -(-attention.queries // 16)  # blocks
    multiprocessors = device_of(target).multiprocessors
    if _suits_warpgroups(attention, target) and most > multiprocessors:
        own = _of_warpgroups(attention, heads, multiprocessors)
        if _by_bulk_copies(attention, own, heads, multiprocessors):
            yield replace(_narrow_by_bulk_copies(attention) if _is_narrow(attention) else own, bulk=True)
        yield own
    fewest = heads * -(-attention.queries // 64)
    shape = _for_singles if attention.dtype == "float32" else _for_halves
    yield from _made([shape(attention, fewest, most, multiprocessors), *_any(attention)])


def _one_query(attention: Attention, target: Target) -> tuple[Attention, AttentionTile] | None:
    """One query of each head by many keys in half precision: as many blocks of a cluster share them as the GPU has
    room for, and heads that have keys in common are together."""
    many = attention.queries == 1 and attention.keys > _SHORT
    if not many or attention.dtype == "float32" or not has_warpgroups(target):
        return None
    heads = heads_of_a_key(attention)
    together = with_heads_as_queries(attention, heads) if heads > 1 else attention
    blocks = math.prod(together.lead)
    room = 3 * device_of(target).multiprocessors // 2
    cluster = next(count for count in (8, 4, 2, 1) if blocks * count <= room or count == 1)
    return together, AttentionTile(warps=(1, 4), rows=1, keys=32, cluster=cluster)


def _suits_warpgroups(attention: Attention, target: Target) -> bool:
    wide = all(size in (_PART, 2 * _PART) for size in (attention.depth, attention.outputs))
    return wide and attention.dtype != "float32" and has_warpgroups(target)


def _of_warpgroups(attention: Attention, heads: int, multiprocessors: int) -> AttentionTile:
    """Few blocks: each divides its keys. Wide heads and many blocks: two warpgroups have keys in common, which a third
    one copies."""
    blocks, longest = (heads * -(-attention.queries // rows) for rows in (64, 128))
    short = attention.causal is not None or attention.keys <= _SHORT
    if blocks <= multiprocessors * (2 if short else 1):
        return _warpgroups(4, 2, 64)
    if _is_narrow(attention):
        together = _are_full(attention, heads, 192, multiprocessors)
        long = min(attention.queries, attention.keys) > _VERY_LONG * (1 if attention.causal is None else 2)
        return _warpgroups(12, 1, 128, copying=True) if long and together else _warpgroups(4, 1, 128)
    enough = multiprocessors if attention.causal is not None else _ENOUGH
    together = longest > enough and _are_full(attention, heads, 128, 1)
    return _warpgroups(8, 1, 128, copying=True) if together else _warpgroups(4, 1, 64)


def _by_bulk_copies(attention: Attention, own: AttentionTile, heads: int, multiprocessors: int) -> bool:
    """Whether the copy engine brings keys: for wide heads with a tile of its ``own`` that copies, for heads of 64 in
    large batches, in which blocks follow each other on a multiprocessor; with a mask in pairs."""
    if not _is_narrow(attention):
        return own.copying
    rows = _narrow_by_bulk_copies(attention).queries
    blocks = heads * math.ceil(attention.queries / rows)
    in_pairs = attention.causal is None or math.ceil(attention.queries / rows) % 2 == 0
    many = _SHORT < attention.keys <= _LONGEST and blocks >= _MANY * multiprocessors
    return bool(many and in_pairs and attention.queries * heads >= _NEARLY_FULL * rows * blocks)


def _narrow_by_bulk_copies(attention: Attention) -> AttentionTile:
    """Of heads of 64: three warpgroups for long sequences without a mask."""
    long = attention.causal is None and attention.queries > _TWO_WARPGROUPS
    return _warpgroups(12 if long else 8, 1, 128, copying=True)


def _is_narrow(attention: Attention) -> bool:
    return attention.depth + attention.outputs <= _WIDE


def _are_full(attention: Attention, heads: int, rows: int, at_once: int) -> bool:
    """Whether blocks of ``rows`` queries, as many ``at_once``, have hardly any places without a query."""
    blocks = heads * math.ceil(attention.queries / rows)
    return bool(heads * attention.queries >= _FULL * rows * math.ceil(blocks / at_once) * at_once)


def _warpgroups(rows: int, along: int, keys: int, *, copying: bool = False) -> AttentionTile:
    return AttentionTile(warps=(rows, along), rows=1, keys=keys, warpgroups=True, copying=copying)


def _any(attention: Attention) -> tuple[tuple[int, int, int], ...]:
    return _ANY_SINGLES if attention.dtype == "float32" else _ANY_HALVES


def _for_halves(attention: Attention, fewest: int, most: int, multiprocessors: int) -> tuple[int, int, int]:
    if fewest >= multiprocessors * (1 if attention.causal is None else 2):
        return (4, 1, 64)
    if attention.keys > _SHORT:
        return (4, 2, 64)
    return (1, 4, 32) if most <= multiprocessors else (2, 2, 64)


def _for_singles(attention: Attention, fewest: int, most: int, multiprocessors: int) -> tuple[int, int, int]:
    if fewest >= 2 * multiprocessors:
        return (4, 1, 32)
    if attention.keys > _SHORT:
        return (4, 2, 32) if attention.causal is None else (2, 2, 32)
    return (1, 4, 16) if most <= multiprocessors else (2, 4, 32)


def _open_tiles(attention: Attention, target: Target) -> tuple[Iterator[AttentionTile], Iterator[AttentionTile]]:
    """Tiles for few and for many queries of an unknown number."""
    rest = _any(attention)
    own = (_warpgroups(4, 1, 128 if attention.depth + attention.outputs <= _WIDE else 64),)
    many = own if _suits_warpgroups(attention, target) else ()
    return _made([(2, 4, 32), *rest]), chain(many, _made(rest))


def _made(shapes: Iterable[tuple[int, int, int]]) -> Iterator[AttentionTile]:
    for rows, along, keys in dict.fromkeys(shapes):
        yield AttentionTile(warps=(rows, along), rows=1, keys=keys)
