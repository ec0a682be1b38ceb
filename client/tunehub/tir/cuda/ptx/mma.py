"""Products of a warp on tensor cores, and how their operands come into registers: PTX ISA, "Matrix multiply-accumulate
operation using mma instruction", "ldmatrix" (sm_80 and newer). The header of tensor cores (``mma.h``) is not needed."""

from __future__ import annotations

from tunehub.tir.cuda.ptx.function import Function, function
from tunehub.tir.cuda.ptx.wgmma import KINDS


def mma_m16n8k16(dtype: str) -> Function:
    """Add the products of fragments of 16 × 16 and 16 × 8 numbers of ``dtype`` to accumulators in float32."""
    name, kind = f"tunehub_mma_m16n8k16{_suffix(dtype)}", KINDS[dtype]
    return function(
        name,
        "float* d, const unsigned* a, const unsigned* b",
        f"""  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
    "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));""",
    )


def ldmatrix_x4(*, transposed: bool = False) -> Function:
    """Four matrices of 8 × 8 numbers of 16 bits from shared memory into the registers of a warp."""
    name, kind = ("tunehub_ldmatrix_x4_trans", ".trans") if transposed else ("tunehub_ldmatrix_x4", "")
    return function(
        name,
        "unsigned* d, const void* source",
        f"""  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(source));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{%0,%1,%2,%3}}, [%4];"
    : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at));""",
    )


def load_pair() -> Function:
    """Two numbers of 16 bits from anywhere into a register."""
    body = "  *d = *static_cast<const unsigned*>(source);"
    return function("tunehub_load_pair", "unsigned* d, const void* source", body)


def pack_pair(dtype: str) -> Function:
    """Two numbers in float32 become two of ``dtype`` in a register."""
    return function(
        f"tunehub_pair{_suffix(dtype)}",
        "unsigned* d, float low, float high",
        f"""  asm("cvt.rn.{KINDS[dtype]}x2.f32 %0, %1, %2;" : "=r"(*d) : "f"(high), "f"(low));""",
    )


def _suffix(dtype: str) -> str:
    return "_bf16" if dtype == "bfloat16" else ""
