"""Convolutions of 3×3 by Winograd's algorithm (:mod:`tunehub.kernels.te.winograd`), float32 or integers in blocks.

The image's tiles are transformed, multiplied with the weights place by place, and transformed back with all that is
fused behind. Products have the register tile of other matmuls: ``rows`` tiles times ``blocks`` blocks of output
channels. A group of tiles goes through all three steps while its values are in the cache (``group``: its tiles down and
across the image); one thread does a group. Without groups each step is done for all tiles, and threads share each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from msgspec.structs import replace

from tunehub.kernels.cpu import register_tile
from tunehub.kernels.cpu.base import (
    FLOAT_BYTES,
    Block,
    Knobs,
    Machine,
    anchor_at,
    is_map,
    refusing,
    require,
    size_of,
    worth_threads,
)
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.dot_product import multiply_integers
from tunehub.kernels.cpu.fusion import Surroundings, finish_rest, inline
from tunehub.kernels.cpu.instruction import set_groups_apart
from tunehub.kernels.te.winograd import BORDER, DATA, PAIR, PRODUCT, RESULT, ROWS, SUMS
from tunehub.tir.schedules import open_schedule, unroll_and_vectorize

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, Schedule

IMAGES = "tunehub.images"
"""The annotation of loops that go over images outside of all else, in schedules without groups."""
_PAD = "pad_temp"
_STAYS = 10 << 20  # bytes of weights that the last cache keeps from one group to the next
_LITTLE = {1: 3 << 20, PAIR: 2 << 20}  # bytes between the steps that caches hold without groups, float32 and integers
_TOGETHER, _MOST_IMAGES = 8 << 20, 8  # bytes of several images between the steps
_LEAST = 7  # tiles of a group: weights come from the second or last cache for each group
_NEARLY = 1.1
_EVEN = 8  # groups a core from which on it does not matter that cores do not get as many
_MOST_ROWS, _MOST_BLOCKS = 30, 4
_MEASURED_TILES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class WinogradWorkload:
    """``tile``: results of a tile along each side. ``tiles``: down and across an image. ``inputs`` and ``outputs``:
    blocks of channels, and channels in one. ``pad``: the block that writes the image with what is around it, if any.
    ``group``: products of integers that one instruction adds up; 1 for float32."""

    batch: int
    tile: int
    tiles: tuple[int, int]
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    pad: str | None
    around: Surroundings
    group: int = 1

    @property
    def places(self) -> int:
        """Products of one tile and a pair of channels."""
        return (self.tile + 2) ** 2

    @property
    def rows(self) -> int:
        """The tiles of all images."""
        return self.batch * size_of(self.tiles)

    @property
    def held_bytes(self) -> int:
        """What all tiles hold between the steps."""
        inputs, outputs = self.channels
        return FLOAT_BYTES * self.places * self.rows * (inputs // self.group + outputs)

    def at_once(self, group: tuple[int, int]) -> tuple[int, int, int]:
        """The tiles that are multiplied together, of images, down and across; all without a ``group``."""
        return (1, *group) if any(group) else (self.batch, *self.tiles)

    @property
    def channels(self) -> tuple[int, int]:
        """Input and output channels."""
        return size_of(self.inputs), size_of(self.outputs)

    @property
    def flops(self) -> int:
        """Floating-point operations of the products."""
        return 2 * self.places * self.rows * size_of(self.channels)

    @property
    def weight_bytes(self) -> int:
        """The size of the transformed weights."""
        return FLOAT_BYTES // self.group * self.places * size_of(self.channels)


class WinogradKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``rows`` × ``blocks``: the register tile; ``rows`` divides the tiles of a group. ``group``: tiles down and across
    an image that one thread takes through all steps; both 0: all tiles step by step. ``parallel``: use the thread pool.
    """

    rows: Annotated[int, Meta(ge=1, le=32)]
    blocks: Annotated[int, Meta(ge=1, le=16)]
    down: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    across: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    parallel: bool = True


