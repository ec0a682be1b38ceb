"""Convolutions in blocked layouts (`tunehub_conv2d` of :mod:`tunehub.kernels.te.blocked`): direct, register-tiled.

Those of integers (`tunehub_conv2d_int8`) have the same structure with :mod:`tunehub.kernels.cpu.dot_product` in place
of multiply-adds, each step taking the products of a group.

The structure is that of AutoTVM's x86 templates (``topi/x86/conv2d_avx_common.py`` and ``conv2d_avx_1x1.py``; Liu et
al. 2019, "Optimizing CNN Model Inference on CPUs", arXiv 1809.02697): accumulators of ``columns`` output columns times
``blocks`` blocks of output channels stay in vector registers while the reduction runs; each step multiplies vectors of
weights by single elements of the input. Rows that ``columns`` does not divide have a remainder with code of its own
(TVM's LoopPartition), so that widths that are primes run well too.
A convolution with a 1×1 kernel, unit strides and no padding has one row of all pixels, cut into rows of any divisor.
Of many input channels it may add up a part for all columns of a row, then the next: a tile's weights of a part stay in
the first cache, of the whole they come from the second for each column tile, or from beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from tunehub.kernels.cpu import dot_product, pairs
from tunehub.kernels.cpu.base import (
    FLOAT_BYTES,
    Block,
    Knobs,
    Machine,
    refusing,
    require,
    size_of,
    worth_threads,
)
from tunehub.kernels.cpu.divisors import divisors
from tunehub.kernels.cpu.fusion import (
    Surroundings,
    anchored,
    finish_rest,
    gather_epilogue,
    opened,
    place_pad,
    vectorize_epilogue,
)
from tunehub.kernels.cpu.instruction import set_groups_apart
from tunehub.kernels.cpu.register_tile import cost, tiles, uneven, workspace
from tunehub.kernels.te.blocked import CONV2D
from tunehub.kernels.te.grouped import CONV2D_INT8, CONV2D_PAIRS
from tunehub.tir.schedules import unroll_and_vectorize

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, Schedule

_MEASURED_TILES, _NEARLY = 6, 1.35
_SHORT_ROW, _LONG_ROW = 12, 256  # pointwise: rows of fewer columns are joined, up to so many
_UNROLLED, _UNROLLED_WITH_PADDING = 110, 48  # by default: seven columns of a 7×7 kernel, of a 3×3 kernel
_LARGE_BYTES, _KEPT_BYTES = 2 << 20, 1 << 20  # of images, and of weights
# Parts of deep reductions: measured on a Xeon with AMX alone.
_WIDE, _DEEP, _PART_BYTES = 16, 640, 128 << 10  # lanes; channels from which on; sums of a row
_DEPTH, _DEPTHS = 128, (64, 320)  # channels of a part: as near to the first as divides all
_MAX_UNROLLED = 256  # multiply-adds of one step: bounds code size, and with it LLVM's time


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv2dWorkload:
    """``kernel``: KH, KW. ``inputs``: blocks of input channels that an output reads, and channels in one (1: plain).

    ``outputs``: blocks of output channels, and channels in one. ``pointwise``: rows and columns may be fused.
    ``grouped``: blocks of output channels read different inputs. ``group``: products that one instruction adds up; 1
    for float32. ``paired``: these are of bfloat16 (:mod:`tunehub.kernels.cpu.pairs`), else of integers. ``stride``: how
    many columns of the input are from one output to the next.
    """

    batch: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    rows: int
    columns: int
    kernel: tuple[int, int]
    plain: bool
    pointwise: bool
    grouped: bool
    data_bytes: int
    around: Surroundings
    group: int = 1
    paired: bool = False
    stride: int = 1

    @property
    def anchor(self) -> str:
        """The name of its block."""
        return CONV2D_PAIRS if self.paired else CONV2D if self.group == 1 else CONV2D_INT8

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each multiply-add."""
        pixels = self.batch * self.rows * self.columns
        return 2 * pixels * size_of(self.inputs) * size_of(self.outputs) * size_of(self.kernel)

    def width(self, row: int) -> int:
        """The columns of a row: that of the image, or ``row`` when it divides the pixels of a pointwise workload."""
        fits = self.pointwise and row % self.columns == 0 and self.rows * self.columns % row == 0
        return row if fits else self.columns

    @property
    def weight_bytes(self) -> int:
        """The size of the packed weights."""
        return _bytes(self.group) * size_of(self.inputs) * size_of(self.outputs) * size_of(self.kernel)


