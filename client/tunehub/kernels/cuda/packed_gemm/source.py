"""The CUDA source of what a warpgroup does with packed weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunehub.kernels.cuda.low_batch.source import bfloats, e4m3, for_warpgroups, instructions
from tunehub.kernels.cuda.low_batch.weights import Format
from tunehub.kernels.cuda.packed_gemm.tile import PackedTile
from tunehub.tir.cuda.ptx.function import Function
from tunehub.tir.cuda.ptx.wgmma import KINDS, ROWS, WARPGROUPS, from_registers

PREFIX = f"{WARPGROUPS}_packed_"  # of the names of its functions
_FRAGMENTS, _SCALES, _CONSTANTS = 32, 4, 3  # registers of a thread: in all, of 64 columns, in all


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSource:
    """Functions for weights [``columns``, ``depth``] in the format ``form``, by ``tile``; ``gated``: a warpgroup has 64
    of the first and 64 of the second half of their rows."""

    columns: int
    depth: int
    form: Format
    tile: PackedTile
    gated: bool = False

    @property
    def parts(self) -> int:
        """Instructions beside each other of a warpgroup."""
        return self.tile.columns // ROWS

    @property
    def state(self) -> int:
        """Registers of a thread between stages."""
        return _FRAGMENTS + _SCALES * self.parts + _CONSTANTS

    def begin(self) -> Function:
        """``(state, scales, column, step)``: before the first stage of a tile."""
        return self._function("begin")

    def products(self) -> Function:
        """``(accumulators, state, weights, x, scales, column, step)``: start those of a stage."""
        return self._function("products")

    def finish(self) -> Function:
        """``(accumulators, state)``: wait for all products."""
        return self._function("finish")

    def _function(self, name: str) -> Function:
        space = PREFIX + "_".join(map(str, self._constants().values())) + ("_e4m3" if self.form.e4m3 else "")
        space += "_gated" if self.gated else ""
        return Function(f"{space}::{name}", self._source(space))

    def _constants(self) -> dict[str, int]:
        return {
            "N": self.columns,
            "K": self.depth,
            "MT": self.tile.rows // 8,
            "PARTS": self.parts,
            "FORMAT": self.form.bits,
            "BFLOAT": int(self.form.bfloat),
        }

    def _source(self, space: str) -> str:
        known = {**self._constants(), "E4M3": int(self.form.e4m3), "GATED": int(self.gated)}
        defined = "".join(f"constexpr int {name} = {value};\n" for name, value in known.items())
        kind = KINDS["bfloat16" if self.form.bfloat else "float16"]
        body = (
            instructions() + bfloats() + e4m3() + for_warpgroups() + from_registers(kind, self.tile.rows // 2) + _file()
        )
        named = f"namespace {space} {{\nconstexpr int CLUSTER = 1;\n{defined}{body}}}\n"
        return f"#ifndef {space}_known\n#define {space}_known\n{named}#endif\n"  # TVM writes it for each function


@cache
def _file() -> str:
    return (Path(__file__).parent / "packed.cuh").read_text(encoding="utf-8")
