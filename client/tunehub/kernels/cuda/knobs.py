"""Tiles of the rules for CUDA as knobs of records: what was measured to be the best of those that the rules find good.

The templates are ``cuda_tiles`` (:mod:`tunehub.kernels.cuda.gemm.tiles`), ``split_k``
(:mod:`tunehub.kernels.cuda.gemm.split_k.sketch`, of pieces),
``tensor_cores`` (:mod:`tunehub.kernels.cuda.gemm.tensor_core.sketch`), ``warpgroups`` and ``bulk_copies``
(:mod:`tunehub.kernels.cuda.gemm.hopper`, of sm_90 alone, the latter of known shapes), and knobs are the fields of a
tile. For a function with open axes the knob
``length`` goes with them: they are those of a piece of that length (:mod:`tunehub.kernels.cuda.symbolic.schedule`);
that of
``warpgroups`` is the shortest that its blocks divide. What a record says is held to the bounds that the rules have for
their own tiles; the checks of every schedule come on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from tunehub.kernels.cpu import CUDA_VERSIONS, KnobError, Knobs, NamedKnobs, read_knobs
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.kernels.cuda.gemm.hopper import bulk_tiles
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.open_rows import over_rows
from tunehub.kernels.cuda.gemm.hopper.rule import BULK, WARPGROUPS, ByWarpgroups
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile, suits, tiles
from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.gemm.rule import Tile, is_within, ranked
from tunehub.kernels.cuda.gemm.sizes import candidates
from tunehub.kernels.cuda.gemm.split_k import sketch as split_k
from tunehub.kernels.cuda.gemm.split_k.open_rows import DividedRows, divided_rows
from tunehub.kernels.cuda.gemm.split_k.rule import NAME as SPLIT_K
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile
from tunehub.kernels.cuda.gemm.tensor_core import sketch as tensor_core
from tunehub.kernels.cuda.gemm.tensor_core.cost import seconds
from tunehub.kernels.cuda.gemm.tensor_core.rule import NAME as TENSOR_CORES
from tunehub.kernels.cuda.gemm.tensor_core.rule import checked
from tunehub.kernels.cuda.gemm.tensor_core.rule import ranked as ranked_on_tensor_cores
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, matmul_of
from tunehub.kernels.cuda.gemm.tiles import NAME as CUDA_TILES
from tunehub.kernels.cuda.gemm.tiles import Sums, checked_tiles, sums_of
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.pieces import RowBlocks
from tunehub.kernels.cuda.symbolic.schedule import piece_problem
from tunehub.kernels.cuda.symbolic.tensor_cores import grid_of
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import check_tiles
from tunehub.tir.symbols import is_symbolic

_BEST, _FURTHER, _APART = 10, 40, 5  # tiles worth measuring: the best ones, and every fifth of those behind them
_MEASURED = 16  # choices of a function
_LENGTHS, _OF_LENGTH = (16, 32, 64, 128), 4  # of pieces on tensor cores, and how many tiles of each
_OF_SIZE = 2  # tiles for warpgroups of each size
_LENGTH, _MOST_LENGTH = "length", 1 << 16
_TILES: Mapping[str, type[SplitTile | TensorTile | ByWarpgroups]] = {
    SPLIT_K: SplitTile,
    TENSOR_CORES: TensorTile,
    WARPGROUPS: WarpgroupTile,
    BULK: BulkTile,
}
_NAMES: Mapping[type[Any], str] = {kind: name for name, kind in _TILES.items()}
T = TypeVar("T")


class TileKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of :class:`tunehub.kernels.cuda.gemm.rule.Tile`: a number for each loop."""

    virtual: tuple[Annotated[int, Meta(ge=1, le=64)], ...]
    threads: tuple[Annotated[int, Meta(ge=1, le=1024)], ...]
    inner: tuple[Annotated[int, Meta(ge=1, le=64)], ...]
    step: tuple[Annotated[int, Meta(ge=1, le=64)], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TileChoice:
    """The knobs of one of the templates, by name, as records and candidates have them."""

    template: str
    version: int
    knobs: Mapping[str, Any]


def by_knobs(mod: Any, target: Any, named: NamedKnobs) -> Any:
    """The schedule of ``mod``, an IRModule with one static PrimFunc ``main``, by a tile that a record names.

    Raises KnobError for a tile that is not within the rule's bounds for this function, GuardError for what would be
    wrong, and what TVM raises; the checks of every schedule are the caller's.
    """
    tile = read_tile(named)
    if isinstance(tile, TensorTile):
        return _on_tensor_cores(mod, tile)
    if isinstance(tile, ByWarpgroups):
        return _by_warpgroups(mod, tile, target)
    if isinstance(tile, SplitTile):
        return _divided(mod, tile)
    sums, limits = sums_of(mod), limits_of(target)
    if sums is None or sums.problem is None:
        raise KnobError(f"the template {CUDA_TILES} does not fit this function")
    if not is_within(sums.problem, tile, shared_memory=limits.shared_memory, threads=limits.threads):
        raise KnobError(f"{tile} is out of bounds for {sums.problem.spatial}")
    return checked_tiles(mod, sums, tile)


def by_open_knobs(function: Any, target: Any, named: NamedKnobs) -> Any:
    """``function``, a PrimFunc with open axes, in pieces by a tile that a record names. Raises as :func:`by_knobs`, and
    NotPiecesError."""
    length, whole = named.knobs.get(_LENGTH), open_function(function)
    if whole is None or not isinstance(length, int) or not 1 <= length <= _MOST_LENGTH:
        raise KnobError(f"pieces of {length} do not make up the function")
    tile = read_tile(named)
    if isinstance(tile, BulkTile):
        raise KnobError("kernels by the copy engine are of known shapes")
    if isinstance(tile, WarpgroupTile):
        return _open_by_warpgroups(whole, tile, length, target)
    scheduled = by_knobs(whole.piece(length), target, named).mod["main"]
    return whole.over(scheduled, length, _row_blocks(whole, tile, length))


def _row_blocks(whole: OpenFunction, tile: Tile | SplitTile | TensorTile, length: int) -> RowBlocks | None:
    """What the blocks of ``tile`` compute in pieces of the ``length`` that it divides; None for others."""
    product = open_matmul(whole, split_k.matmul_of) if isinstance(tile, SplitTile) else None
    if product is None or not isinstance(tile, SplitTile):
        return None
    found = DividedRows(product=product, tile=tile)
    return None if length % found.length else found.blocks


def read_tile(named: NamedKnobs) -> Tile | SplitTile | TensorTile | ByWarpgroups:
    """The tile that a record names. Raises KnobError for another template or version, and for fields of no tile."""
    if CUDA_VERSIONS.get(named.template) != named.version:
        raise KnobError(f"version {named.version} of the template {named.template} for CUDA is not known")
    fields = {name: value for name, value in named.knobs.items() if name != _LENGTH}
    if named.template == CUDA_TILES:
        knobs = read_knobs(TileKnobs, fields)
        return Tile(**msgspec.structs.asdict(knobs), expected_s=0.0)
    kind: type[SplitTile | TensorTile | ByWarpgroups] = _TILES[named.template]
    unknown = sorted(fields.keys() - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        raise KnobError(f"{unknown[0]} is no knob of {named.template}")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise KnobError(str(error)) from error


def knob_space(mod: Any, target: Any) -> list[TileChoice]:
    """The knobs worth measuring for ``mod``, the rule's first; none for a function that no tile serves, as attention,
    whose kernel has none. Those of functions with open axes are for pieces."""
    if is_symbolic(mod["main"]):
        whole = open_function(mod["main"])
        return [] if whole is None else _open_space(whole, target)
    if attention_of(mod["main"]) is not None:
        return []
    matmul = matmul_of(mod)
    if matmul is not None:
        return _half_space(matmul, target)
    sums = sums_of(mod)
    return [] if sums is None else [_tile_choice(tile) for tile in _spread(_ranked(sums, target))]


def _half_space(matmul: Matmul, target: Any) -> list[TileChoice]:
    """On tensor cores, and as many by warpgroups where the GPU has them; those first that should take less."""
    plain = [_tensor_choice(tile) for tile in _spread(ranked_on_tensor_cores(matmul, _FURTHER))]
    own_s = warpgroups.expected_s(matmul, target)
    if own_s is None:
        return plain
    own = [_choice(_NAMES[type(tile)], tile, None) for tile in _likely_by_warpgroups(matmul, len(plain) // 2)]
    best = next(iter(ranked_on_tensor_cores(matmul, 1)), None)
    plain = plain[: _MEASURED - len(own)]
    return own + plain if best is None or own_s < seconds(matmul, best) else plain + own


def _likely_by_warpgroups(matmul: Matmul, count: int) -> list[ByWarpgroups]:
    """The rule's tile, and then as many of both kinds."""
    bulk = warpgroups.bulk_ranked(matmul, count)
    both = zip_longest(bulk, warpgroups.ranked(matmul, count))
    found = [warpgroups.best(matmul)[0][1], *(tile for pair in both for tile in pair if tile is not None)]
    return list(dict.fromkeys(found))[:count]


def _open_space(whole: OpenFunction, target: Any) -> list[TileChoice]:
    """For each size the best tile, as a kernel for all sizes."""
    product = _open_product(whole, target)
    if product is not None:
        return [_choice(WARPGROUPS, tile, {_LENGTH: product.length(tile.block[0])}) for tile in _of_sizes(product)]
    found = piece_problem(whole)
    loop = None if found is None else found[0].open_loop
    if found is not None and loop is not None:
        tiles = candidates(found[0], limits_of(target), covering=found[1].einsum)
        plain = [_tile_choice(tile, {_LENGTH: tile.lengths[loop]}) for tile in tiles]
        own = divided_rows(whole, found[0].grid.tried)
        return [*plain, *(_choice(SPLIT_K, each.tile, {_LENGTH: each.length}) for each in own)]
    matmuls = ((length, matmul_of(whole.piece(length))) for length in _LENGTHS)
    return [
        _tensor_choice(tile, {_LENGTH: length})
        for length, matmul in matmuls
        if matmul is not None
        for tile in ranked_on_tensor_cores(matmul, _OF_LENGTH)
    ]


def _open_product(whole: OpenFunction, target: Any) -> OpenMatmul | None:
    """The product that warpgroups serve at all sizes, if it is one."""
    product = open_matmul(whole, warpgroups.matmul_in) if warpgroups.serves(target) else None
    return product if product is not None and suits(product.two) else None


def _of_sizes(product: OpenMatmul) -> list[WarpgroupTile]:
    """Of each size the tile that should take least, then of each the next one."""
    by_size = [warpgroups.ranked(product.at(size), _OF_SIZE) for size in grid_of(product).sizes]
    return list(dict.fromkeys(tile for place in zip_longest(*by_size) for tile in place if tile is not None))[
        :_MEASURED
    ]


def _ranked(sums: Sums, target: Any) -> list[Tile]:
    if sums.problem is None:
        return []
    limits = limits_of(target)
    found = [
        tile
        for covering in ((False, True) if sums.einsum else (False,))
        for tile in ranked(
            sums.problem,
            shared_memory=limits.shared_memory,
            threads=limits.threads,
            count=_FURTHER,
            covering=covering,
        )
    ]
    by_loops = {(tile.virtual, tile.threads, tile.inner, tile.step): tile for tile in found}
    return sorted(by_loops.values(), key=lambda tile: tile.expected_s)[:_FURTHER]


def _spread(tiles: Sequence[T]) -> list[T]:
    """The best of ``tiles``, and some behind them: neighbours are alike."""
    return [*tiles[:_BEST], *tiles[_BEST::_APART]]


def _on_tensor_cores(mod: Any, tile: TensorTile) -> Any:
    matmul = matmul_of(mod)
    if matmul is None or not tensor_core.is_among(matmul, tile):
        raise KnobError(f"{tile} is none of the tiles of this function on tensor cores")
    return checked(mod, matmul, tile)


def _divided(mod: Any, tile: SplitTile) -> Any:
    matmul = split_k.matmul_of(mod)
    if matmul is None or not split_k.is_among(matmul, tile):
        raise KnobError(f"{tile} is none of the tiles of this function with divided sums")
    schedule = split_k.apply(mod, matmul, tile)
    check_tiles(schedule.mod["main"])
    return schedule


def _by_warpgroups(mod: Any, tile: ByWarpgroups, target: Any) -> Any:
    if not warpgroups.serves(target):
        raise KnobError("kernels for warpgroups need a GPU of sm_90, and TVM 0.27 or newer")
    matmul = matmul_of(mod)
    if matmul is None or tile not in _tiles_by_warpgroups(matmul, type(tile)):
        raise KnobError(f"{tile} is none of the tiles of this function for the warpgroups of this GPU")
    try:
        return warpgroups.by_tile(mod, matmul, tile, target)
    except ValueError as error:
        raise KnobError(str(error)) from error


def _tiles_by_warpgroups(matmul: Matmul, kind: type[ByWarpgroups]) -> Set[ByWarpgroups]:
    if kind is BulkTile:
        return set(bulk_tiles.tiles(matmul)) if bulk_tiles.suits(matmul) else set()
    return set(tiles(matmul)) if suits(matmul) else set()


def _open_by_warpgroups(whole: OpenFunction, tile: WarpgroupTile, length: int, target: Any) -> Any:
    product = _open_product(whole, target)
    if product is None:
        raise KnobError("kernels for warpgroups do not fit this function, GPU or TVM")
    known = (tiles(product.at(size)) for size in (*grid_of(product).sizes, length))
    if length != product.length(tile.block[0]) or not any(tile in each for each in known):
        raise KnobError(f"{tile} is none of the tiles of this function for warpgroups, in pieces of {length}")
    return warpgroups.for_own_target(over_rows(whole, tile), target)


def _tile_choice(tile: Tile, more: Mapping[str, int] | None = None) -> TileChoice:
    knobs = TileKnobs(virtual=tile.virtual, threads=tile.threads, inner=tile.inner, step=tile.step)
    return _choice(CUDA_TILES, knobs, more)


def _tensor_choice(tile: TensorTile, more: Mapping[str, int] | None = None) -> TileChoice:
    return _choice(TENSOR_CORES, tile, more)


def _choice(template: str, tile: Any, more: Mapping[str, int] | None) -> TileChoice:
    knobs = msgspec.json.decode(msgspec.json.encode(tile))  # lists, as a record that was read has them
    return TileChoice(template=template, version=CUDA_VERSIONS[template], knobs={**knobs, **(more or {})})
