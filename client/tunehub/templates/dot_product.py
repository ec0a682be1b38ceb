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

import functools
from dataclasses import dataclass
from typing import Any

_OLDEST_LLVM = 22  # whose ``vpdpbusd`` takes vectors of bytes
_INTRINSICS = {
    (16, 4): "llvm.x86.avx512.vpdpbusd.512",
    (8, 4): "llvm.x86.avx512.vpdpbusd.256",
    (16, 2): "llvm.x86.avx512.pmaddw.d.512",
    (8, 2): "llvm.x86.avx2.pmadd.wd",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DotProduct:
    """``lanes``: outputs in a vector; ``group``: products that are added up in each."""

    lanes: int
    group: int


def dot_product_of(target: Any) -> DotProduct | None:
    """The best of these instructions that ``target``, a ``tvm.target.Target``, has and the installed TVM can use."""
    from tvm.target import codegen

    if target.kind.name != "llvm" or codegen.llvm_version_major() < _OLDEST_LLVM:
        return None

    def has(*features: str) -> bool:
        return all(bool(codegen.target_has_features([each], target)) for each in features)

    if has("avx512f"):
        if has("avx512vnni"):
            return DotProduct(lanes=16, group=4)
        return DotProduct(lanes=16, group=2) if has("avx512bw") else None
    if has("avxvnni"):
        return DotProduct(lanes=8, group=4)
    return DotProduct(lanes=8, group=2) if has("avx2") else None


@functools.cache
def intrinsic(lanes: int, group: int) -> str:
    """The name of TVM's tensor intrinsic for an instruction, registered when it is first asked for; KeyError when
    there is none."""
    from tvm.s_tir import TensorIntrin

    name = f"tunehub_dot_{lanes}x{group}"
    TensorIntrin.register(name, *_functions(lanes, group, _INTRINSICS[lanes, group]), override=True)
    return name


def _functions(lanes: int, group: int, called: str) -> tuple[Any, Any]:
    """What the instruction computes, and its call."""
    from tvm.script import tirx as T

    from tunehub.relax.intrinsics import light_parser

    element, factor = ("uint8", "int8") if group == 4 else ("int16", "int16")
    word, words, factors = f"{element}x{group}", f"int32x{lanes}", f"{factor}x{group * lanes}"
    elements = f"{element}x{group * lanes}"
    with light_parser():

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def described(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (group,), element, offset_factor=1)
            B = T.match_buffer(b, (lanes, group), factor, offset_factor=1)
            C = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
            with T.sblock("root"):
                T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
                T.writes(C[0:lanes])
                for i, k in T.grid(lanes, group):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.Cast("int32", A[vk]) * T.Cast("int32", B[vi, vk])

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def of_bytes(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (group,), element, offset_factor=1)
            B = T.match_buffer(b, (lanes, group), factor, offset_factor=1)
            C = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
            with T.sblock("root"):
                T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
                T.writes(C[0:lanes])
                C[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id(called),
                    C.vload([0], dtype=words),
                    T.reinterpret(T.broadcast(T.reinterpret(A.vload([0], word), dtype="int32"), lanes), dtype=elements),
                    B.vload([0, 0], dtype=factors),
                    dtype=words,
                )

        @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
        def of_pairs(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (group,), element, offset_factor=1)
            B = T.match_buffer(b, (lanes, group), factor, offset_factor=1)
            C = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
            with T.sblock("root"):
                T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
                T.writes(C[0:lanes])
                C[T.ramp(T.int32(0), 1, lanes)] = C.vload([0], dtype=words) + T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id(called),
                    T.reinterpret(T.broadcast(T.reinterpret(A.vload([0], word), dtype="int32"), lanes), dtype=elements),
                    B.vload([0, 0], dtype=factors),
                    dtype=words,
                )

    return described, of_bytes if group == 4 else of_pairs
