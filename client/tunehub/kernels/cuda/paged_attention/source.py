"""The CUDA source of attention over pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tunehub.kernels.cuda.low_batch.source import e4m3, instructions
from tunehub.kernels.cuda.paged_attention.spec import (
    ARRIVED,
    ByWarpgroups,
    DecodeTile,
    Kind,
    PagedAttention,
    PagedBulkTile,
    PagedWarpgroupTile,
    PrefillTile,
    Tile,
)
from tunehub.tir.cuda.ptx.barriers import bar_arrive, bar_sync, bar_sync_warpgroup
from tunehub.tir.cuda.ptx.function import Function
from tunehub.tir.cuda.ptx.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_init_fence,
    mbarrier_wait,
)
from tunehub.tir.cuda.ptx.registers import setmaxnreg
from tunehub.tir.cuda.ptx.tma import tma_load_2d
from tunehub.tir.cuda.ptx.wgmma import (
    ARCHITECTURE,
    KINDS,
    ROW_BYTES,
    ROWS,
    WARPGROUP,
    WARPGROUPS,
    wgmma_fresh,
    wgmma_from_registers,
    wgmma_wait_for,
    wgmma_wait_for_registers,
)

PREFIX = "tunehub_paged_"  # of the names of all such functions
_WIDENING = 40, 232  # registers of a thread that makes numbers of 16 bits and of one that multiplies
COUNTERS = 1 << 14  # sequences and heads whose blocks can be counted
_KERNELS: dict[type, str] = {
    DecodeTile: "decode.cuh",
    PrefillTile: "prefill.cuh",
    PagedWarpgroupTile: "warpgroups.cuh",
    PagedBulkTile: "producer.cuh",
}
_FOLDER = Path(__file__).parent


def constants(attention: PagedAttention, tile: Tile) -> dict[str, int]:
    """What the source is compiled for, by the names that the files of this folder explain."""
    common = {
        "D": attention.depth,
        "G": attention.group,
        "H": attention.key_heads,
        "BFLOAT": int(attention.dtype == "bfloat16"),
        "PAGED": int(attention.kind is not Kind.RAGGED),
        "WINDOW": int(attention.window),
    }
    if isinstance(tile, DecodeTile):
        return {**common, "WARPS": tile.warps, "STAGES": tile.stages, "COUNTERS": COUNTERS}
    rows = {"BLOCK_ROWS": tile.rows, "THREADS": tile.threads, "KEYS": tile.keys, "CROSS": attention.cross}
    if isinstance(tile, PagedBulkTile):
        return {**common, **rows, "STAGES": tile.stages}
    return {**common, **rows, **({"TALL": tile.tall} if isinstance(tile, PrefillTile) else {})}


def name_of(attention: PagedAttention, tile: Tile) -> str:
    """Of the function in :func:`source`, another one for each source."""
    return f"{_namespace(attention, tile)}::attention"


def source(attention: PagedAttention, tile: Tile) -> str:
    """CUDA code of the function :func:`name_of`."""
    narrow = attention.e4m3 and isinstance(tile, PagedBulkTile)  # numbers of 16 bits are made before products
    known = {**constants(attention, tile), "E4M3": int(attention.e4m3 and not narrow)}
    if isinstance(tile, PagedBulkTile):
        known |= {"NARROW": int(narrow), "ARRIVED": ARRIVED}
    defined = "".join(f"constexpr int {name} = {value};\n" for name, value in known.items())
    body = instructions() + e4m3() + _file("instructions.cuh") + _file("tiles.cuh")
    if not isinstance(tile, DecodeTile):
        body += _file("rows.cuh")
    if isinstance(tile, ByWarpgroups):
        body += products(attention, tile) + _file("softmax.cuh")
    if isinstance(tile, PagedBulkTile):
        body += bringing(attention, tile)
    return f"namespace {_namespace(attention, tile)} {{\n{defined}{body}{_file(_KERNELS[type(tile)])}}}\n"


def products(attention: PagedAttention, tile: ByWarpgroups) -> str:
    """The functions that ``warpgroups.cuh`` and ``producer.cuh`` call for products."""
    kind, scores, outputs = KINDS[attention.dtype], tile.keys // 2, attention.depth // 2
    query_rows = ROWS if isinstance(tile, PagedBulkTile) else tile.rows
    apart = query_rows * ROW_BYTES, tile.keys * ROW_BYTES
    functions = {
        "multiply_scores": wgmma_fresh(kind, tile.keys, attention.depth, *apart),
        "multiply_weights": wgmma_from_registers(kind, attention.depth, tile.keys, apart[1]),
        "have_scores": wgmma_wait_for(1, scores),
        "have_scores_alone": wgmma_wait_for(0, scores),
        "have_outputs": wgmma_wait_for_registers(0, outputs, tile.keys // 4),
    }
    return f"// {WARPGROUPS}: instructions of {ARCHITECTURE}\n{_named(functions)}"


def bringing(attention: PagedAttention, tile: PagedBulkTile) -> str:
    """The functions that ``producer.cuh`` calls for barriers, boxes and registers."""
    two_groups = 2 * WARPGROUP
    fewer, more = _WIDENING if attention.e4m3 else tile.registers
    functions = {
        "barrier_init": mbarrier_init(),
        "barriers_made": mbarrier_init_fence(),
        "barrier_arrive": mbarrier_arrive(),
        "barrier_expect": mbarrier_arrive_expect_tx(tile.keys * tile.swizzled_bytes(attention)),
        "barrier_wait": mbarrier_wait(),
        "box_load": tma_load_2d(),
        "bytes_expected": mbarrier_arrive_expect_tx(tile.keys * attention.depth),
        "bytes_load": tma_load_2d(),
        "group_meets": bar_sync_warpgroup(),
        "turn_taken": bar_sync(two_groups),
        "turn_given": bar_arrive(two_groups),
        "fewer_registers": setmaxnreg(fewer, more=False),
        "more_registers": setmaxnreg(more, more=True),
    }
    return _named(functions)


def _named(functions: Mapping[str, Function]) -> str:
    """The sources of functions under other names."""
    return "".join(function.source.replace(function.name, name) for name, function in functions.items())


def _namespace(attention: PagedAttention, tile: Tile) -> str:
    kind = _KERNELS[type(tile)].removesuffix("cuh").replace(".", "_")
    known = [*map(str, constants(attention, tile).values()), *(["e4m3"] if attention.e4m3 else [])]
    return PREFIX + kind + "_".join(known)


@cache
def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
