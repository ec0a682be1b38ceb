"""Tiles of the rules for CUDA as knobs of records: what was measured to be the best of those that the rules find good.

Knobs are the fields of a tile, templates those that :class:`tunehub.kernels.cuda.kernel_rule.RecordedRule` names. For a
function with open axes the knob ``length`` goes with them: they are those of a piece of that length
(:mod:`tunehub.kernels.cuda.symbolic.schedule`); that of ``warpgroups`` is the shortest that its blocks divide. What a
record says is held to the bounds that the rules have for their own tiles; the checks of every schedule come on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tunehub.kernels.cpu import KnobError, NamedKnobs
from tunehub.kernels.cuda import rules
from tunehub.kernels.cuda.gemm.hopper import bulk_tiles
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.open_rows import over_rows
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile, suits, tiles
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.gemm.sizes import candidates
from tunehub.kernels.cuda.gemm.split_k import rule as split_k
from tunehub.kernels.cuda.gemm.split_k.open_rows import row_blocks, split_k_rows
from tunehub.kernels.cuda.gemm.tensor_core import rule as tensor_core
from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
from tunehub.kernels.cuda.gemm.tiles import NAME as CUDA_TILES
from tunehub.kernels.cuda.kernel_rule import KernelCandidate, RecordedRule
from tunehub.kernels.cuda.low_batch.open_rows import few_rows
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.symbolic.schedule import piece_problem
from tunehub.kernels.cuda.symbolic.tensor_cores import grid_of
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.branches import SizeBranch, joined
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.symbols import is_symbolic
from tunehub.tir.views import product as extent_of
from tunehub.tir.views import wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc, ScheduledModule

_MEASURED = 16  # choices of a function
_LENGTHS, _OF_LENGTH = (16, 32, 64, 128), 4  # of pieces on tensor cores, and how many tiles of each
_OF_SIZE = 2  # tiles for warpgroups of each size
_MANY = 64  # rows; for fewer the rule has kernels without knobs
_LENGTH, _MOST_LENGTH = "length", 1 << 16
_IN_PIECES = {CUDA_TILES, tensor_core.NAME, split_k.NAME}  # templates whose schedule of a piece serves any number

_AnyTile = TypeVar("_AnyTile", WarpgroupTile, BulkTile)


@dataclass(frozen=True, kw_only=True, slots=True)
class TileChoice:
    """The knobs of one of the templates, by name, as records and candidates have them."""

    template: str
    version: int
    knobs: Mapping[str, Any]


def by_knobs(mod: IRModule, target: Target, named: NamedKnobs) -> ScheduledModule:
    """The schedule of ``mod``, an IRModule with one static PrimFunc ``main``, by a tile that a record names.

    Raises KnobError for a tile that is not within the rule's bounds for this function, GuardError for what would be
    wrong, and what TVM raises; the checks of every schedule are the caller's.
    """
    tile, rule = read_tile(named), _rule_of(named.template)
    assert rule is not None
    workload = rule.match(mod, target)
    if workload is None:
        raise KnobError(f"the template {named.template} does not fit this function, this GPU or this TVM")
    if not rule.takes(workload, tile):
        raise KnobError(f"{tile} is none of the tiles of {named.template} for this function")
    return rule.build(workload, tile)


def by_open_knobs(function: PrimFunc, target: Target, named: NamedKnobs) -> PrimFunc:
    """``function``, a PrimFunc with open axes, in pieces by a tile that a record names. Raises as :func:`by_knobs`, and
    NotPiecesError."""
    length, whole = named.knobs.get(_LENGTH), open_function(function)
    if whole is None or not isinstance(length, int) or not 1 <= length <= _MOST_LENGTH:
        raise KnobError(f"pieces of {length} do not make up the function")
    tile = read_tile(named)
    if named.template == warpgroups.WARPGROUPS:
        return _open_by_warpgroups(whole, tile, length, target)
    if named.template == warpgroups.BULK:
        return _open_by_copy_engine(whole, tile, length, target)
    if named.template not in _IN_PIECES:
        raise KnobError(f"kernels of the template {named.template} are of known shapes")
    scheduled = by_knobs(whole.piece(length), target, named).mod["main"]
    return whole.over(
        scheduled,
        length,
        row_blocks(whole, tile, length, device_of(target)) if named.template == split_k.NAME else None,
    )


def read_tile(named: NamedKnobs) -> Any:
    """The tile that a record names. Raises KnobError for another template or version, and for fields of no tile."""
    rule = _rule_of(named.template)
    if rule is None or named.version != rule.VERSION:
        raise KnobError(f"version {named.version} of the template {named.template} for CUDA is not known")
    kind = rule.TEMPLATES[named.template]
    fields = {name: value for name, value in named.knobs.items() if name != _LENGTH}
    unknown = sorted(fields.keys() - {*_knobs_of(kind)})
    if unknown:
        raise KnobError(f"{unknown[0]} is no knob of {named.template}")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise KnobError(str(error)) from error


def knob_space(mod: IRModule, target: Target) -> list[TileChoice]:
    """The knobs worth measuring for ``mod``, the rules' first; none for a function that no tile serves, as attention,
    whose kernel has none. Those of functions with open axes are for pieces."""
    if is_symbolic(mod["main"]):
        whole = open_function(mod["main"])
        return [] if whole is None else _open_space(whole, target)
    spaces = sorted(filter(None, _spaces(mod, target)), key=lambda space: space[0].seconds or 0.0)
    spaces = [space for space in spaces if space[0].place_s == 0.0] or spaces  # which others do not come close to
    share = _MEASURED // max(1, len(spaces))
    return [_choice(each.tile) for space in spaces for each in space[:share]]


def _spaces(mod: IRModule, target: Target) -> Iterator[list[KernelCandidate]]:
    """What each rule would have measured."""
    for rule in rules.RULES:
        workload = rule.match(mod, target)
        if workload is None:
            continue
        if isinstance(rule, RecordedRule):
            yield list(rule.space(workload, device_of(target)))
        if rule.ALONE:
            return


def knobs_of_tile(tile: object) -> dict[str, Any]:
    """The fields of a tile of any rule that say what it is, as JSON has them; none of what is no dataclass."""
    own = {name: getattr(tile, name) for name in _knobs_of(type(tile))} if dataclasses.is_dataclass(tile) else {}
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(own, enc_hook=repr))  # lists, as records have them
    return found


def choice_of_tile(tile: object) -> TileChoice | None:
    """A tile as records have it; None of a rule whose tiles no record can hold."""
    known = any(kind is type(tile) for rule in _recorded() for kind in rule.TEMPLATES.values())
    return _choice(tile) if known else None


def _rule_of(template: str) -> RecordedRule | None:
    return next((rule for rule in _recorded() if template in rule.TEMPLATES), None)


def _recorded() -> Iterator[RecordedRule]:
    return (rule for rule in rules.RULES if isinstance(rule, RecordedRule))


def _open_space(whole: OpenFunction, target: Target) -> list[TileChoice]:
    """For each size the best tile, as a kernel for all sizes."""
    product, device = _open_product(whole, target), device_of(target)
    if product is not None:
        bulk = _bulk_of_sizes(product, device) if whole.axes.are_one else []
        kinds = zip_longest(bulk, _of_sizes(product, device))
        both = [tile for pair in kinds for tile in pair if tile is not None]
        return [_choice(tile, product.length(tile.block[0])) for tile in both[:_MEASURED]]
    found = piece_problem(whole)
    loop = None if found is None else found[0].open_loop
    if found is not None and loop is not None:
        plain = candidates(found[0], limits_of(target), device, covering=found[1].einsum)
        own = split_k_rows(whole, found[0].grid.tried, device)
        return [
            *(_choice(tile, tile.lengths[loop]) for tile in plain),
            *(_choice(each.tile, each.length) for each in own),
        ]
    matmuls = ((length, matmul_of(whole.piece(length))) for length in _LENGTHS)
    return [
        _choice(tile, length)
        for length, matmul in matmuls
        if matmul is not None
        for tile in tensor_core.ranked(matmul, _OF_LENGTH, device)
    ]


def _open_product(whole: OpenFunction, target: Target) -> OpenMatmul | None:
    """The product that warpgroups serve at all sizes, if it is one."""
    product = open_matmul(whole, warpgroups.matmul_in) if warpgroups.serves(target) else None
    return product if product is not None and suits(product.two) else None


def _of_sizes(product: OpenMatmul, device: GpuDevice) -> list[WarpgroupTile]:
    """Of each size the tile that should take least, then of each the next one."""
    return _in_turns(warpgroups.ranked(product.at(size), _OF_SIZE, device) for size in grid_of(product).sizes)


def _bulk_of_sizes(product: OpenMatmul, device: GpuDevice) -> list[BulkTile]:
    """As :func:`_of_sizes`, of kernels with TMA loads."""
    sizes = [size for size in grid_of(product).sizes if size >= _MANY]
    return _in_turns(warpgroups.bulk_ranked(product.at(size), _OF_SIZE, device) for size in sizes)


def _in_turns(by_size: Iterable[Sequence[_AnyTile]]) -> list[_AnyTile]:
    return list(dict.fromkeys(tile for place in zip_longest(*by_size) for tile in place if tile is not None))


def _open_by_warpgroups(whole: OpenFunction, tile: WarpgroupTile, length: int, target: Target) -> PrimFunc:
    product = _open_product(whole, target)
    if product is None:
        raise KnobError("kernels for warpgroups do not fit this function, GPU or TVM")
    known = (tiles(product.at(size)) for size in (*grid_of(product).sizes, length))
    if length != product.length(tile.block[0]) or not any(tile in each for each in known):
        raise KnobError(f"{tile} is none of the tiles of this function for warpgroups, in pieces of {length}")
    return warpgroups.for_own_target(over_rows(whole, tile), target)


def _open_by_copy_engine(whole: OpenFunction, tile: BulkTile, length: int, target: Target) -> PrimFunc:
    """By ``tile`` as far as its places are numbers of 32 bits. Beyond that serves the kernel that the fewest rows have:
    it is run with these when it is verified, where others would be checked and not run."""
    from tunehub.kernels.cuda.gemm.hopper.open_bulk import most_length, over_all_rows  # needs TVM 0.25

    product, device = _open_product(whole, target), device_of(target)
    if product is None or not whole.axes.are_one:
        raise KnobError("kernels with TMA loads do not fit this function, GPU or TVM")
    sizes = grid_of(product).sizes
    matmuls = [each for size in sizes if bulk_tiles.suits(each := product.at(size))]
    known = any(tile in set(bulk_tiles.tiles(matmul, device)) for matmul in matmuls)
    if length != product.length(tile.block[0]) or not known:
        raise KnobError(f"{tile} is none of the tiles of this function with TMA loads, in pieces of {length}")
    few = few_rows(whole, target, 1)
    beyond = few[0].function if few else over_rows(whole, warpgroups.ranked(product.at(sizes[-1]), 1, device)[0])
    branches = [
        *few,
        SizeBranch(up_to=most_length(whole), function=over_all_rows(whole, tile, device)),
        SizeBranch(up_to=None, function=beyond),
    ]
    size = extent_of(wide(whole.axes.extents))
    return warpgroups.for_own_target(joined(whole.function, size, branches), target)


def _choice(tile: object, length: int | None = None) -> TileChoice:
    kinds = ((rule, *each) for rule in _recorded() for each in rule.TEMPLATES.items())
    rule, template, _ = next(each for each in kinds if each[-1] is type(tile))
    knobs = knobs_of_tile(tile)
    return TileChoice(
        template=template, version=rule.VERSION, knobs=knobs if length is None else {**knobs, _LENGTH: length}
    )


def _knobs_of(kind: type) -> Iterator[str]:
    """The fields of a tile that records have."""
    return (field.name for field in dataclasses.fields(kind) if field.metadata.get("is_knob", True))
