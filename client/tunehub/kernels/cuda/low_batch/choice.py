"""Which tile serves a low-batch GEMM: the fastest on an H200 for as many rows and columns (docs/adr/0038)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.low_batch.shared_memory import fits
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.kernels.devices.device import GpuDevice

_ROWS = 8  # of x in an instruction
_FOUR = 4  # bits of a weight
_TILE_COLUMNS = 16
_MANY_COLUMNS = 1 << 14
_VOCABULARY = 1 << 16  # columns of products that give logits
_DEEP, _LONG_SLICE, _LEAST_SLICE = 1 << 13, 256, 64  # of K
_LONG_STAGES = 2
_ANY = 1 << 31  # blocks of each multiprocessor

_Row = TypeVar("_Row")
# Tiles, warps along columns and K, stages and depth, and 1 where x is held in registers, by the most rows, for columns
# of one wave, of two, more, and many; None: a tile without operands in shared memory is faster.
_Choices: TypeAlias = "dict[int, tuple[tuple[int, ...] | None, ...]]"
_STAGED: dict[int, _Choices] = {
    4: {
        1: ((2, 1, 8, 4, 128), *[(1, 1, 8, 2, 256)] * 2, (2, 1, 8, 2, 256)),
        4: ((2, 1, 8, 2, 128), *[(2, 1, 4, 2, 256)] * 3),
        8: ((2, 1, 8, 2, 128), (2, 1, 8, 1, 256), (2, 1, 8, 2, 128), (2, 2, 4, 2, 128)),
        16: ((2, 1, 8, 2, 128), *[(2, 2, 4, 2, 128)] * 3),
        32: ((2, 1, 8, 2, 128), (2, 2, 4, 2, 128), (2, 1, 4, 2, 128), (4, 2, 2, 2, 128)),
        64: ((2, 1, 4, 2, 128), (2, 2, 4, 2, 128), (2, 4, 2, 3, 128), (2, 4, 2, 3, 128)),
    },
    8: {
        8: ((2, 1, 8, 2, 128), (2, 1, 4, 2, 128), (2, 1, 4, 2, 128), (2, 1, 8, 2, 128)),
        16: (None,) * 4,
        32: ((2, 1, 8, 2, 128), (1, 2, 4, 2, 128), (1, 2, 4, 2, 128), None),
        64: ((1, 2, 4, 2, 128), *[(2, 2, 4, 2, 64)] * 3),
    },
    16: {32: (None,) * 4, 64: ((2, 2, 2, 4, 64),) * 4},
}
# Of 4 bits, where all blocks have a place at once with three tiles and not with two, by the most rows.
_OF_THREE: dict[int, tuple[int, ...]] = {1: (3, 1, 8, 4, 128), **dict.fromkeys((4, 8, 16), (3, 1, 8, 2, 128))}
# Of 4 bits likewise, from so many columns on; at 16,384 these are slower, in between nothing was measured.
_WIDE = 24 << 10
_OF_WIDE: dict[int, tuple[int, ...]] = {16: (3, 1, 4, 2, 128, 1)}
# Warpgroups, blocks of a cluster, stages and depth, how many blocks there have to be at least, and of each
# multiprocessor that clusters find at most, likewise; None: another tile is faster.
_Wgmma: TypeAlias = "tuple[int, int, int, int, int, int]"
_WGMMA: dict[int, dict[int, tuple[_Wgmma | None, ...]]] = {
    4: {
        16: (None,) * 4,
        32: (*[None] * 3, (4, 1, 3, 256, 100, 1)),
        64: (
            (2, 4, 4, 128, 80, 1),
            (4, 4, 4, 128, 64, 1),
            (4, 2, 4, 128, 1, _ANY),
            (2, 1, 3, 256, 1, _ANY),
        ),
    },
    8: {
        8: (None,) * 4,
        16: (*[None] * 3, (2, 1, 4, 128, 200, 2)),
        32: (None,) * 4,
        64: (
            (2, 4, 4, 128, 80, 1),
            (2, 2, 4, 128, 1, _ANY),
            (2, 1, 4, 128, 1, _ANY),
            (4, 2, 4, 128, 1, 2),
        ),
    },
}


def chosen(extents: LowBatchExtents, asked: int, device: GpuDevice, warpgroups: bool = False) -> AnyTile:
    """The tile for a product on ``device``, where a block can ask for ``asked`` bytes of shared memory; ``warpgroups``:
    the GPU and TVM have these. Quantised weights with scales in bfloat16 have one kernel."""
    if extents.weights.group and extents.weights.bfloat:
        return of_registers(extents, device)
    own = _of_e4m3(extents, device) if extents.weights.e4m3 else None
    if own is not None and fits(extents, own, asked):
        return own
    if warpgroups:
        wgmma = _wgmma(extents, device)
        if wgmma is not None and fits(extents, wgmma, asked):
            return wgmma
    staged = (*_of_columns(extents, device), *_staged(extents, device))
    return next((tile for tile in staged if fits(extents, tile, asked)), None) or of_registers(extents, device)


def _of_columns(extents: LowBatchExtents, device: GpuDevice) -> Iterator[StagedTile]:
    """The tile that was fastest for as many columns of weights of 4 bits."""
    rows = _most_rows(_STAGED[_FOUR], extents)
    if extents.weights.bits != _FOUR or rows is None or not lies_in_words(extents):
        return
    three = _wave(2, device) < extents.columns <= _wave(3, device) and extents.depth < _DEEP
    found = (_OF_THREE if three else _OF_WIDE if extents.columns >= _WIDE else {}).get(rows)
    if found is not None:
        yield _staged_tile(found)


def _staged(extents: LowBatchExtents, device: GpuDevice) -> Iterator[StagedTile]:
    """The tile with operands in shared memory, where it was faster than one without, and those with less at a time."""
    found = _found(_STAGED, extents, device)
    if found is not None:
        tile = _staged_tile(found)
        deep = extents.weights.bits == _FOUR and extents.rows <= _ROWS and extents.depth >= _DEEP
        yield from _from(replace(tile, depth=_LONG_SLICE, stages=_LONG_STAGES) if deep else tile)


def _of_e4m3(extents: LowBatchExtents, device: GpuDevice) -> DirectTile | StagedTile | None:
    """The tile that was fastest for Llama-3-8B's products with weights in e4m3; None where that is one of 8 bits."""
    one_wave, vocabulary = extents.columns <= _wave(2, device), extents.columns >= _VOCABULARY
    if extents.rows == 1:
        return _tile(1, 1, 16, 1, 2)
    if extents.rows <= 2 * _ROWS and one_wave:
        deep = extents.rows <= _ROWS and extents.depth >= _DEEP
        return _tile(1, 1, 16, 2, 1) if deep else _tile(1, 1, 16, 1, 2)
    if extents.rows <= 2 * _ROWS and vocabulary:
        return _tile(2, 1, 8, 1, 1)
    if extents.rows <= _ROWS:
        return _tile(1, 1, 8, 1, 2)
    few_columns = not one_wave and extents.columns < _MANY_COLUMNS
    if 2 * _ROWS < extents.rows <= 4 * _ROWS and few_columns:
        return _staged_tile((2, 2, 4, 2, 128))
    return None


