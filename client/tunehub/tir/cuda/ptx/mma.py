"""Products of a warp on tensor cores, and how their operands come into registers: PTX ISA, "Matrix multiply-accumulate
operation using mma instruction", "ldmatrix" (sm_80 and newer). The header of tensor cores (``mma.h``) is not needed."""

from __future__ import annotations

from tunehub.tir.cuda.ptx.function import INLINED, Function, function
from tunehub.tir.cuda.ptx.wgmma import KINDS, ROW_BYTES, STEP_BYTES

INTEGERS = {"int8": "s8", "uint8": "u8"}  # in PTX, of operands


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


def mma_stage(a: str, b: str, rows: int, columns: int) -> Function:
    """Add the products of ``rows`` (of 16) of A and ``columns`` (of 16) of B, 128 bytes of K of integers of 8 bits, to
    the accumulators of a warp in 32 bits.

    Both operands are K-major in shared memory, in rows of 128 bytes whose pieces of 16 are swizzled as for ``wgmma``.
    Accumulators are those of fragments of 16 x 8, one behind the other along the columns.
    """
    kinds = tuple(INTEGERS[each] for each in (a, b))
    name = f"tunehub_mma_{rows}_{columns}_{[*INTEGERS].index(a)}_{[*INTEGERS].index(b)}"
    load = (
        'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" '
        ': "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(at) : "memory");'
    )
    return Function(
        name,
        f"""{INLINED} void {name}_load(unsigned* f, unsigned at) {{ {load} }}
{INLINED} void {name}(int* d, unsigned a, unsigned b) {{
  const unsigned lane = threadIdx.x & 31u, low = lane & 7u;
  a += (lane & 15u) * {ROW_BYTES}u;
  b += (low + (lane >> 4) * 8u) * {ROW_BYTES}u;
#pragma unroll
  for (int k = 0; k < {ROW_BYTES // STEP_BYTES}; ++k) {{
    unsigned p[{rows // 16}][4], q[{columns // 16}][4];
#pragma unroll
    for (int i = 0; i < {rows // 16}; ++i)
      {name}_load(p[i], a + i * {16 * ROW_BYTES}u + (((2u * k + (lane >> 4)) ^ low) << 4));
#pragma unroll
    for (int j = 0; j < {columns // 16}; ++j)
      {name}_load(q[j], b + j * {16 * ROW_BYTES}u + (((2u * k + (lane >> 3 & 1u)) ^ low) << 4));
#pragma unroll
    for (int i = 0; i < {rows // 16}; ++i)
#pragma unroll
      for (int j = 0; j < {columns // 8}; ++j) {{
        int* e = d + (i * {columns // 8} + j) * 4;
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.{kinds[0]}.{kinds[1]}.s32 "
          "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
          : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3])
          : "r"(p[i][0]), "r"(p[i][1]), "r"(p[i][2]), "r"(p[i][3]), "r"(q[j / 2][j % 2 * 2]),
            "r"(q[j / 2][j % 2 * 2 + 1]));
      }}
  }}
}}
""",
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
