"""Instructions that multiply unsigned by signed integers of 8 bits and add up several products in each of 32 bits.

| target has | instruction | outputs × products |
|---|---|---|
| AVX512-VNNI | ``vpdpbusd`` | 16 × 4 |
| AVX-VNNI, or AVX512-VNNI with short vectors | ``vpdpbusd`` | 8 × 4 |
| AVX-512BW | ``vpmaddwd`` | 16 × 2, operands widened to 16 bits |
| AVX2 | ``vpmaddwd`` | 8 × 2, operands widened to 16 bits |

All are exact: ``vpmaddubsw``, which adds pairs of 8-bit products in 16 bits, saturates and is not used. LLVM ends the
process when it is told to generate an instruction that a target lacks: the features of the target decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.instruction import compute_by
from tunehub.kernels.te.scales import Array, NotIntegerError
from tunehub.target.tvm_generation import find_tvm

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, Buffer, PrimExpr, SBlock, Schedule, Stmt

_OLDEST_TVM = (0, 27)  # by whose LLVM ``vpdpbusd`` takes vectors of bytes
_INTRINSICS = {
    (16, 4): "llvm.x86.avx512.vpdpbusd.512",
    (8, 4): "llvm.x86.avx512.vpdpbusd.256",
    (16, 2): "llvm.x86.avx512.pmaddw.d.512",
    (8, 2): "llvm.x86.avx2.pmadd.wd",
}
_NEEDED = {  # features, any line of them
    (16, 4): (("avx512vnni",),),
    (8, 4): (("avxvnni",), ("avx512vnni", "avx512vl")),
    (16, 2): (("avx512bw",),),
    (8, 2): (("avx2",),),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DotProduct:
    """``lanes``: outputs in a vector; ``group``: products that are added up in each. ``tiles``: whether there are such
    instructions for matrices besides (:mod:`tunehub.kernels.cpu.amx`)."""

    lanes: int
    group: int
    tiles: bool = False

    @property
    def data(self) -> tuple[str, ...]:
        """The types of data that it multiplies with weights of 8 signed bits."""
        return ("uint8",)

    @property
    def has_attention(self) -> bool:
        """Whether there is a kernel for attention in integers with it."""
        return (self.lanes, self.group) == (16, 4)

    def convolution(self, weight: Array, groups: int) -> tuple[Array, int]:
        """There is a template for each."""
        return weight, groups

    def check_product(self, weight: Array) -> None:
        """Raise NotIntegerError for a second operand [K, N] that is no matrix, or too small a one."""
        if weight.ndim != 2:
            raise NotIntegerError("its second operand is no matrix")
        if weight.shape[0] % self.group or weight.shape[1] < self.lanes:
            raise NotIntegerError(f"a product of {weight.shape[0]} x {weight.shape[1]} does not fill vectors")


def dot_product_of(target: Target) -> DotProduct | None:
    """The best of these instructions that ``target``, a ``tvm.target.Target``, has and the installed TVM can use."""
    from tvm.target import codegen

    installed = find_tvm()
    if target.kind.name != "llvm" or installed is None or installed.release < _OLDEST_TVM:
        return None

    def has(*features: str) -> bool:
        return all(bool(codegen.target_has_features([each], target)) for each in features)

    if has("avx512f"):
        if has("avx512vnni"):
            return DotProduct(lanes=16, group=4, tiles=amx.doubt(target, "uint8") is None)
        return DotProduct(lanes=16, group=2) if has("avx512bw") else None
    if has("avxvnni"):
        return DotProduct(lanes=8, group=4)
    return DotProduct(lanes=8, group=2) if has("avx2") else None


def doubt(target: Target, lanes: int, group: int) -> str | None:
    """Why code for ``target`` cannot have the instruction for so many outputs and products, or None."""
    from tvm.target import codegen

    installed = find_tvm()
    if target.kind.name != "llvm" or installed is None or installed.release < _OLDEST_TVM:
        return "it is for CPUs, and needs TVM 0.27"
    needed = _NEEDED.get((lanes, group), ())
    if any(all(codegen.target_has_features([each], target) for each in features) for features in needed):
        return None
    lacking = " or ".join(", ".join(features) for features in needed) or "an instruction of that size"
    return f"the target lacks {lacking}"


def multiply_integers(
    schedule: Schedule,
    block: BlockRV,
    lanes: int,
    group: int,
    before: Callable[[SBlock], Stmt | None] = lambda block: None,
) -> None:
    """Let one instruction do what is in ``block``: the products of ``group`` integers of the data with those of
    ``lanes`` outputs, whose sums are begun elsewhere. ``before``: see :func:`compute_by`. KeyError when there is no
    such instruction."""
    from tvm import tirx

    name, of_bytes = _INTRINSICS[lanes, group], group == 4
    element, factor = ("uint8", "int8") if of_bytes else ("int16", "int16")
    vector, operand = f"int32x{lanes}", f"{element}x{group * lanes}"

    def value(sums: Buffer, elements: Buffer, factors: Buffer) -> PrimExpr:
        word = tirx.reinterpret("int32", elements.vload([0], f"{element}x{group}"))
        data = tirx.reinterpret(operand, tirx.Broadcast(word, lanes))
        weights, before = factors.vload([0, 0], f"{factor}x{group * lanes}"), sums.vload([0], vector)
        if of_bytes:
            return tirx.call_llvm_pure_intrin(vector, name, before, data, weights)
        return before + tirx.call_llvm_pure_intrin(vector, name, data, weights)

    kinds = (((lanes,), "int32", "sums"), ((group,), element, "elements"), ((lanes, group), factor, "factors"))
    compute_by(schedule, block, kinds, value, before)
