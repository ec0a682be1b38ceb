"""Copies from global to shared memory past the registers: PTX ISA, "Data Movement and Conversion Instructions:
cp.async"."""

from __future__ import annotations

from tunehub.tir.cuda.ptx.function import INLINED, Function, function

COPIED_BYTES = 16  # by one copy


COPIED = 8  # numbers of half precision in it


def shared_address() -> Function:
    """The 32-bit address of shared memory, whose first and last element are named: TVM cuts a buffer down to what lies
    between the elements that it sees in use."""
    name = "tunehub_shared_address"
    return Function(
        name, f"{INLINED} unsigned {name}(void* p, void*) {{ return (unsigned)__cvta_generic_to_shared(p); }}\n"
    )


def cp_async_16() -> Function:
    """Copy 16 bytes to an address in shared memory, zeros where a condition does not hold."""
    name = "tunehub_copy_16"
    return Function(
        name,
        f"""{INLINED} void {name}(unsigned to, const void* from, bool holds) {{
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(to), "l"(from), "r"(holds ? 16 : 0) : "memory");
}}
""",
    )


def cp_async_16_or(word: int) -> Function:
    """As :func:`cp_async_16`, where a condition does not hold four times a ``word`` of 32 bits."""
    name = f"tunehub_copy_{COPIED_BYTES}_{word}"
    return Function(
        name,
        f"""{INLINED} void {name}(unsigned to, const void* from, bool holds) {{
  if (holds) {{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
  }} else {{
    asm volatile("st.shared.v4.b32 [%0], {{%1, %1, %1, %1}};" :: "r"(to), "r"({word}u) : "memory");
  }}
}}
""",
    )


def cp_async_16_to() -> Function:
    """Copy 16 bytes to where a pointer says; of these so many ``bytes`` are read, the others are zeros."""
    return function(
        "tunehub_copy_16_bytes",
        "void* d, const void* source, int bytes",
        """  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(d));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(source), "r"(bytes));""",
    )


def cp_async_commit() -> Function:
    """End a group of copies."""
    name = "tunehub_copies_end"
    return Function(name, f'{INLINED} void {name}() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}\n')


def cp_async_commit_group() -> Function:
    """As :func:`cp_async_commit`, which the compiler may move past other accesses of memory."""
    name = "tunehub_copies_commit"
    return Function(name, f'{INLINED} void {name}() {{ asm volatile("cp.async.commit_group;" ::); }}\n')


def cp_async_wait(pending: int) -> Function:
    """Wait until all but the last ``pending`` groups of a thread's own copies are there for it."""
    name = f"tunehub_copies_landed_{pending}"
    return Function(
        name, f'{INLINED} void {name}() {{ asm volatile("cp.async.wait_group {pending};" ::: "memory"); }}\n'
    )


def cp_async_wait_for_all_threads(pending: int) -> Function:
    """Wait until all but the last ``pending`` groups of copies of all threads have landed."""
    name = f"tunehub_copies_met_{pending}"
    return Function(
        name,
        f"""{INLINED} void {name}() {{
  asm volatile("cp.async.wait_group {pending};" ::: "memory");
  __syncthreads();
}}
""",
    )


def cp_async_wait_all() -> Function:
    """Wait for all of a thread's own copies."""
    name = "tunehub_copies_wait"
    return Function(name, f'{INLINED} void {name}() {{ asm volatile("cp.async.wait_all;" ::: "memory"); }}\n')


def cp_async_wait_and_sync(pending: int) -> Function:
    """Wait until all but the last ``pending`` groups of copies of all threads have landed and may be read by wgmma."""
    name = f"tunehub_copies_arrived_{pending}"
    return Function(
        name,
        f"""{INLINED} void {name}() {{
  asm volatile("cp.async.wait_group {pending};" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}}
""",
    )


def round_to_tf32() -> Function:
    """Round the four numbers of a copy to TF32, to nearest: the products cut off what they do not take."""
    name = "tunehub_round_16"
    registers = ", ".join(f'"+r"({each})' for each in "xyzw")
    return Function(
        name,
        f"""{INLINED} void {name}(unsigned at) {{
  unsigned x, y, z, w;
  asm volatile("ld.shared.v4.b32 {{%0, %1, %2, %3}}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at) : "memory");
  asm volatile("cvt.rna.tf32.f32 %0, %0;\\n  cvt.rna.tf32.f32 %1, %1;\\n  cvt.rna.tf32.f32 %2, %2;\\n"
               "  cvt.rna.tf32.f32 %3, %3;" : {registers});
  asm volatile("st.shared.v4.b32 [%0], {{%1, %2, %3, %4}};" :: "r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}}
""",
    )
