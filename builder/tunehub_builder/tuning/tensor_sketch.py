"""A sketch for the tensor cores of NVIDIA GPUs: products of matrices, and convolutions as such, in half precision.

The structure is that of TVM's own rule for matrix products (``s_tir/dlight/gpu/matmul.py``, ``MatmulTensorization``):
operands go through shared memory into fragments of 16 × 16 (WMMA), warps hold tiles of sums in float32, and the sums
go through shared memory into whatever follows. Unlike there, tiles are free, so that small products fill a large GPU;
an operand lies in shared memory in the order in which memory has it, so that loads meet neighbouring addresses; and a
convolution's channels and places become rows, columns and steps without being copied first.

Only schedule primitives are used: a trace replays on every supported TVM that has the intrinsics registered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

SIDE = 16  # of a fragment
_WARP = 32
_SPATIAL, _REDUCTION = 0, 2  # tvm::tirx::IterVarType
# TVM's StorageRewrite would put sums where operands were, and then refuse the pointer for its type; not of these two.
_OPERANDS, _SUMS = "shared", "shared.dyn"
_SKEW = 8  # elements that a row is longer, so that rows start at different banks
_SHARED_LIMIT = 48 << 10
_INPUT, _SUM = "float16", "float32"
_STAGED = "tirx.manifest_shared_memory_local_stage"
MOST_WARPS = 16
MOST_FRAGMENTS = 16  # of sums that a warp holds
_MOST_WAITING = 128  # elements on their way into shared memory, in registers, two in each


class Axis(NamedTuple):
    """A loop of the product: its number among the block's axes, and its extent."""

    number: int
    extent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """The anchor block ``name`` as C[batch, rows, columns] += A[batch, rows, steps] · B[batch, steps, columns].

    Each is a list of the block's axes whose extents are not 1, the outermost first. ``rows_first``: neighbours in A are
    neighbours in memory along the rows, not along the steps; ``steps_last``: those in B are along the steps, not along
    the columns; ``columns_first``: those in C are along the rows.
    """

    name: str
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    steps: tuple[Axis, ...]
    rows_first: bool
    steps_last: bool
    columns_first: bool

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Of batch, rows, columns and steps."""
        batch, rows, columns, steps = (
            math.prod(axis.extent for axis in axes) for axes in (self.batch, self.rows, self.columns, self.steps)
        )
        return batch, rows, columns, steps


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class TensorTile:
    """The choices of a sketch. A block has ``warps`` (along rows and columns), each of which holds ``fragments`` of
    sums; ``steps`` fragments along the reduction are loaded at a time, ``vectors`` elements of A and of B by a thread
    at once. ``staged``: the next load is under way while products are made.
    """

    warps: tuple[int, int]
    fragments: tuple[int, int]
    steps: int
    vectors: tuple[int, int]
    staged: bool = False

    @property
    def block(self) -> tuple[int, int, int]:
        """Rows, columns and steps of a block, in elements."""
        return (
            SIDE * self.warps[0] * self.fragments[0],
            SIDE * self.warps[1] * self.fragments[1],
            SIDE * self.steps,
        )


def product_of(mod: Any) -> Product | None:
    """The anchor block of ``mod`` (one PrimFunc ``main``) as a product that tensor cores take, or None."""
    from tvm.s_tir import Schedule, analysis

    from tunehub.relax_nodes import buffer_kind, buffer_of

    block = analysis.find_anchor_sblock(mod)
    if block is None:
        return None
    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    block = schedule.get(schedule.get_sblock(block.name_hint, "main"))
    reads = [region for region in block.reads if not buffer_of(region).same_as(buffer_of(block.writes[0]))]
    if len(reads) != 2 or len(block.writes) != 1:
        return None
    types = [str(buffer_kind(buffer_of(region)).dtype) for region in (*reads, *block.writes)]
    if types != [_INPUT, _INPUT, _SUM] or not _multiplies(block):
        return None
    return _product(block, [*reads, block.writes[0]])


def tiles(product: Product) -> Iterator[TensorTile]:
    """Every tile that may suit ``product``; a block covers a dimension twice at most, and fits shared memory."""
    _, rows, columns, steps = product.extents
    sizes = (1, 2, 4, 8)
    for warps in ((a, b) for a in sizes for b in sizes if a * b <= MOST_WARPS):
        for fragments in ((a, b) for a in (1, 2, 4) for b in (1, 2, 4) if a * b <= MOST_FRAGMENTS):
            for depth in (1, 2, 4, 8, 16):
                for staged in (False, True) if depth > 1 else (False,):
                    tile = _vectorised(product, warps, fragments, depth, staged)
                    if tile is not None and _suits(tile, rows, columns, steps):
                        yield tile


def apply(mod: Any, product: Product, tile: TensorTile) -> Any:
    """The schedule of ``mod`` by ``tile``. TVM raises where a primitive does not take its place."""
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    main = _as_product(schedule, schedule.get_sblock(product.name, "main"), product)
    _pad(schedule, main, product, tile)
    blocks = _tiled(schedule, main, product, tile)
    loads = [_loaded(schedule, blocks, product, tile, number) for number in (0, 1)]
    for load in loads:
        _inline_producers(schedule, load)
    fragments = [_fragments(schedule, blocks, number) for number in (0, 1)]
    stored, store = _stored(schedule, blocks, product)
    start = schedule.decompose_reduction(blocks.outer, blocks.depth)
    _tensorize(schedule, blocks, product, fragments, store, start)
    _inline_consumers(schedule, stored)
    _written(schedule, stored, product)
    return schedule


def tile_of(trace: Any) -> TensorTile | None:
    """The tile that a portable trace of this sketch was made with; None for another trace."""
    splits = [
        [factor for factor in instruction[1][1:] if isinstance(factor, int)]
        for instruction in trace[0]
        if instruction[0] == "Split"
    ]
    if len(splits) < 8 or [len(split) for split in splits[:8]] != [1, 1, 1, 2, 2, 1, 3, 3]:
        return None
    (rows, columns, (steps,), load_a, load_b) = splits[3:8]
    staged = any(i[0] == "Annotate" and i[2] == ["software_pipeline_stage"] for i in trace[0])
    return TensorTile(
        warps=(rows[0], columns[0]),
        fragments=(rows[1], columns[1]),
        steps=steps,
        vectors=(load_a[2], load_b[2]),
        staged=staged,
    )


class _Blocks(NamedTuple):
    """The products of one fragment, the block around them, and the loops of a warp and of the reduction."""

    inner: Any
    outer: Any
    warp: Any
    depth: Any
    step: Any


# -- what the anchor block computes


def _multiplies(block: Any) -> bool:
    """True when the block adds the product of its two reads to what it writes, both converted to the sum's type."""
    value = getattr(block.body, "value", None)
    product = getattr(value, "b", None)
    operands = [getattr(product, side, None) for side in "ab"]
    kinds = [type(node).__name__ for node in (value, product, *operands)]
    return kinds == ["Add", "Mul", "Cast", "Cast"]