def _staged_tile(choice: tuple[int, ...]) -> StagedTile:
    tiles, along, deep, stages, depth, *held = choice
    return StagedTile(tiles=tiles, warps=(along, deep), stages=stages, depth=depth, held=bool(held))


def _wgmma(extents: LowBatchExtents, device: GpuDevice) -> WgmmaTile | None:
    """The tile for warpgroups, where it was faster than one without."""
    found = _found(_WGMMA, extents, device)
    if found is None:
        return None
    groups, cluster, stages, depth, fewest, of_each = found
    most = of_each * device.found_by(cluster)
    tile = WgmmaTile(groups=groups, cluster=cluster, stages=stages, depth=depth)
    suits = fewest <= math.ceil(extents.columns / tile.together) * cluster <= most
    return tile if suits and (cluster == 1 or divides(extents, tile)) else None


def divides(extents: LowBatchExtents, tile: WgmmaTile) -> bool:
    """Whether all blocks of a cluster have columns and a part of K."""
    slices = math.ceil(extents.depth / tile.depth)
    each_has_some = (tile.cluster - 1) * math.ceil(slices / tile.cluster) < slices
    return extents.columns % tile.together == 0 and each_has_some


def _found(
    table: Mapping[int, Mapping[int, Sequence[_Row]]], extents: LowBatchExtents, device: GpuDevice
) -> _Row | None:
    """What ``table`` has by bits, rows and columns; None where it has nothing."""
    choices = table.get(extents.weights.bits, {})
    rows = _most_rows(choices, extents)
    place = sum(extents.columns > most for most in (_wave(2, device), 2 * _wave(2, device), _MANY_COLUMNS - 1))
    return choices[rows][place] if rows is not None and lies_in_words(extents) else None


