"""Matrix multiplications, and convolutions as implicit GEMM: what the sketches for GPUs have in common.

The anchor block of a function is read as C[batch, rows, columns] += A[batch, rows, k] · B[batch, k, columns],
each of which may be several of the block's axes, and given loops and buffers of just these dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tunehub.tir.index_expressions import evaluate
from tunehub.tir.versions import COMM_REDUCE, DATA_PAR, LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import (
        BlockRV,
        BufferRegion,
        IndexMap,
        IRModule,
        LoopRV,
        PortableTrace,
        PrimExpr,
        SBlock,
        Schedule,
        Var,
    )

SIDE = 16  # of a fragment of tensor cores
AT_ONCE = 8  # elements of 16 bits that a thread loads
FLOAT8, INT8 = ("float8_e4m3fn", "float8_e5m2"), ("int8", "uint8")
LOCAL_STAGE = "tirx.manifest_shared_memory_local_stage"  # the annotation of a load that waits in registers
# What a block multiplies, by the type of its operands, which are converted to that of accumulators if it is another.
_OPERANDS = {
    "float16": ("Cast",),
    "bfloat16": ("Cast",),
    "float32": LOADS,
    **dict.fromkeys((*FLOAT8, *INT8), ("Cast",)),
}


class Axis(NamedTuple):
    """A loop of the matmul: its number among the block's axes, and its extent."""

    number: int
    extent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Matmul:
    """The anchor block ``name`` as C[batch, rows, columns] += A[batch, rows, k] · B[batch, k, columns].

    Each is a list of the block's axes whose extents are not 1, the outermost first. ``rows_first``: neighbours in A are
    neighbours in memory along the rows, not along K; ``k_last``: those in B are along K, not along
    the columns; ``columns_first``: those in C are along the rows. ``runs``: so many elements of A and of B, from a
    multiple of that on, lie behind each other in the order of their axes. ``window``: so much of K, one behind the
    other, are the places of one window of a convolution; 1 where A is a matrix. ``result_run``: as ``runs``, of C; 0
    where that is not known. ``types``: of the elements of A and of B.
    """

    name: str
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    k: tuple[Axis, ...]
    rows_first: bool
    k_last: bool
    columns_first: bool
    runs: tuple[int, int]
    window: int
    result_run: int = 0
    types: tuple[str, str] = ("float16", "float16")
    extents: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)
    """Of batch, rows, columns and k."""

    def __post_init__(self) -> None:
        axes = (self.batch, self.rows, self.columns, self.k)
        object.__setattr__(self, "extents", tuple(math.prod(axis.extent for axis in each) for each in axes))

    @property
    def is_batch_with_outer_k(self) -> bool:
        """Whether it is a batch of products whose operands both have K outermost, as Winograd's algorithm has
        them: what tiles without split-K cost by count is up to half of what they take (ADR 44)."""
        return bool(self.batch) and self.rows_first and not self.k_last and self.window == 1


def find_matmul(mod: IRModule, dtype: str) -> Matmul | None:
    """The anchor block of ``mod`` (one PrimFunc ``main``) as a matmul of operands of type ``dtype`` with
    accumulators in float32, in int32 of integers, or None."""
    return find_mixed_matmul(mod, (dtype,))


def find_mixed_matmul(mod: IRModule, dtypes: Sequence[str]) -> Matmul | None:
    """As :func:`find_matmul`, of operands each of which has one of ``dtypes`` (of :data:`FLOAT8` or :data:`INT8`)."""
    from tvm.s_tir import analysis

    from tunehub.tir.nodes import buffer_kind, buffer_of

    block = analysis.find_anchor_sblock(mod)
    if block is None:
        return None
    reads = [region for region in block.reads if not buffer_of(region).same_as(buffer_of(block.writes[0]))]
    if len(reads) != 2 or len(block.writes) != 1:
        return None
    a, b, total = (str(buffer_kind(buffer_of(region)).dtype) for region in (*reads, *block.writes))
    if not {a, b} <= {*dtypes} or total != accumulator_of(a) or not _multiplies(block, (a, b)):
        return None
    return _matmul(block, [*reads, block.writes[0]], (a, b))


def accumulator_of(dtype: str) -> str:
    """The type in which products of operands of a type are added up."""
    return "int32" if dtype in INT8 else "float32"