def _product(block: Any, regions: Sequence[Any]) -> Product | None:
    """``regions``: of A, B and C."""
    own = [list(_variables(region)) for region in regions]
    groups: dict[str, list[Axis]] = {"batch": [], "rows": [], "columns": [], "steps": []}
    for number, axis in enumerate(block.iter_vars):
        uses = tuple(any(axis.var.same_as(variable) for variable in variables) for variables in own)
        if type(axis.dom.extent).__name__ != "IntImm":
            return None
        extent = int(axis.dom.extent)
        if extent == 1:
            continue
        group = _GROUPS.get((int(axis.iter_type), uses))
        if group is None:
            return None
        groups[group].append(Axis(number, extent))
    if not all(groups[name] for name in ("rows", "columns", "steps")):
        return None
    last = [_last_group(region, block, groups) for region in regions]
    return Product(
        name=str(block.name_hint),
        **{name: tuple(axes) for name, axes in groups.items()},
        rows_first=last[0] == "rows",
        steps_last=last[1] == "steps",
        columns_first=last[2] == "rows",
    )


_GROUPS: dict[tuple[int, tuple[bool, ...]], str] = {
    (_SPATIAL, (True, True, True)): "batch",
    (_SPATIAL, (True, False, True)): "rows",
    (_SPATIAL, (False, True, True)): "columns",
    (_REDUCTION, (True, True, False)): "steps",
}


