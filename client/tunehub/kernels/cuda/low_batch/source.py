"""The CUDA source of the kernels for low-batch GEMMs."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.low_batch.shared_memory import room, row_tiles, stride
from tunehub.kernels.cuda.low_batch.tile import AnyTile, DirectTile, StagedTile, WgmmaTile
from tunehub.kernels.cuda.row_calls import PREFIX
from tunehub.tir.cuda.ptx.wgmma import KINDS, from_registers

_SCALED_AFTER = 1  # tiles of rows up to which scales are multiplied with accumulators
_ACCUMULATORS = 4  # of a thread, for 64 columns and 8 rows
_KERNELS: dict[type, str] = {DirectTile: "kernel.cuh", StagedTile: "staged.cuh", WgmmaTile: "warpgroups.cuh"}
_KINDS: dict[type, str] = {DirectTile: "", StagedTile: "staged_", WgmmaTile: "wgmma_"}
_E4M3, _GATED = "E4M3", "GATED"
_SELDOM = (_E4M3, _GATED)  # what names say of few kernels
_FOLDER = Path(__file__).parent


def constants(extents: LowBatchExtents, tile: AnyTile) -> dict[str, int]:
    """What the source is compiled for, by the names that ``kernel.cuh``, ``staged.cuh`` and ``warpgroups.cuh``
    explain."""
    return {
        "M": extents.rows,
        "N": extents.columns,
        "K": extents.depth,
        "MT": row_tiles(extents),
        "FORMAT": extents.weights.bits,
        "BFLOAT": int(extents.weights.bfloat),
        _E4M3: int(extents.weights.e4m3),
        _GATED: int(extents.gated),
        **_of_tile(extents, tile),
    }


def _of_tile(extents: LowBatchExtents, tile: AnyTile) -> dict[str, int]:
    if isinstance(tile, WgmmaTile):
        return {"WN": tile.groups, "CLUSTER": tile.cluster, "STAGES": tile.stages, "DEPTH": tile.depth}
    warps = {"TILES": tile.tiles, "WN": tile.warps[0], "WK": tile.warps[1]}
    if isinstance(tile, DirectTile):
        return {**warps, "UNROLL": tile.unroll, "DEPTH": tile.depth, "ROOM": room(extents, tile)}
    few = extents.weights.group > 0 and row_tiles(extents) <= _SCALED_AFTER and not tile.held
    return {**warps, "STAGES": tile.stages, "DEPTH": tile.depth, "AFTER": int(few), "HELD": int(tile.held)}


def name_of(extents: LowBatchExtents, tile: AnyTile) -> str:
    """Of the function in :func:`source`, another one for each source."""
    return f"{_namespace(extents, tile)}::product"


def source(extents: LowBatchExtents, tile: AnyTile) -> str:
    """CUDA code of the function :func:`name_of`."""
    defined = "".join(f"constexpr int {name} = {value};\n" for name, value in constants(extents, tile).items())
    body = instructions()
    body += e4m3()
    if isinstance(tile, DirectTile):
        body += bfloats()
    else:
        body += _file("quantised.cuh") + _file("slices.cuh")
    if isinstance(tile, WgmmaTile):
        kind = KINDS["bfloat16" if extents.weights.bfloat else "float16"]
        body += for_warpgroups() + from_registers(kind, _ACCUMULATORS * row_tiles(extents))
    return f"namespace {_namespace(extents, tile)} {{\n{defined}{body}{_file(_KERNELS[type(tile)])}}}\n"


def experts_source(extents: LowBatchExtents, tile: DirectTile, chosen: int, shared_by: int) -> tuple[str, str]:
    """The name of the function of ``experts.cuh``, and its source."""
    known = {**constants(extents, tile), "STRIDE": stride(tile), "CHOSEN": chosen, "SHARED": shared_by}
    namespace = f"{PREFIX}experts_" + "_".join(str(value) for name, value in known.items() if name != _E4M3 or value)
    defined = "".join(f"constexpr int {name} = {value};\n" for name, value in known.items())
    body = instructions() + bfloats() + e4m3() + _file("kernel.cuh") + _file("experts.cuh")
    return f"{namespace}::experts", f"namespace {namespace} {{\n{defined}{body}}}\n"


def instructions() -> str:
    """What kernels ask of the GPU, from sm_80 on. A constant ``BFLOAT`` stands before it."""
    return _file("instructions.cuh")


def bfloats() -> str:
    """Functions that make numbers in bfloat16 of quantised weights, of those of :func:`instructions`."""
    return _file("bfloat.cuh")


def e4m3() -> str:
    """Functions that make weights of numbers in e4m3, of those of :func:`instructions`."""
    return _file("e4m3.cuh")


def for_warpgroups() -> str:
    """What those for warpgroups ask of one of sm_90 beside. A constant ``CLUSTER`` stands before it."""
    return _file("warpgroup_instructions.cuh")


def _namespace(extents: LowBatchExtents, tile: AnyTile) -> str:
    known = {name: value for name, value in constants(extents, tile).items() if name not in _SELDOM or value}
    return PREFIX + _KINDS[type(tile)] + "_".join(map(str, known.values()))


@cache
def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