def as_matmul(schedule: Schedule, matmul: Matmul, dimensions: Sequence[Sequence[str]], order: Sequence[str]) -> BlockRV:
    """The anchor block with one loop for each group of axes, in ``order``.

    ``dimensions``: those of A, of B and of C, from now on; each group by its name ("batch", "rows", "columns",
    "k"). Groups without axes are left out.
    """
    main = schedule.get_sblock(matmul.name, "main")
    places = (("read", 0), ("read", 1), ("write", 0))
    copies = [schedule.reindex(main, place) for place in places]
    for copy, (side, number), names in zip(copies, places, dimensions, strict=True):
        numbers, extents = _dimensions(schedule, main, side, number)
        groups = [tuple(numbers.index(axis.number) for axis in getattr(matmul, name)) for name in names]
        mapped = _merging(groups, extents)
        schedule.transform_layout(copy, ("write" if side == "read" else "read", 0), mapped)
    axes = schedule.get(main).iter_vars
    numbers_of = [tuple(axis.number for axis in getattr(matmul, name)) for name in order]
    merged = _merging(numbers_of, [int(axis.dom.extent) for axis in axes], inverse=False)
    schedule.transform_block_layout(main, merged)
    return main


def pad_to(schedule: Schedule, main: BlockRV, extents: Sequence[int], block: Sequence[int]) -> None:
    """Make the ``extents`` of the last loops of ``main`` multiples of the block's; padding is zero, and is not
    written."""
    if any(extent % size for extent, size in zip(extents, block, strict=True)):
        others = len(schedule.get(main).iter_vars) - len(block)
        schedule.pad_einsum(main, [*(1 for _ in range(others)), *block])


def inline_producers(schedule: Schedule, block: BlockRV) -> None:
    """Compute all that ``block`` reads where it reads it."""
    while producers := schedule.get_producers(block):
        for producer in producers:
            schedule.compute_inline(producer)


def inline_consumers(schedule: Schedule, block: BlockRV) -> None:
    """Bring what follows into ``block``; of several consumers those come into others that are not the last."""
    while consumers := list(schedule.get_consumers(block)):
        if len(consumers) == 1:
            own = schedule.get(block).name_hint
            for other in schedule.get_producers(consumers[0]):
                if schedule.get(other).name_hint != own:  # of a residual that is dequantised, say
                    inline_producers(schedule, other)
                    schedule.compute_inline(other)
            schedule.reverse_compute_inline(consumers[0])
            continue
        inner = [consumer for consumer in consumers if schedule.get_consumers(consumer)]
        if not inner:
            raise ValueError("the function has several results")
        for consumer in inner:
            schedule.compute_inline(consumer)


# -- split-K: a block with partial sums, and one that reduces these


