"""What threads read, write and exchange that TIR has no words for: PTX ISA, "setmaxnreg", "ld.shared::cluster", "mapa",
"shfl.sync"."""

from __future__ import annotations

from tunehub.tir.cuda.ptx.function import INLINED, Function, function, instruction


def setmaxnreg(count: int, *, more: bool) -> Function:
    """A warpgroup has ``count`` registers a thread from now on, more or fewer than at the launch."""
    name = f"tunehub_ring_registers_{count}_{int(more)}"
    return instruction(name, "", f"setmaxnreg.{'inc' if more else 'dec'}.sync.aligned.u32 {count};", "")


def shfl_xor() -> Function:
    """The number in float32 that the lane has whose number differs in the bits of a mask."""
    name = "tunehub_lane_xor"
    body = "return __shfl_xor_sync(0xffffffffu, value, mask);"
    return Function(name, f"{INLINED} float {name}(float value, int mask) {{ {body} }}\n")


def minus_infinity() -> Function:
    """In float32: TVM needs a header to write it."""
    name = "tunehub_minus_infinity"
    return Function(name, f"{INLINED} float {name}() {{ return __int_as_float(0xff800000); }}\n")


def power_of_two() -> Function:
    """2 to the power of a number, with zero for what float32 has no normal number for: one instruction."""
    name = "tunehub_power_of_two"
    body = 'float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;'
    return Function(name, f"{INLINED} float {name}(float x) {{ {body} }}\n")


def st_shared_2(dtype: str = "float32") -> Function:
    """Two numbers into shared memory, as no statement of TIR, which TVM would set barriers for all threads around."""
    if dtype == "int32":
        name, text = "tunehub_ring_keep_integers", "st.shared.v2.s32 [%0], {%1, %2};"
        return instruction(name, "unsigned at, int x, int y", text, '"r"(at), "r"(x), "r"(y)')
    operands = '"r"(at), "f"(x), "f"(y)'
    return instruction(
        "tunehub_ring_keep", "unsigned at, float x, float y", "st.shared.v2.f32 [%0], {%1, %2};", operands
    )


def st_shared_1() -> Function:
    """As :func:`st_shared_2`, one number."""
    return instruction("tunehub_ring_keep_one", "unsigned at, float x", "st.shared.f32 [%0], %1;", '"r"(at), "f"(x)')


def ld_shared_4(dtype: str = "float32") -> Function:
    """Four numbers from shared memory."""
    is_float = dtype == "float32"
    name = f"tunehub_ring_take{'' if is_float else '_integers'}"
    vector, kind, to = ("float4", "f32", "=f") if is_float else ("int4", "s32", "=r")
    return Function(
        name,
        f"""{INLINED} {vector} {name}(unsigned at) {{
  {vector} v;
  asm volatile("ld.shared.v4.{kind} {{%0, %1, %2, %3}}, [%4];"
               : "{to}"(v.x), "{to}"(v.y), "{to}"(v.z), "{to}"(v.w) : "r"(at) : "memory");
  return v;
}}
""",
    )


def store_4() -> Function:
    """Four numbers in float32 into memory."""
    body = "  *static_cast<float4*>(d) = make_float4(source[0], source[1], source[2], source[3]);"
    return function("tunehub_keep_four", "void* d, const float* source", body)


def ld_shared_cluster_4() -> Function:
    """Four numbers in float32 from where the block of a rank has what this one has at ``own``."""
    return function(
        "tunehub_cluster_read",
        "float* d, const void* own, int rank",
        """  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(own));
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
    : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(at) : "memory");""",
    )


def cluster_sum(blocks: int, dtype: str = "float32") -> Function:
    """The sums of four numbers at one address of the shared memory of ``blocks`` blocks of a cluster, from the one of
    the rank ``first`` on."""
    is_float = dtype == "float32"
    name = f"tunehub_cluster_sum_{blocks}{'' if is_float else '_1'}"
    number, kind, to, zero = ("float", "f32", "=f", "0.0f") if is_float else ("int", "s32", "=r", "0")
    return Function(
        name,
        f"""{INLINED} {number}4 {name}(unsigned from, int first) {{
  {number}4 found = make_{number}4({zero}, {zero}, {zero}, {zero});
#pragma unroll
  for (int i = 0; i < {blocks}; ++i) {{
    {number} x, y, z, w;
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(from), "r"(first + i));
    asm volatile("ld.shared::cluster.v4.{kind} {{%0, %1, %2, %3}}, [%4];"
                 : "{to}"(x), "{to}"(y), "{to}"(z), "{to}"(w) : "r"(address) : "memory");
    found.x += x; found.y += y; found.z += z; found.w += w;
  }}
  return found;
}}
""",
    )