def _variables(region: Any) -> Iterator[Any]:
    from tvm.tirx.analysis import undefined_vars

    for dimension in region.region:
        yield from undefined_vars(dimension.min)


def _last_group(region: Any, block: Any, groups: dict[str, list[Axis]]) -> str | None:
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
            return next((name for name in found if name != "steps"), found[0])
    return None


# -- the sketch, step by step


def _as_product(schedule: Any, main: Any, product: Product) -> Any:
    """Give the operands and the result two dimensions, and a third where there is a batch."""
    wanted = (
        ("read", 0, (product.batch, product.rows, product.steps)),
        ("read", 1, (product.batch, product.columns, product.steps)
         if product.steps_last else (product.batch, product.steps, product.columns)),
        ("write", 0, (product.batch, product.rows, product.columns)),
    )  # fmt: skip
    copies = [schedule.reindex(main, (side, number)) for side, number, _ in wanted]
    for copy, (side, number, groups) in zip(copies, wanted, strict=True):
        numbers, extents = _dimensions(schedule, main, side, number)
        mapped = _merging([tuple(numbers.index(axis.number) for axis in group) for group in groups], extents)
        schedule.transform_layout(copy, ("write" if side == "read" else "read", 0), mapped)
    axes = schedule.get(main).iter_vars
    order = (product.batch, product.rows, product.columns, product.steps)
    numbers_of = [tuple(axis.number for axis in group) for group in order]
    merged = _merging(numbers_of, [int(axis.dom.extent) for axis in axes], inverse=False)
    schedule.transform_block_layout(main, merged)
    return main


def _dimensions(schedule: Any, main: Any, side: str, number: int) -> tuple[list[int], list[int]]:
    """The axis of the block, by its number, that each dimension of a reindexed buffer is; and the extents."""
    from tunehub.relax_nodes import buffer_kind, buffer_of

    block = schedule.get(main)
    region = (block.reads if side == "read" else block.writes)[number]
    numbers = [
        next((n for n, axis in enumerate(block.iter_vars) if axis.var.same_as(dimension.min)), -1)
        for dimension in region.region
    ]
    return numbers, [int(extent) for extent in buffer_kind(buffer_of(region)).shape]


def _merging(groups: Sequence[Sequence[int]], extents: Sequence[int], *, inverse: bool = True) -> Any:
    """The index map that makes one index of each group of indices; indices in none have the extent 1 and are dropped.

    TVM's rules for records ask for the inverse of a merge, except where TVM derives it.
    """
    import tvm
    from tvm.tirx import IndexMap, IntImm, Var

    def number(value: int) -> Any:
        return IntImm("int64", value)

    before = [Var(f"v{i}", "int64") for i in range(len(extents))]
    groups = [group for group in groups if group]
    after = [Var(f"w{i}", "int64") for i in range(len(groups))]
    merged: list[Any] = []
    backward: list[Any] = [number(0)] * len(extents)
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


def _pad(schedule: Any, main: Any, product: Product, tile: TensorTile) -> None:
    """Make the extents multiples of the block's; the padding is zero, and is not written."""
    _, *extents = product.extents
    if any(extent % size for extent, size in zip(extents, tile.block, strict=True)):
        schedule.pad_einsum(main, [*([1] if product.batch else []), *tile.block])


