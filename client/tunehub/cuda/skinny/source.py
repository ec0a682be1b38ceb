"""The CUDA source of the kernel for products with few rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tunehub.cuda.skinny.product import SkinnyExtents
from tunehub.cuda.skinny.tile import SkinnyTile

_ROWS = 8  # of an instruction
_BANKS, _SHIFT = 32, 4  # rows of the result start at different banks
_MOST_ELEMENTS = (48 << 10) // 4  # of shared memory that any GPU gives a block
PREFIX = "tunehub_skinny_"  # of the names of all such functions
_FOLDER = Path(__file__).parent


def constants(extents: SkinnyExtents, tile: SkinnyTile) -> dict[str, int]:
    """What the source is compiled for, by the names that ``kernel.cuh`` explains."""
    return {
        "M": extents.rows,
        "N": extents.columns,
        "K": extents.depth,
        "MT": -(-extents.rows // _ROWS),
        "TILES": tile.tiles,
        "WN": tile.warps[0],
        "WK": tile.warps[1],
        "UNROLL": tile.unroll,
        "DEPTH": tile.depth,
        "FORMAT": extents.weights.bits,
        "BFLOAT": int(extents.weights.bfloat),
        "ROOM": _room(extents, tile),
    }


def stride(tile: SkinnyTile) -> int:
    """Elements from one row of a block's results to the next in shared memory."""
    return tile.columns + (_SHIFT - tile.columns) % _BANKS


def fits(extents: SkinnyExtents, tile: SkinnyTile) -> bool:
    """Whether a block has the shared memory that it takes."""
    return _room(extents, tile) >= tile.columns * _ROWS * tile.warps[1]


def _room(extents: SkinnyExtents, tile: SkinnyTile) -> int:
    """Elements of shared memory beside the results."""
    return _MOST_ELEMENTS - extents.rows * stride(tile)


def name_of(extents: SkinnyExtents, tile: SkinnyTile) -> str:
    """Of the function in :func:`source`, another one for each source."""
    return f"{_namespace(extents, tile)}::product"


def source(extents: SkinnyExtents, tile: SkinnyTile, *, instructions: bool = True) -> str:
    """CUDA code of the function :func:`name_of`; without ``instructions`` what it asks of a GPU is to be defined
    before."""
    defined = "".join(f"constexpr int {name} = {value};\n" for name, value in constants(extents, tile).items())
    body = (_file("instructions.cuh") if instructions else "") + _file("kernel.cuh")
    return f"namespace {_namespace(extents, tile)} {{\n{defined}{body}}}\n"


def _namespace(extents: SkinnyExtents, tile: SkinnyTile) -> str:
    return PREFIX + "_".join(str(value) for value in constants(extents, tile).values())


@cache
def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