def _wave(tiles: int, device: GpuDevice) -> int:
    """Columns of a block of so many tiles on each multiprocessor."""
    return tiles * _TILE_COLUMNS * device.multiprocessors


def _most_rows(choices: Iterable[int], extents: LowBatchExtents) -> int | None:
    """The fewest rows among ``choices`` that are enough."""
    return min((most for most in choices if extents.rows <= most), default=None)


def lies_in_words(extents: LowBatchExtents) -> bool:
    """Whether scales of each row start at whole words; else they are copied one by one."""
    return not extents.weights.group or extents.depth % (2 * extents.weights.group) == 0


def _from(tile: StagedTile) -> Iterator[StagedTile]:
    """``tile`` and those with less in shared memory at a time."""
    for depth in (tile.depth, tile.depth // 2, tile.depth // 4):
        for stages in range(tile.stages, 0, -1):
            if depth >= _LEAST_SLICE:
                yield replace(tile, depth=depth, stages=stages)


def of_registers(extents: LowBatchExtents, device: GpuDevice) -> DirectTile:
    """The tile without operands in shared memory."""
    one_wave, many = extents.columns <= _wave(2, device), extents.columns > _MANY_COLUMNS
    few = extents.rows <= _ROWS
    if extents.weights.bits == 16 and extents.rows <= 2 * _ROWS:
        return _tile(1, 1, 8, 4, 1) if few and one_wave else _tile(1, 1, 8, 2, 2)
    if extents.weights.bits == 16 and extents.rows <= 4 * _ROWS:
        return _tile(1, 2, 8, 2, 2) if one_wave else _tile(2, 1, 8, 1, 2)
    if extents.weights.bits == 4 and few and not many:
        return _tile(1, 1, 16, 1, 2) if one_wave else _tile(1, 1, 8, 1, 2)
    if extents.weights.bits == 8 and extents.rows <= 2 * _ROWS:
        return _tile(1, 1, 8, 2, 2) if one_wave else _tile(1, 2, 8, 1, 2) if many else _tile(1, 1, 8, 1, 2)
    if extents.rows <= 2 * _ROWS:
        return _tile(2, 1, 4, 1, 2) if many and not few else _tile(2, 1, 8, 1, 1)
    return _tile(2, 2, 4, 1, 1)


def _tile(tiles: int, along: int, deep: int, unroll: int, depth: int) -> DirectTile:
    return DirectTile(tiles=tiles, warps=(along, deep), unroll=unroll, depth=depth)


def seconds(extents: LowBatchExtents, device: GpuDevice) -> float:
    """What a product should take on ``device``: its weights come from memory once."""
    weights = extents.columns * extents.depth * extents.weights.bytes_of_weight
    return device.launches.low_batch + weights / device.bandwidth