def _tiled(schedule: Any, main: Any, product: Product, tile: TensorTile) -> _Blocks:
    *batch, i, j, k = schedule.get_loops(main)
    i, i_inner = schedule.split(i, [None, SIDE])
    j, j_inner = schedule.split(j, [None, SIDE])
    k, k_inner = schedule.split(k, [None, SIDE])
    schedule.reorder(i, j, k, i_inner, j_inner, k_inner)
    outer = schedule.blockize(i_inner)
    i_block, i_warp, i = schedule.split(i, [None, tile.warps[0], tile.fragments[0]])
    j_block, j_warp, j = schedule.split(j, [None, tile.warps[1], tile.fragments[1]])
    depth, step = schedule.split(k, [None, tile.steps])
    schedule.reorder(i_block, j_block, i_warp, j_warp, depth, step, i, j)
    schedule.bind(schedule.fuse(i_block, j_block), "blockIdx.x")
    warp = schedule.fuse(i_warp, j_warp)
    schedule.bind(warp, "threadIdx.y")
    if batch:
        schedule.bind(batch[0], "blockIdx.y")
    schedule.unroll(i)
    schedule.unroll(j)
    if tile.staged:
        schedule.annotate(depth, "software_pipeline_order", [0, 3, 1, 4, 5, 2, 6])
        schedule.annotate(depth, "software_pipeline_stage", [0, 0, 0, 0, 0, 1, 1])
        schedule.annotate(step, "software_pipeline_order", [0, 1, 2])
        schedule.annotate(step, "software_pipeline_stage", [0, 0, 1])
    return _Blocks(inner=main, outer=outer, warp=warp, depth=depth, step=step)