def cut_results(schedule: Schedule, result: BlockRV, block: Sequence[int]) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Give each block of threads a part of the size ``block`` of what ``result`` writes; the loop over blocks, and the
    two inside one."""
    *batch, slow, fast = schedule.get_loops(result)
    slow, inner_slow = schedule.split(slow, [None, block[0]])
    fast, inner_fast = schedule.split(fast, [None, block[1]])
    schedule.reorder(slow, fast, inner_slow, inner_fast)
    grid = schedule.fuse(slow, fast)
    schedule.bind(grid, "blockIdx.x")
    if batch:
        schedule.bind(batch[0], "blockIdx.y")
    return grid, inner_slow, inner_fast


def reduce_partials(
    schedule: Schedule, total: BlockRV, loops: Sequence[LoopRV], row: int, vector: int, threads: Sequence[int]
) -> None:
    """Let ``total`` reduce partial sums where results are written, in straight code.

    ``loops`` over the results of a block, slow and fast, go to ``threads`` (threadIdx.y, threadIdx.x), ``vector``
    neighbours of a ``row`` to each.
    """
    slow, fast = loops
    fast, _ = schedule.split(fast, [None, vector])
    if row // vector == threads[1]:  # fused and cut as before, for which TVM divides by zero when it lowers that (0.27)
        _, group = schedule.split(slow, [None, threads[0]])
        thread = fast
    else:
        _, group, thread = schedule.split(schedule.fuse(slow, fast), [None, *threads])
    schedule.bind(group, "threadIdx.y")
    schedule.bind(thread, "threadIdx.x")
    schedule.compute_at(total, thread, preserve_unit_loops=True)
    own = own_loops(schedule, total)
    start = schedule.decompose_reduction(total, own[0])
    for loop in (*own_loops(schedule, start), *own):
        schedule.unroll(loop)


def own_loops(schedule: Schedule, block: BlockRV) -> list[LoopRV]:
    """The loops of a block that has been brought to its place: one for each of its axes."""
    return list(schedule.get_loops(block)[-len(schedule.get(block).iter_vars) :])


# -- reading traces


def splits_of(trace: PortableTrace) -> list[list[int]]:
    """The factors that each split of a portable ``trace`` states, in order; what TVM is to fill in is left out."""
    return [
        [factor for factor in instruction[1][1:] if isinstance(factor, int)]
        for instruction in trace[0]
        if instruction[0] == "Split"
    ]


def is_pipelined(trace: PortableTrace) -> bool:
    """True when a portable ``trace`` has loads under way while the last is multiplied."""
    return any(i[0] == "Annotate" and i[2] == ["software_pipeline_stage"] for i in trace[0])


# -- what the anchor block computes


def _multiplies(block: SBlock, dtypes: Sequence[str]) -> bool:
    """True when the block adds the product of its two reads to what it writes, converted to the accumulator's type if
    need be."""
    value = getattr(block.body, "value", None)
    multiplication = getattr(value, "b", None)
    operands = [getattr(multiplication, side, None) for side in "ab"]
    kinds = [type(node).__name__ for node in (value, multiplication, *operands)]
    return kinds[:2] == ["Add", "Mul"] and all(
        kind in _OPERANDS[dtype] for kind, dtype in zip(kinds[2:], dtypes, strict=True)
    )


def _matmul(block: SBlock, regions: Sequence[BufferRegion], types: tuple[str, str]) -> Matmul | None:
    """``regions``: of A, B and C."""
    from tunehub.tir.nodes import element_type

    own = [list(_variables(region)) for region in regions]
    groups: dict[str, list[Axis]] = {"batch": [], "rows": [], "columns": [], "k": []}
    for number, axis in enumerate(block.iter_vars):
        uses = tuple(any(axis.var.same_as(variable) for variable in variables) for variables in own)
        if type(axis.dom.extent).__name__ != "IntImm" or element_type(axis.dom.extent) != "int64":
            return None  # primitives count in 64 bits, as Relax does, and refuse to mix
        extent = int(axis.dom.extent)
        if extent == 1:
            continue
        group = _GROUPS.get((int(axis.iter_type), uses))
        if group is None:
            return None
        groups[group].append(Axis(number, extent))
    if not all(groups[name] for name in ("rows", "columns", "k")):
        return None
    last = [_last_group(region, block, groups) for region in regions]
    return Matmul(
        name=str(block.name_hint),
        **{name: tuple(axes) for name, axes in groups.items()},
        rows_first=last[0] == "rows",
        k_last=last[1] == "k",
        columns_first=last[2] == "rows",
        runs=(_run(regions[0], block, groups), _run(regions[1], block, groups)),
        window=_window(regions[0], block, groups["k"]),
        result_run=_run(regions[2], block, groups),
        types=types,
    )


_GROUPS: dict[tuple[int, tuple[bool, ...]], str] = {
    (DATA_PAR, (True, True, True)): "batch",
    (DATA_PAR, (True, False, True)): "rows",
    (DATA_PAR, (False, True, True)): "columns",
    (COMM_REDUCE, (True, True, False)): "k",
}


def _variables(region: BufferRegion) -> Iterator[Var]:
    from tvm.tirx.analysis import undefined_vars

    for dimension in region.region:
        yield from undefined_vars(dimension.min)


def _last_group(region: BufferRegion, block: SBlock, groups: dict[str, list[Axis]]) -> str | None:
    """The group of the axis along which the elements of a region lie next to each other.

    Of several axes in the innermost index, as in a convolution, a spatial one counts.
    """
    from tvm.tirx.analysis import undefined_vars

    for dimension in reversed(list(region.region)):
        inside = list(undefined_vars(dimension.min))
        found = [
            name
            for name, axes in groups.items()
            for axis in axes
            if any(block.iter_vars[axis.number].var.same_as(variable) for variable in inside)
        ]
        if found:
            return next((name for name in found if name != "k"), found[0])
    return None


def _run(region: BufferRegion, block: SBlock, groups: dict[str, list[Axis]]) -> int:
    """How many elements of a region's buffer lie behind each other along axes of one group, in their order."""
    from tunehub.tir.nodes import buffer_kind, buffer_of

    left = list(groups[_last_group(region, block, groups) or "k"])
    run = 1
    for dimension, extent in zip(reversed(region.region), reversed(buffer_kind(buffer_of(region)).shape), strict=True):
        if type(extent).__name__ == "IntImm" and int(extent) == 1:
            continue
        axis = left.pop() if left else None
        if axis is None or not _is_axis(dimension.min, axis, block) or axis.extent != extent:
            return run * _pixels(dimension.min, axis, extent, block) if axis is not None and run > 1 else run
        run *= axis.extent
    return run


