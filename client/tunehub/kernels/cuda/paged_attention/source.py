"""The CUDA source of attention over pages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tunehub.kernels.cuda.low_batch.source import instructions
from tunehub.kernels.cuda.paged_attention.spec import DecodeTile, Kind, PagedAttention, Tile

PREFIX = "tunehub_paged_"  # of the names of all such functions
COUNTERS = 1 << 14  # sequences and heads whose blocks can be counted
_FOLDER = Path(__file__).parent


def constants(attention: PagedAttention, tile: Tile) -> dict[str, int]:
    """What the source is compiled for, by the names that ``tiles.cuh``, ``decode.cuh`` and ``prefill.cuh`` explain."""
    common = {
        "D": attention.depth,
        "G": attention.group,
        "H": attention.key_heads,
        "BFLOAT": int(attention.dtype == "bfloat16"),
        "PAGED": int(attention.kind is not Kind.RAGGED),
        "WINDOW": int(attention.window),
        "WARPS": tile.warps,
    }
    if isinstance(tile, DecodeTile):
        return {**common, "STAGES": tile.stages, "COUNTERS": COUNTERS}
    return {**common, "TALL": tile.tall, "KEYS": tile.keys, "CROSS": attention.cross}


def name_of(attention: PagedAttention, tile: Tile) -> str:
    """Of the function in :func:`source`, another one for each source."""
    return f"{_namespace(attention, tile)}::attention"


def source(attention: PagedAttention, tile: Tile) -> str:
    """CUDA code of the function :func:`name_of`."""
    defined = "".join(f"constexpr int {name} = {value};\n" for name, value in constants(attention, tile).items())
    kernel = "decode.cuh" if isinstance(tile, DecodeTile) else "prefill.cuh"
    body = instructions() + _file("instructions.cuh") + _file("tiles.cuh") + _file(kernel)
    return f"namespace {_namespace(attention, tile)} {{\n{defined}{body}}}\n"


def _namespace(attention: PagedAttention, tile: Tile) -> str:
    kind = "decode_" if isinstance(tile, DecodeTile) else "prefill_"
    return PREFIX + kind + "_".join(str(value) for value in constants(attention, tile).values())


@cache
def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