NAME, VERSION, KNOBS = "winograd", 1, WinogradKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> WinogradWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when it has no such convolution."""
    at, end = anchor_at(blocks, PRODUCT), anchor_at(blocks, RESULT)
    start = anchor_at(blocks, ROWS)
    if at is None or end is None or start is None or blocks[at].dtype not in ("float32", "int32"):
        return None
    before, after = blocks[:start], blocks[end + 1 :]
    if not all(map(is_map, (*before, *after))) or len(blocks[at].spatial) != 7:
        return None
    extent, _, outer, batch, down, across, lanes = blocks[at].spatial
    inner, words, *more = blocks[at].reduction
    group = size_of(tuple(more))
    names = [each.name for each in before]
    pad = next((name for name in (BORDER, _PAD) if name in names), None)
    aligned = next((i for i, each in enumerate(after) if not _keeps(blocks[end], each)), len(after))
    around = Surroundings(
        producers=tuple(name for name in names if name != pad),
        pad=pad,
        consumers=tuple(each.name for each in after[:aligned]),
        rest=tuple(each.name for each in after[aligned:]),
    )
    return WinogradWorkload(
        batch=batch,
        tile=extent - 2,
        tiles=(down, across),
        inputs=(inner, words * group),
        outputs=(outer, lanes),
        pad=pad,
        around=around,
        group=group,
    )


def knob_space(workload: WinogradWorkload, machine: Machine) -> list[WinogradKnobs]:
    """The choices worth measuring, the default's first."""
    first = default_knobs(workload, machine)
    found = {first: None}
    for group in [*_groups(workload), (0, 0)]:
        for rows, blocks in [*register_tiles(workload.at_once(group), workload.outputs, machine)][:_MEASURED_TILES]:
            found.setdefault(replace(first, rows=rows, blocks=blocks, down=group[0], across=group[1]))
    return list(found)


def default_knobs(workload: WinogradWorkload, machine: Machine) -> WinogradKnobs:
    """The choice of a cost model, without measuring."""
    parallel = worth_threads(workload.flops / workload.group, workload.weight_bytes, machine)
    down, across = _group(workload, machine, machine.cores if parallel else 1)
    rows, blocks = next(iter(register_tiles(workload.at_once((down, across)), workload.outputs, machine)))
    return WinogradKnobs(rows=rows, blocks=blocks, down=down, across=across, parallel=parallel)