def _pixels(index: PrimExpr, axis: Axis, extent: PrimExpr, block: SBlock) -> int:
    """How many places of a window, from a multiple of that on, lie behind each other along a dimension of ``extent``
    whose ``index`` is the place along ``axis`` in the window and multiples of others: as many as divide all strides."""
    from tvm.tirx.analysis import undefined_vars

    names = {hash(variable) for variable in undefined_vars(index)}
    own, extents = hash(block.iter_vars[axis.number].var), {hash(a.var): int(a.dom.extent) for a in block.iter_vars}
    zeros = {name: np.asarray(0) for name in names}
    if type(extent).__name__ != "IntImm" or own not in names or int(evaluate(index, zeros, hash)) != 0:
        return 1
    found = math.gcd(axis.extent, int(extent))
    for name in names:
        places = np.arange(extents[name])
        along = np.broadcast_to(evaluate(index, {**zeros, name: places}, hash), places.shape)
        stride = int(along[1]) if len(places) > 1 else 0
        if not np.array_equal(along, stride * places) or (name == own and stride != 1):
            return 1
        found = found if name == own else math.gcd(found, stride)
    return found


def _window(region: BufferRegion, block: SBlock, k: Sequence[Axis]) -> int:
    """How much of K, from the innermost on, are the places of a window: axes that share a dimension of ``region`` with
    rows."""
    from tvm.tirx.analysis import undefined_vars

    shared = [each for dimension in region.region if len(each := list(undefined_vars(dimension.min))) > 1]
    found = 1
    for axis in reversed(k):
        if not any(block.iter_vars[axis.number].var.same_as(variable) for each in shared for variable in each):
            break
        found *= axis.extent
    return found


def _is_axis(index: PrimExpr, axis: Axis, block: SBlock) -> bool:
    """True when ``index`` is the place along ``axis``; axes with one place do not matter."""
    from tvm.tirx.analysis import undefined_vars

    own = block.iter_vars[axis.number]
    single = {hash(other.var): np.asarray(0) for other in block.iter_vars if int(other.dom.extent) == 1}
    if {hash(variable) for variable in undefined_vars(index)} - {*single} != {hash(own.var)}:
        return False
    places = np.arange(axis.extent)
    return bool(np.array_equal(evaluate(index, {**single, hash(own.var): places}, hash), places))


# -- buffers and loops of few dimensions


def _dimensions(schedule: Schedule, main: BlockRV, side: str, number: int) -> tuple[list[int], list[int]]:
    """The axis of the block, by its number, that each dimension of a reindexed buffer is; and the extents."""
    from tunehub.tir.nodes import buffer_kind, buffer_of

    block = schedule.get(main)
    region = (block.reads if side == "read" else block.writes)[number]
    numbers = [
        next((n for n, axis in enumerate(block.iter_vars) if axis.var.same_as(dimension.min)), -1)
        for dimension in region.region
    ]
    return numbers, [int(extent) for extent in buffer_kind(buffer_of(region)).shape]


def _merging(groups: Sequence[Sequence[int]], extents: Sequence[int], *, inverse: bool = True) -> IndexMap:
    """The index map that makes one index of each group of indices; indices in none have the extent 1 and are dropped.

    TVM's rules for records ask for the inverse of a merge, except where TVM derives it.
    """
    import tvm
    from tvm.tirx import IndexMap, IntImm, Var

    def number(value: int) -> PrimExpr:
        return IntImm("int64", value)

    before = [Var(f"v{i}", "int64") for i in range(len(extents))]
    groups = [group for group in groups if group]
    after = [Var(f"w{i}", "int64") for i in range(len(groups))]
    merged: list[PrimExpr] = []
    backward: list[PrimExpr] = [number(0)] * len(extents)
    for result, group in zip(after, groups, strict=True):
        value, weight = before[group[0]], math.prod(extents[i] for i in group)
        for i in group[1:]:
            value = value * number(extents[i]) + before[i]
        merged.append(value)
        for position, i in enumerate(group):
            weight //= extents[i]
            part = result if weight == 1 else tvm.tirx.FloorDiv(result, number(weight))
            backward[i] = part if position == 0 else tvm.tirx.FloorMod(part, number(extents[i]))
    return IndexMap(before, merged, IndexMap(after, backward, None) if inverse else None)