class Conv2dKnobs(Knobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``columns`` × ``blocks``: the register tile. ``row``: columns of a row (its own size unless pointwise).

    ``order``: whether the loop over blocks of output channels is outside that over rows (weights stay in cache) or
    inside (the input does). ``unroll``: whether the kernel's columns are unrolled. ``padding``: see
    :func:`tunehub.kernels.cpu.fusion.place_pad`. ``parallel``: use the thread pool. ``depth``: input channels that are
    added up for all columns of a row before the next ones are; 0: all. Others have `order` "channels".
    """

    columns: Annotated[int, Meta(ge=1, le=32)]
    blocks: Annotated[int, Meta(ge=1, le=16)]
    row: Annotated[int, Meta(ge=1, le=1 << 20)]
    order: Literal["channels", "rows"] = "channels"
    unroll: bool = True
    padding: Literal["inline", "whole", "tile"] = "inline"
    parallel: bool = True
    depth: Annotated[int, Meta(ge=0, le=1 << 20)] = 0


NAME, VERSION, KNOBS = "conv2d", 1, Conv2dKnobs


def recognise(mod: IRModule, blocks: tuple[Block, ...]) -> Conv2dWorkload | None:
    """Describe ``mod`` (one PrimFunc ``main``), or None when its anchor is not a blocked convolution."""
    found = anchored(blocks, (CONV2D, CONV2D_PAIRS)) or anchored(blocks, (CONV2D_INT8,), ("int32",))
    if found is None:
        return None
    block, around = found
    paired = block.name == CONV2D_PAIRS
    if len(block.spatial) != 5 or len(block.reduction) not in (3, 4, 5):
        return None
    batch, outer, rows, columns, inner = block.spatial
    ic, kh, kw, *channels = block.reduction
    group = channels[1] if len(channels) == 2 else 1
    ii = [size_of(tuple(channels))] if channels else []
    data = min(block.reads, key=len)  # weights have an axis more
    unstrided = data[2:4] == (rows, columns)
    return Conv2dWorkload(
        batch=batch,
        inputs=(ic, ii[0] if ii else 1),
        outputs=(outer, inner),
        rows=rows,
        columns=columns,
        kernel=(kh, kw),
        plain=len(data) == 4,
        pointwise=(kh, kw) == (1, 1) and around.pad is None and unstrided,
        grouped=len(data) == 5 and ic * ii[0] < data[1] * data[4],
        data_bytes=(_bytes(group) if paired or group == 1 else 1) * size_of(data),
        around=around,
        group=group,
        paired=paired,
        stride=(data[3] - kw) // (columns - 1) if columns > 1 else 1,
    )


def _bytes(group: int) -> int:
    """Of a weight."""
    return FLOAT_BYTES // group


def knob_space(workload: Conv2dWorkload, machine: Machine) -> list[Conv2dKnobs]:
    """The choices worth measuring, the default's first."""
    first = default_knobs(workload, machine)
    found = {first: None}
    for row, columns, blocks in _good_choices(workload, machine):
        for knobs in _variations(workload, Conv2dKnobs(columns=columns, blocks=blocks, row=row), machine):
            found.setdefault(replace(knobs, parallel=first.parallel))
    return list(found)


def default_knobs(workload: Conv2dWorkload, machine: Machine) -> Conv2dKnobs:
    """The choice of a cost model, without measuring."""
    row, columns, blocks = min(_choices(workload, machine), key=lambda choice: _cost(workload, choice, machine))
    parallel = worth_threads(workload.flops / workload.group, workload.data_bytes + workload.weight_bytes, machine)
    # threads that share rows of an image, not channels, keep what the next layer reads: 1 to 2 % of ResNets in integers
    integers = workload.group > 1 and not workload.paired and workload.data_bytes > workload.weight_bytes
    # an image beyond the second cache is read once, where weights that stay there are read for each row instead
    large = workload.group == 1 and workload.data_bytes > _LARGE_BYTES and workload.weight_bytes <= _KEPT_BYTES
    order: Literal["channels", "rows"] = "rows" if integers or large else "channels"
    knobs = Conv2dKnobs(columns=columns, blocks=blocks, row=row, order=order, parallel=parallel)
    return _in_parts(workload, _with_padding(workload, knobs, machine), machine)


def tile_knobs(
    workload: Conv2dWorkload, columns: int, blocks: int, padding: Literal["inline", "whole", "tile"]
) -> Conv2dKnobs:
    """The knobs of a function that is, but for what remains of its rows, one register tile of ``columns`` and
    ``blocks``."""
    knobs = Conv2dKnobs(columns=columns, blocks=blocks, row=workload.columns, padding=padding)
    return replace(knobs, unroll=_unrolled(workload, knobs) <= _UNROLLED)


def lacks(workload: Conv2dWorkload, target: Target) -> str | None:
    """Why ``target`` cannot have the instruction for ``workload``, or None."""
    if workload.group == 1:
        return None
    return pairs.doubt(target) if workload.paired else dot_product.doubt(target, workload.outputs[1], workload.group)


@refusing
def apply(mod: IRModule, workload: Conv2dWorkload, knobs: Conv2dKnobs) -> Schedule:
    """Return the schedule of ``mod`` by ``knobs``; KnobError when they do not fit ``workload``."""
    _check(workload, knobs)
    # Step 1. Producers are inlined; all that follows is one block, the epilogue.
    schedule, anchor = opened(mod, workload.anchor, workload.around)
    last = gather_epilogue(schedule, workload.around, anchor)
    if workload.group > 1:
        anchor = set_groups_apart(schedule, anchor, lanes=4)
    # Step 2. Register tiles, outer loops among threads; the epilogue reads a tile while it is in registers.
    tile = _tile(schedule, anchor, workload, knobs)
    schedule.reverse_compute_at(last, tile.outer if knobs.depth else tile.at, preserve_unit_loops=True)
    if knobs.parallel:
        schedule.parallel(tile.outer)
    if knobs.depth:
        schedule.vectorize(schedule.get_loops(last)[-1])
    else:
        vectorize_epilogue(schedule, last)
    # Step 3. Accumulators zeroed before the reduction; multiply-adds of vectors, or the instruction for groups.
    begun = schedule.decompose_reduction(anchor, tile.reduction)
    if workload.group > 1:
        if workload.paired:
            pairs.multiply_in_pairs(schedule, anchor, tile.at)
        else:
            dot_product.multiply_integers(schedule, anchor, workload.outputs[1], workload.group)
        (begun,) = schedule.get_child_blocks(begun)
    unroll_and_vectorize(schedule, schedule.get_loops(begun)[-3:])
    # Step 4. Padding where the input is read, or copied before; code of its own for the last tile of a row.
    place_pad(schedule, workload.around.pad, knobs.padding, tile.outer, parallel=knobs.parallel)
    if workload.width(knobs.row) % knobs.columns:
        zeroed = [schedule.get_loops(begun)[1]] if knobs.depth else []
        for loop in (tile.at, *zeroed):
            schedule.annotate(loop, "pragma_loop_partition_hint", 1)
    finish_rest(schedule, workload.around, parallel=knobs.parallel)
    return schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tile:
    outer: LoopRV
    at: LoopRV
    reduction: LoopRV


def _check(workload: Conv2dWorkload, knobs: Conv2dKnobs) -> None:
    width = workload.width(knobs.row)
    require(width == knobs.row, f"row: {knobs.row} is not a row of this workload")
    require(
        knobs.depth > 0 or _ends_with_rows(workload, knobs.row, knobs.columns),
        f"columns: {knobs.columns} ends inside a row",
    )
    require(workload.outputs[0] % knobs.blocks == 0, f"blocks: {knobs.blocks} does not divide {workload.outputs[0]}")
    require(knobs.columns <= width, f"columns: {knobs.columns} is more than a row of {width}")
    unrolled = _unrolled(workload, knobs)
    require(unrolled <= _MAX_UNROLLED, f"columns, blocks: {unrolled} multiply-adds unrolled, at most {_MAX_UNROLLED}")
    require(knobs.padding == "inline" or workload.around.pad is not None, "padding: this workload has none to copy")
    copied = workload.group == 1 or workload.around.pad is None or knobs.padding != "inline"
    require(copied, "padding: instructions read operands that are in memory")
    if knobs.depth:
        require(_has_parts(workload), "depth: this workload has no parts")
        even = size_of(workload.inputs) % knobs.depth == 0 and knobs.depth % workload.inputs[1] == 0
        require(even, f"depth: {knobs.depth} does not divide {size_of(workload.inputs)} channels")
        require(knobs.order == "channels", "order: parts are of channels")


def _tile(schedule: Schedule, anchor: BlockRV, workload: Conv2dWorkload, knobs: Conv2dKnobs) -> _Tile:
    n, oc, oh, ow, *rest = schedule.get_loops(anchor)
    lanes = [] if workload.group > 1 else [rest.pop(0)]  # groups have theirs in a block of their own
    ic, kh, kw, *ii = rest
    if knobs.row != workload.columns:
        oh, ow = schedule.split(schedule.fuse(oh, ow), [None, knobs.row])
    outer_column, column = schedule.split(ow, [None, knobs.columns])
    outer_block, block = schedule.split(oc, [None, knobs.blocks])
    kernel = [*ii, kw] if knobs.unroll else [kw, *ii]
    parts = []
    if knobs.depth:
        part, ic = schedule.split(ic, [None, knobs.depth // workload.inputs[1]])
        parts = [part]
    if knobs.order == "channels":
        head = [n, outer_block, oh]
        schedule.reorder(*head, *parts, outer_column, ic, kh, *kernel, block, column, *lanes)
    else:
        head = [n, oh]
        schedule.reorder(*head, outer_block, outer_column, ic, kh, *kernel, block, column, *lanes)
    schedule.unroll(block)
    schedule.unroll(column)
    for lane in lanes:
        schedule.vectorize(lane)
    if knobs.unroll:
        schedule.unroll(kw)
    return _Tile(outer=schedule.fuse(*head), at=outer_column, reduction=parts[0] if parts else ic)


def _has_parts(workload: Conv2dWorkload) -> bool:
    return workload.pointwise and workload.group == 1


def _in_parts(workload: Conv2dWorkload, knobs: Conv2dKnobs, machine: Machine) -> Conv2dKnobs:
    """``knobs`` with a deep reduction in parts, of rows as long as their sums leave room in the second cache."""
    channels, lanes = size_of(workload.inputs), workload.inputs[1]
    if not _has_parts(workload) or channels < _DEEP or machine.vector < _WIDE or knobs.order == "rows":
        return knobs
    most = _PART_BYTES // (FLOAT_BYTES * knobs.blocks * workload.outputs[1])
    rows = [row for row in divisors(workload.rows * workload.columns, most) if row % workload.columns == 0]
    depths = [each for each in divisors(channels, _DEPTHS[1]) if each >= _DEPTHS[0] and each % lanes == 0]
    if not depths or not rows or rows[-1] <= knobs.columns:
        return knobs
    depth = min(depths, key=lambda each: max(each / _DEPTH, _DEPTH / each))
    return replace(knobs, row=rows[-1], depth=depth)


def _ends_with_rows(workload: Conv2dWorkload, row: int, columns: int) -> bool:
    """True when no tile of joined rows has parts of two rows of the image, and none is a remainder: the epilogue would
    run on the box around the whole tile, which other tiles write, too."""
    if row == workload.columns:
        return True
    return row % columns == 0 and (workload.columns % columns == 0 or columns % workload.columns == 0)


def _choices(workload: Conv2dWorkload, machine: Machine) -> list[tuple[int, int, int]]:
    """The rows, columns and blocks worth trying."""
    machine = machine if workload.group == 1 else machine.with_cache(None)
    pixels = workload.rows * workload.columns
    rows = [workload.columns]
    if workload.pointwise and workload.columns < _SHORT_ROW:
        rows = [row for row in divisors(pixels, _LONG_ROW) if row % workload.columns == 0] or rows
    found = [(row, c, b) for row in rows for c, b in tiles(row, *workload.outputs, machine)]
    return [choice for choice in found if _ends_with_rows(workload, *choice[:2])]


def _good_choices(workload: Conv2dWorkload, machine: Machine) -> list[tuple[int, int, int]]:
    """The choices that the model finds nearly as good as the best."""
    costs = {choice: _cost(workload, choice, machine) for choice in _choices(workload, machine)}
    best = sorted(costs, key=lambda choice: costs[choice])[:_MEASURED_TILES]
    return [choice for choice in best if costs[choice] <= _NEARLY * costs[best[0]]]


def _cost(workload: Conv2dWorkload, choice: tuple[int, int, int], machine: Machine) -> float:
    machine, lanes = machine if workload.group == 1 else machine.with_cache(None), workload.outputs[1]
    row, columns, blocks = choice
    tasks = workload.batch * (workload.rows * workload.columns // row) * (workload.outputs[0] // blocks)
    steps = size_of((*workload.inputs, *workload.kernel))
    more = workspace(columns * blocks * lanes, steps) / (columns * blocks)
    return (cost(choice, lanes, machine, shared=not workload.grouped) + more) * uneven(tasks, machine)


def _variations(workload: Conv2dWorkload, knobs: Conv2dKnobs, machine: Machine) -> Iterator[Conv2dKnobs]:
    first = _with_padding(workload, knobs, machine)
    orders: tuple[Literal["channels", "rows"], ...] = ("channels", "rows")
    paddings: tuple[Literal["inline", "whole", "tile"], ...] = (first.padding,)
    if workload.around.pad is not None:
        # "tile" was best for none of 14 layers
        paddings = ("inline", "whole") if workload.group == 1 else ("whole",)
    for order in orders:
        for padding in paddings:
            yield replace(first, order=order, padding=padding)
    if workload.kernel[1] > 1 and _unrolled(workload, replace(first, unroll=not first.unroll)) <= _MAX_UNROLLED:
        yield replace(first, unroll=not first.unroll)
    yield _in_parts(workload, first, machine)


def _with_padding(workload: Conv2dWorkload, knobs: Conv2dKnobs, machine: Machine) -> Conv2dKnobs:
    """``knobs`` with the padding inlined where that gives little code, else with a copy of the input.

    Inlined padding is 3 to 6 % faster, and makes up to four times as much code: conditions in unrolled loops, once
    more in a remainder.
    """
    unroll = _unrolled(workload, knobs) <= _UNROLLED and not _spills(workload, knobs, machine)
    knobs = replace(knobs, unroll=unroll)
    cheap = workload.group == 1 and knobs.unroll and _unrolled(workload, knobs) <= _UNROLLED_WITH_PADDING
    padded = workload.around.pad is not None and not (cheap and workload.columns % knobs.columns == 0)
    return replace(knobs, padding="whole" if padded else "inline")


def _spills(workload: Conv2dWorkload, knobs: Conv2dKnobs, machine: Machine) -> bool:
    """Whether the columns of an unrolled kernel with a stride read more groups, each of which LLVM keeps in a vector,
    than there are registers for: 3×3 with stride 2 took 1.14 times as long with 7 columns and 2 blocks."""
    if workload.group == 1 or workload.stride == 1:
        return False
    read = (knobs.columns - 1) * workload.stride + workload.kernel[1]
    return knobs.columns * knobs.blocks + read + knobs.blocks + 1 >= machine.registers


def _unrolled(workload: Conv2dWorkload, knobs: Conv2dKnobs) -> int:
    """Multiply-adds in the innermost loop that is not unrolled."""
    return knobs.columns * knobs.blocks * (workload.kernel[1] if knobs.unroll else 1)
