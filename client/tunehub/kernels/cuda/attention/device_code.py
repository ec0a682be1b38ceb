"""What the kernels of attention do that TIR has no words for: a function of CUDA C++ for each, called by name.

The header of tensor cores (``mma.h``) is not needed: instructions are those of PTX (NVIDIA, Parallel Thread Execution
ISA, "Matrix multiply-accumulate operation using mma instruction", "ldmatrix", "cp.async"; sm_80 and newer).
"""

from __future__ import annotations

from typing import Any

from tunehub.tir.cuda.ptx import KINDS

_QUALIFIERS = "__forceinline__ __device__"

MULTIPLY, PAIR = (  # of operands of a type
    {"float16": f"tunehub_{name}", "bfloat16": f"tunehub_{name}_bf16"} for name in ("mma_m16n8k16", "pair")
)
LOAD, LOAD_TRANSPOSED, COPY = (f"tunehub_{name}" for name in ("ldmatrix_x4", "ldmatrix_x4_trans", "copy_16_bytes"))
COMMIT, WAIT, EXCHANGE, TWO, NOTHING = (
    f"tunehub_{name}" for name in ("copies_commit", "copies_wait", "lane_xor", "load_pair", "minus_infinity")
)
FOUR_OUT, FOUR_IN = (f"tunehub_{name}" for name in ("keep_four", "cluster_read"))

_MULTIPLY = """void {name}(float* d, const unsigned* a, const unsigned* b) {{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 "
    "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}"""
_PAIR = """void {name}(unsigned* d, float low, float high) {{
  asm("cvt.rn.KINDx2.f32 %0, %1, %2;" : "=r"(*d) : "f"(high), "f"(low));
}}"""
_SOURCES = {
    **{name: _MULTIPLY.replace("KIND", KINDS[dtype]) for dtype, name in MULTIPLY.items()},
    **{name: _PAIR.replace("KIND", KINDS[dtype]) for dtype, name in PAIR.items()},
    LOAD: """void {name}(unsigned* d, const void* source) {{
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(source));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0,%1,%2,%3}}, [%4];"
    : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at));
}}""",
    LOAD_TRANSPOSED: """void {name}(unsigned* d, const void* source) {{
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(source));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{%0,%1,%2,%3}}, [%4];"
    : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at));
}}""",
    TWO: """void {name}(unsigned* d, const void* source) {{
  *d = *static_cast<const unsigned*>(source);
}}""",
    COPY: """void {name}(void* d, const void* source, int bytes) {{
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(d));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(source), "r"(bytes));
}}""",
    COMMIT: """void {name}() {{ asm volatile("cp.async.commit_group;" ::); }}""",
    WAIT: """void {name}() {{ asm volatile("cp.async.wait_all;" ::: "memory"); }}""",
    FOUR_OUT: """void {name}(void* d, const float* source) {{
  *static_cast<float4*>(d) = make_float4(source[0], source[1], source[2], source[3]);
}}""",
    FOUR_IN: """void {name}(float* d, const void* own, int rank) {{
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(own));
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {{%0, %1, %2, %3}}, [%4];"
    : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(at) : "memory");
}}""",
    NOTHING: """float {name}() {{ return __int_as_float(0xff800000); }}""",
    EXCHANGE: """float {name}(float value, int mask) {{ return __shfl_xor_sync(0xffffffffu, value, mask); }}""",
}


def call(name: str, *arguments: Any) -> Any:
    """The call of one of these functions, an expression."""
    from tvm.backend.cuda.op import cuda_func_call

    source = f"{_QUALIFIERS} {_SOURCES[name].format(name=name)}\n"
    return cuda_func_call(
        name, *arguments, source_code=source, return_type="float32" if name in (EXCHANGE, NOTHING) else "void"
    )
