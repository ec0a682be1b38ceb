"""Our kernel with the parameters of TVM's own. Positions are not rotated in it (``RopeMode.INLINE``): TVM's is kept for
caches that ask for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cuda.attention.kernel import LOG2_E
from tunehub.kernels.cuda.paged_attention.narrow import E4M3_PAGES
from tunehub.kernels.cuda.paged_attention.source import COUNTERS, name_of, source
from tunehub.kernels.cuda.paged_attention.spec import (
    MOST_PARTS,
    PAGE,
    DecodeTile,
    Kind,
    PagedAttention,
    PagedBulkTile,
    PagedWarpgroupTile,
    PrefillTile,
    Tile,
)
from tunehub.tir.cuda.ptx.tma import tensor_map, tensor_map_encode
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES, SIZES
from tunehub.tir.nodes import buffer_kind, parameters
from tunehub.tir.statements import address, allocate, block_of, const, f32, marked, run, sequence, threads, with_root

if TYPE_CHECKING:
    from tunehub.kernels.devices.device import GpuDevice
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, Stmt

_ROW_BLOCK = 16  # rows of a block of decode at most
_FEWEST_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"
_ENOUGH_PAGES, _MOST_TURNS = 96, 2  # of a block; blocks one after the other
_RESIDENT = 2  # blocks of decode for which the compiler leaves registers
_OPERANDS = slice(2, 4)  # keys and values among a kernel's arguments
_MORE = 4  # row_max and row_sum behind a part's row, in float32


@dataclass(frozen=True, slots=True)
class _KernelParameters:
    """Of TVM's kernel, by what they are."""

    buffers: dict[str, Buffer]
    numbers: dict[str, PrimExpr]

    def extent(self, name: str) -> PrimExpr:
        """Of the first axis of a buffer, in 32 bits."""
        return buffer_kind(self.buffers[name]).shape[0].astype("int32")

    def at(self, name: str) -> PrimExpr:
        """Where a buffer begins."""
        buffer = self.buffers[name]
        return address(buffer, *(const(0) for _ in buffer_kind(buffer).shape))


_PAGES = ("pages", "table", "values", "lengths")
_ROTATION, _RESULTS = ("key_offset", "positions"), ("output", "lse")
BUFFERS = {
    Kind.DECODE: ("queries", *_PAGES, *_ROTATION, *_RESULTS),
    Kind.PREFILL: ("queries", "starts", *_PAGES, *_ROTATION, *_RESULTS),
    Kind.RAGGED: ("queries", "starts", "keys", "own_values", "table", *reversed(_ROTATION), *_RESULTS),
}
_ROTARY = ("rotary_mode", "rope_scale", "rope_theta", "sm_scale")
NUMBERS = {Kind.DECODE: _ROTARY, Kind.PREFILL: ("causal", *_ROTARY), Kind.RAGGED: ("causal", *_ROTARY)}


def with_kernel(attention: PagedAttention, tile: Tile, device: GpuDevice) -> PrimFunc:
    """The function of ``attention`` by ``tile`` for ``device``, already scheduled."""
    function = attention.function
    given = _given(attention)
    own = _decode(attention, tile, given, device) if isinstance(tile, DecodeTile) else _prefill(attention, tile, given)
    return function.with_body(with_root(function.body, [own], []))


def _given(attention: PagedAttention) -> _KernelParameters:
    names, buffers = BUFFERS[attention.kind], parameters(attention.function)
    named = dict(zip(names, buffers, strict=True))
    if attention.scale is not None:
        return _KernelParameters(named, {"causal": const(attention.causal), "sm_scale": f32(attention.scale)})
    numbers = list(attention.function.params)[len(buffers) :]
    return _KernelParameters(named, dict(zip(NUMBERS[attention.kind], numbers, strict=True)))


