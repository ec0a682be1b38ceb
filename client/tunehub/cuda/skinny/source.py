"""The CUDA source of the kernel for products with few rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tunehub.cuda.skinny.product import SkinnyExtents
from tunehub.cuda.skinny.shared_memory import room, row_tiles
from tunehub.cuda.skinny.tile import AnyTile, SkinnyTile, StagedTile

_SCALED_AFTER = 1  # tiles of rows up to which scales are multiplied with sums
_KERNELS: dict[type, str] = {SkinnyTile: "kernel.cuh", StagedTile: "staged.cuh"}
PREFIX = "tunehub_skinny_"  # of the names of all such functions
_FOLDER = Path(__file__).parent


def constants(extents: SkinnyExtents, tile: AnyTile) -> dict[str, int]:
    """What the source is compiled for, by the names that ``kernel.cuh`` and ``staged.cuh`` explain."""
    own = _of_staged(extents, tile) if isinstance(tile, StagedTile) else _of_registers(extents, tile)
    return {
        "M": extents.rows,
        "N": extents.columns,
        "K": extents.depth,
        "MT": row_tiles(extents),
        "TILES": tile.tiles,
        "WN": tile.warps[0],
        "WK": tile.warps[1],
        "FORMAT": extents.weights.bits,
        "BFLOAT": int(extents.weights.bfloat),
        **own,
    }


def _of_registers(extents: SkinnyExtents, tile: SkinnyTile) -> dict[str, int]:
    return {
        "UNROLL": tile.unroll,
        "DEPTH": tile.depth,
        "ROOM": room(extents, tile),
    }


def _of_staged(extents: SkinnyExtents, tile: StagedTile) -> dict[str, int]:
    few = extents.weights.group > 0 and row_tiles(extents) <= _SCALED_AFTER
    return {"STAGES": tile.stages, "DEPTH": tile.depth, "AFTER": int(few)}


def name_of(extents: SkinnyExtents, tile: AnyTile) -> str:
    """Of the function in :func:`source`, another one for each source."""
    return f"{_namespace(extents, tile)}::product"


def source(extents: SkinnyExtents, tile: AnyTile) -> str:
    """CUDA code of the function :func:`name_of`."""
    defined = "".join(f"constexpr int {name} = {value};\n" for name, value in constants(extents, tile).items())
    body = _file("instructions.cuh") + _file(_KERNELS[type(tile)])
    return f"namespace {_namespace(extents, tile)} {{\n{defined}{body}}}\n"


def _namespace(extents: SkinnyExtents, tile: AnyTile) -> str:
    kind = "staged_" if isinstance(tile, StagedTile) else ""
    return PREFIX + kind + "_".join(str(value) for value in constants(extents, tile).values())


@cache
def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