def together(workload: WinogradWorkload, machine: Machine) -> tuple[int, WinogradKnobs] | None:
    """Of how many images, each as ``workload`` describes one, the tiles are best multiplied together, and by which
    knobs: step by step, with register tiles that are parts of one image. None where caches keep the weights from one
    image to the next, or little more of an image: then each image alone is as good."""
    images = min(_MOST_IMAGES, _TOGETHER // workload.held_bytes)
    if workload.weight_bytes <= _STAYS or images < 2:
        return None
    rows, blocks = next(iter(register_tiles((1, *workload.tiles), workload.outputs, machine)))
    parallel = worth_threads(workload.flops / workload.group, workload.weight_bytes, machine)
    return images, WinogradKnobs(rows=rows, blocks=blocks, parallel=parallel)


def register_tiles(
    tiles: tuple[int, int, int], outputs: tuple[int, int], machine: Machine
) -> dict[tuple[int, int], float]:
    """Rows and blocks of the register tiles for products of ``tiles`` (images, down, across), and what they cost as
    :func:`tunehub.kernels.cpu.register_tile.cost` counts it, the best first."""
    outer, lanes = outputs
    vectors = register_tile.vectors_of(lanes, machine)
    found = [
        (rows, blocks)
        for rows in divisors(size_of(tiles), _MOST_ROWS)
        for blocks in divisors(outer, _MOST_BLOCKS)
        if register_tile.fits(rows, blocks * vectors, machine, machine.accumulators) and _is_box(rows, tiles)
    ]
    costs = {choice: register_tile.cost((size_of(tiles), *choice), lanes, machine) for choice in found or [(1, 1)]}
    return dict(
        sorted(costs.items(), key=lambda item: (item[1], -item[0][0]))
    )  # of equal ones, that reads least weights


def _is_box(rows: int, tiles: tuple[int, int, int]) -> bool:
    """Whether so many tiles, one after the other, always are a part of a row, whole rows or whole images: what writes
    their sums writes the box around them."""
    _, down, across = tiles
    images = rows % (down * across) == 0
    return across % rows == 0 or images or (rows % across == 0 and down % (rows // across) == 0)


@refusing
def apply(mod: IRModule, workload: WinogradWorkload, knobs: WinogradKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    _check(workload, knobs)
    schedule = open_schedule(mod)
    around = workload.around
    for name in around.producers:
        inline(schedule, name)
    names = [RESULT, *around.consumers]
    for name in names[:-1]:
        inline(schedule, name)
    # From the last step to the first, each within the group of tiles of the one behind (Lavin and Gray 2016):
    # Step 3. Y = Aᵀ M A, and what is fused behind.
    group = _results(schedule, schedule.get_sblock(names[-1]), workload, knobs)
    # Step 2. M = U · V at each place of a tile: matmuls along input channels.
    _products(schedule, workload, knobs, group)
    # Step 1. V = Bᵀ d B.
    _tiles_of_image(schedule, knobs, group)
    if workload.pad is not None:
        _padded(schedule, schedule.get_sblock(workload.pad), knobs, group)
    finish_rest(schedule, around, parallel=knobs.parallel)
    return schedule


def _check(workload: WinogradWorkload, knobs: WinogradKnobs) -> None:
    group = (knobs.down, knobs.across)
    require(all(group) or not any(group), f"down, across: {group} is no group")
    whole = not any(group) or not any(a % b for a, b in zip(workload.tiles, group, strict=True))
    require(whole, f"down, across: {group} does not divide {workload.tiles}")
    tiles = workload.at_once(group)
    fits = size_of(tiles) % knobs.rows == 0 and _is_box(knobs.rows, tiles)
    require(fits, f"rows: {knobs.rows} does not divide tiles {tiles}")
    outer = workload.outputs[0]
    require(outer % knobs.blocks == 0, f"blocks: {knobs.blocks} does not divide {outer}")
    require(knobs.rows * knobs.blocks <= _MOST_ROWS, f"rows, blocks: more than {_MOST_ROWS} sums")


def _results(schedule: Schedule, last: BlockRV, workload: WinogradWorkload, knobs: WinogradKnobs) -> LoopRV | None:
    """Transform products back in the loops of the last block. Returns the loop over groups, if there are any."""
    n, outer, h, w, lanes = schedule.get_loops(last)
    y, i = schedule.split(h, [None, workload.tile])
    x, j = schedule.split(w, [None, workload.tile])
    group = None
    if knobs.down:
        group_y, y = schedule.split(y, [None, knobs.down])
        group_x, x = schedule.split(x, [None, knobs.across])
        schedule.reorder(n, group_y, group_x, outer, y, x, i, j, lanes)
        group = schedule.fuse(n, group_y, group_x)
    else:
        schedule.reorder(n, outer, y, x, i, j, lanes)
    sums = schedule.get_sblock(SUMS)
    schedule.compute_at(sums, x, preserve_unit_loops=True)
    unroll_and_vectorize(schedule, [j, lanes])
    *_, row, column, lanes = schedule.get_loops(sums)
    schedule.reorder(column, row)
    unroll_and_vectorize(schedule, [row, lanes])
    if group is None:
        _share(schedule, [n, outer, y], knobs, images=True)
    return group


def _products(schedule: Schedule, workload: WinogradWorkload, knobs: WinogradKnobs, group: LoopRV | None) -> None:
    block = schedule.get_sblock(PRODUCT)
    if group is not None:
        schedule.compute_at(block, group, preserve_unit_loops=True)
    sums = schedule.cache_write(block, 0, "global")
    if workload.group > 1:
        block = set_groups_apart(schedule, block, lanes=6 + (group is not None))
    i, j, outer, n, y, x, *rest = schedule.get_loops(block)[0 if group is None else 1 :]
    lanes = [] if workload.group > 1 else [rest.pop(0)]  # groups have theirs in a block of their own
    place, tiles, steps = schedule.fuse(i, j), schedule.fuse(n, y, x), schedule.fuse(*rest)
    outer, inner = schedule.split(outer, [None, knobs.blocks])
    at, rows = schedule.split(tiles, [None, knobs.rows])
    schedule.reorder(place, outer, at, steps, rows, inner, *lanes)
    schedule.reverse_compute_at(sums, at, preserve_unit_loops=True)
    *_, own_blocks, _, own_y, own_x, own_lanes = schedule.get_loops(sums)
    unroll_and_vectorize(schedule, [own_blocks, own_y, own_x, own_lanes])
    for loop in (rows, inner):
        schedule.unroll(loop)
    for lane in lanes:
        schedule.vectorize(lane)
    if group is None:
        schedule.annotate(at, IMAGES, 1)
        _share(schedule, [place, outer], knobs)
    elif knobs.parallel:
        schedule.parallel(group)
    begun = schedule.decompose_reduction(block, steps)
    if workload.group > 1:
        multiply_integers(schedule, block, workload.outputs[1], workload.group)
        (begun,) = schedule.get_child_blocks(begun)
    unroll_and_vectorize(schedule, schedule.get_loops(begun)[-3:])


def _tiles_of_image(schedule: Schedule, knobs: WinogradKnobs, group: LoopRV | None) -> None:
    data, in_rows = schedule.get_sblock(DATA), schedule.get_sblock(ROWS)
    if group is not None:
        schedule.compute_at(data, group, preserve_unit_loops=True)
    *_, i, j, n, y, x, outer, lanes = schedule.get_loops(data)
    schedule.reorder(n, y, x, outer, i, j, lanes)
    unroll_and_vectorize(schedule, [j, lanes])
    schedule.compute_at(in_rows, outer, preserve_unit_loops=True)
    *_, i, j, lanes = schedule.get_loops(in_rows)
    schedule.reorder(j, i)
    unroll_and_vectorize(schedule, [i, lanes])
    if group is None:
        _share(schedule, [n, y, x], knobs, images=True)


def _padded(schedule: Schedule, block: BlockRV, knobs: WinogradKnobs, group: LoopRV | None) -> None:
    if group is not None:
        schedule.compute_at(block, group, preserve_unit_loops=True)
    *outer, lanes = schedule.get_loops(block)
    schedule.vectorize(lanes)
    if group is None:
        _share(schedule, outer[:3], knobs, images=True)


def _share(schedule: Schedule, loops: list[LoopRV], knobs: WinogradKnobs, *, images: bool = False) -> None:
    """Give the iterations of ``loops`` to the threads. ``images``: the first goes over images."""
    fused = schedule.fuse(*loops)
    if images:
        schedule.annotate(fused, IMAGES, 1)
    if knobs.parallel:
        schedule.parallel(fused)


def _keeps(result: Block, after: Block) -> bool:
    return after.direct and after.spatial == result.spatial


def _groups(workload: WinogradWorkload) -> list[tuple[int, int]]:
    """Parts of a row of tiles, and several rows, from the smallest on."""
    down, across = workload.tiles
    parts = [(1, part) for part in divisors(across, across)]
    return [*parts, *((rows, across) for rows in divisors(down, down)[1:])]


def _group(workload: WinogradWorkload, machine: Machine, cores: int) -> tuple[int, int]:
    """The smallest group that is good for the products, if all tiles hold more than caches do, weights stay there, and
    cores get as many groups."""
    if workload.weight_bytes > _STAYS or workload.held_bytes <= _LITTLE[workload.group]:
        return (0, 0)

    def cycles(group: tuple[int, int]) -> float:
        return min(register_tiles(workload.at_once(group), workload.outputs, machine).values())

    for down, across in _groups(workload):
        count = workload.rows // (down * across)
        shared = count % cores == 0 or count >= _EVEN * cores
        if shared and down * across >= _LEAST and cycles((down, across)) <= _NEARLY * cycles((0, 0)):
            return (down, across)
    return (0, 0)