def _decode(attention: PagedAttention, tile: DecodeTile, given: _KernelParameters, device: GpuDevice) -> Stmt:
    from tvm import tirx

    batch = given.extent("key_offset")
    row_blocks = -(-attention.group // _ROW_BLOCK)
    heads = attention.key_heads * row_blocks
    each = pages_of_block(given.extent("values"), batch, heads, tile, device)
    slots = tirx.floordiv(given.extent("values"), each) + batch
    elements = slots.astype("int64") * (attention.heads * (attention.depth + _MORE))
    parts = tirx.decl_buffer((elements,), "float32", "parts", layout=None)
    arguments = [given.at(name) for name in ("queries", *_PAGES, *_RESULTS)]

    def kernel(block: PrimExpr, pool: list[PrimExpr]) -> list[PrimExpr]:
        more = [batch, each, _scale(given), block]
        ends = [address(parts, const(0, "int64")), address(parts, elements - 1)]  # all of it is used, TVM is to see
        return [*arguments, *ends, *pool, *more]

    launched = _launched(attention, tile, slots * heads, kernel, min(tile.blocks, _RESIDENT))
    return sequence(allocate(parts), launched)


def pages_of_block(pages: PrimExpr, batch: PrimExpr, heads: int, tile: DecodeTile, device: GpuDevice) -> PrimExpr:
    """So many that the ``pages`` of all sequences fill the GPU, that each warp has as many, and that a sequence has no
    more parts than there is room for; all where there are too many sequences for blocks that are counted."""
    from tvm import tirx

    work, enough = pages * heads, const(_ENOUGH_PAGES * device.multiprocessors)
    # More blocks than there are at a time, where each has enough to do: multiprocessors are not equally fast.
    blocks = tirx.min(tirx.max(tirx.floordiv(work, enough), const(tile.blocks)), const(_MOST_TURNS * tile.blocks))
    step = blocks * (device.multiprocessors * tile.warps)
    pages_of_warp = tirx.floordiv(work + (step - 1), step)
    each = tirx.max(tirx.max(pages_of_warp, const(1)) * tile.warps, tirx.floordiv(pages, const(MOST_PARTS)) + 1)
    return tirx.Select(batch * heads <= COUNTERS, each, pages + 1)


def _prefill(
    attention: PagedAttention, tile: PrefillTile | PagedWarpgroupTile | PagedBulkTile, given: _KernelParameters
) -> Stmt:
    from tvm import tirx

    rows = given.extent("queries") * attention.group
    blocks = (tirx.floordiv(rows, tile.rows) + given.extent("key_offset")) * attention.key_heads
    kernel_arguments = _keys(attention, given)
    encoded: list[Stmt] = []
    if isinstance(tile, PagedBulkTile):
        kernel_arguments[_OPERANDS], encoded = _mapped(attention, tile, given)

    def kernel(block: PrimExpr, pool: list[PrimExpr]) -> list[PrimExpr]:
        more = [given.extent("key_offset"), given.numbers["causal"], _scale(given), block, blocks]
        return [*kernel_arguments, *pool, *more]

    return sequence(*encoded, _launched(attention, tile, blocks, kernel, 0))


def _mapped(
    attention: PagedAttention, tile: PagedBulkTile, given: _KernelParameters
) -> tuple[list[PrimExpr], list[Stmt]]:
    """What tells the copy engine where keys and values lie, as addresses, and the statements that make it."""
    from tvm import tirx

    encoded: list[Stmt] = []
    heads, depth, maps = attention.key_heads, attention.depth, []
    for name in ("keys", "own_values") if attention.kind is Kind.RAGGED else ("pages",):
        buffer, count = given.buffers[name], buffer_kind(given.buffers[name]).shape[0]
        ragged = attention.kind is Kind.RAGGED
        width, rows, box = (heads * depth, count, tile.keys) if ragged else (depth, count * (2 * heads * PAGE), PAGE)
        maps.append(tensor_map(f"{name}_map"))
        dtype = E4M3_PAGES if attention.e4m3 else attention.dtype
        across = depth if attention.e4m3 else ROW_BYTES // SIZES[dtype]
        how: dict[str, Any] = {"extents": (width, rows), "apart": (width,), "swizzled": not attention.e4m3}
        encoded += tensor_map_encode(maps[-1], buffer, dtype, box=(across, box), **how)
    return [tirx.address_of(maps[0]), tirx.address_of(maps[-1])], encoded


def _keys(attention: PagedAttention, given: _KernelParameters) -> list[PrimExpr]:
    """Queries, keys, values, and where those of a sequence are."""
    first = [given.at("queries"), given.at("starts")]
    table, results = given.at("table"), [given.at(name) for name in _RESULTS]
    if attention.kind is Kind.RAGGED:
        unused = [table, table]
        return [*first, given.at("keys"), given.at("own_values"), table, *unused, *results]
    values = address(given.buffers["pages"], *(const(index) for index in (0, 1, 0, 0, 0)))
    return [*first, given.at("pages"), values, table, given.at("values"), given.at("lengths"), *results]


def _scale(given: _KernelParameters) -> PrimExpr:
    """What scores are multiplied with, as exponents of 2."""
    return given.numbers["sm_scale"] * f32(LOG2_E)


def _launched(attention: PagedAttention, tile: Tile, blocks: PrimExpr, arguments: object, fewest: int) -> Stmt:
    from tvm import tirx
    from tvm.backend.cuda.op import cuda_func_call

    size = tile.shared_bytes(attention) // 4
    pool = tirx.decl_buffer((size,), "float32", "pool", scope="shared.dyn", layout=None)

    def block(at: PrimExpr) -> Stmt:
        ends = [address(pool, const(place)) for place in (0, size - 1)]
        given = arguments(at, ends)  # type: ignore[operator]
        call = run(cuda_func_call(name_of(attention, tile), *given, source_code=source(attention, tile)))
        call = marked(_FEWEST_BLOCKS, fewest, call) if fewest else call
        return threads("threadIdx.x", tile.threads, block_of(attention.function.body, call, "attention", [pool]))

    return threads("blockIdx.x", blocks, block)