def _loaded(schedule: Any, blocks: _Blocks, product: Product, tile: TensorTile, number: int) -> Any:
    """The block that brings an operand into shared memory, all threads together."""
    load = schedule.cache_read(blocks.outer, number, _OPERANDS)
    schedule.compute_at(load, blocks.depth)
    row, column = schedule.get_loops(load)[-2:]
    if number == 0 and product.rows_first:
        schedule.reorder(column, row)
        row, column = column, row
    fused = schedule.fuse(row, column)
    _, warp, lane, vector = schedule.split(fused, [None, math.prod(tile.warps), _WARP, tile.vectors[number]])
    schedule.bind(warp, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    schedule.vectorize(vector)
    schedule.storage_align(load, 0, -2, SIDE, _SKEW)
    if tile.staged:
        schedule.annotate(load, _STAGED, 1)
        schedule.annotate(load, "double_buffer_scope", 0)
    return load


def _fragments(schedule: Any, blocks: _Blocks, number: int) -> Any:
    read = schedule.cache_read(blocks.outer, number, f"wmma.matrix_{'ab'[number]}")
    schedule.compute_at(read, blocks.step)
    return read


def _stored(schedule: Any, blocks: _Blocks, product: Product) -> tuple[Any, Any]:
    """The blocks that bring sums from shared memory on, and from fragments into shared memory."""
    stored = schedule.cache_write(blocks.outer, 0, _SUMS)
    schedule.storage_align(stored, 0, -2, SIDE, _SKEW // 2)
    store = schedule.cache_write(blocks.outer, 0, "wmma.accumulator")
    schedule.reverse_compute_at(store, blocks.warp)
    schedule.reverse_compute_at(stored, blocks.warp)
    _cut(schedule, store)
    return stored, store


def _cut(schedule: Any, block: Any) -> Any:
    """Cut the last two loops of a block into fragments; the loop of a fragment's rows."""
    row, column = schedule.get_loops(block)[-2:]
    row, row_inner = schedule.split(row, [None, SIDE])
    column, column_inner = schedule.split(column, [None, SIDE])
    schedule.reorder(row, column, row_inner, column_inner)
    schedule.unroll(row)
    schedule.unroll(column)
    return row_inner


def _tensorize(
    schedule: Any, blocks: _Blocks, product: Product, fragments: Sequence[Any], store: Any, start: Any
) -> None:
    kind = f"{SIDE}x{SIDE}x{SIDE}"
    transposed = "_trans" if product.steps_last else ""
    names = (f"wmma_load_{kind}_f16_a_{_OPERANDS}", f"wmma_load_{kind}_f16_b{transposed}_{_OPERANDS}")
    for block, name in zip(fragments, names, strict=True):
        schedule.tensorize(_cut(schedule, block), name)
    (first,) = schedule.get_child_blocks(start)
    schedule.tensorize(schedule.get_loops(first)[-2], f"wmma_fill_{kind}_f32")
    schedule.tensorize(schedule.get_loops(store)[-2], f"wmma_store_{kind}_f32_{_SUMS.replace('.', '_')}")
    schedule.tensorize(schedule.get_loops(blocks.inner)[-3], f"wmma_sync_{kind}_f16f16f32{transposed}")


def _written(schedule: Any, stored: Any, product: Product) -> None:
    """The sums of a warp, and what is computed of them, by its lanes."""
    row, column = schedule.get_loops(stored)[-2:]
    if product.columns_first:
        schedule.reorder(column, row)
        row, column = column, row
    _, lane, vector = schedule.split(schedule.fuse(row, column), [None, _WARP, 1 if product.columns_first else 4])
    schedule.bind(lane, "threadIdx.x")
    schedule.vectorize(vector)


def _inline_producers(schedule: Any, block: Any) -> None:
    while producers := schedule.get_producers(block):
        for producer in producers:
            schedule.compute_inline(producer)


def _inline_consumers(schedule: Any, block: Any) -> None:
    """Bring what follows into ``block``; of several consumers those come into others that are not the last."""
    while consumers := list(schedule.get_consumers(block)):
        if len(consumers) == 1:
            schedule.reverse_compute_inline(consumers[0])
            continue
        inner = [consumer for consumer in consumers if schedule.get_consumers(consumer)]
        if not inner:
            raise ValueError("the function has several results")
        for consumer in inner:
            schedule.compute_inline(consumer)


# -- which tiles suit


def _vectorised(
    product: Product, warps: tuple[int, int], fragments: tuple[int, int], steps: int, staged: bool
) -> TensorTile | None:
    """The tile with the longest vectors with which all threads load alike; None when there are too many threads."""
    tile = TensorTile(warps=warps, fragments=fragments, steps=steps, vectors=(1, 1), staged=staged)
    rows, columns, depth = tile.block
    threads = _WARP * math.prod(warps)
    lengths = (depth, depth if product.steps_last else columns)
    found = []
    for size, along, single in zip((rows * depth, columns * depth), lengths, (product.rows_first, False), strict=True):
        fitting = [v for v in ((1,) if single else (8, 4, 2, 1)) if along % v == 0 and size % (threads * v) == 0]
        if not fitting:
            return None
        found.append(fitting[0])
    return TensorTile(warps=warps, fragments=fragments, steps=steps, vectors=(found[0], found[1]), staged=staged)


def _suits(tile: TensorTile, rows: int, columns: int, steps: int) -> bool:
    for size, extent in zip(tile.block, (rows, columns, steps), strict=True):
        if size >= 2 * max(extent, SIDE):
            return False
    if tile.staged and (tile.block[2] >= steps or _waiting(tile) > _MOST_WAITING):
        return False  # there is no next load, or it takes too many registers
    return shared_memory(tile) <= _SHARED_LIMIT


def _waiting(tile: TensorTile) -> int:
    """How many elements of the next load a thread holds."""
    rows, columns, depth = tile.block
    return (rows + columns) * depth // (_WARP * math.prod(tile.warps))


def shared_memory(tile: TensorTile) -> int:
    """Bytes of shared memory that a block of ``tile`` takes at most."""
    rows, columns, depth = tile.block
    operands = 2 * (rows * (depth + _SKEW) + max(columns * (depth + _SKEW), depth * (columns + _SKEW)))
    sums = 4 * rows * (columns + _SKEW // 2)
    return operands * (2 if tile.staged else 1) + sums
