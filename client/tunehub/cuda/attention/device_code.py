"""What the kernels of attention do that TIR has no words for: a function of CUDA C++ for each, called by name.

The header of tensor cores (``mma.h``) is not needed: instructions are those of PTX (NVIDIA, Parallel Thread Execution
ISA, "Matrix multiply-accumulate operation using mma instruction", "ldmatrix", "cp.async"; sm_80 and newer).
"""

from __future__ import annotations

from typing import Any

_QUALIFIERS = "__forceinline__ __device__"

MULTIPLY, LOAD, LOAD_TRANSPOSED, PAIR, COPY = (
    f"tunehub_{name}" for name in ("mma_m16n8k16", "ldmatrix_x4", "ldmatrix_x4_trans", "pair", "copy_16_bytes")
)
COMMIT, WAIT, EXCHANGE, TWO, NOTHING = (
    f"tunehub_{name}" for name in ("copies_commit", "copies_wait", "lane_xor", "load_pair", "minus_infinity")
)

_SOURCES = {
    MULTIPLY: """void {name}(float* d, const unsigned* a, const unsigned* b) {{
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}""",
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
    PAIR: """void {name}(unsigned* d, float low, float high) {{
  half2 both = __floats2half2_rn(low, high);
  *d = *reinterpret_cast<unsigned*>(&both);
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
