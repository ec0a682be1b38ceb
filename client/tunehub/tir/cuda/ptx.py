"""What CUDA C++ a kernel for warpgroups calls: copies past the registers, products of shared memory, and waiting.

Source: PTX ISA 8.0 and later, "Asynchronous Warpgroup Level Matrix Instructions" (shared memory in the canonical
layouts with swizzling of 128 bytes) and "Data Movement and Conversion Instructions: cp.async". Each function is
inlined, and named by all that its source depends on, as TVM writes each name once into a source.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from tunehub.tir.statements import run

ARCHITECTURE = "sm_90a"  # of which alone instructions for warpgroups are
WARPGROUPS = "tunehub_wgmma"  # in each source that has instructions of sm_90a
INLINED = "__forceinline__ __device__"
FENCE = '  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
COMMIT = '  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
K_STEP = 16  # numbers of half precision, of one instruction
STEP_BYTES = 32  # of K, of one instruction
ROWS = 64  # of a warpgroup's instruction
WARPGROUP = 128  # threads
COPIED_BYTES = 16  # by one copy
COPIED = 8  # numbers of half precision in it
ROW_BYTES = 128  # of K, in shared memory
SWIZZLED_BYTES = 8 * ROW_BYTES  # a pattern of the swizzling, at whose multiples operands begin
KINDS = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}  # in PTX, of operands
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of one


class Function(NamedTuple):
    """A function of CUDA C++."""

    name: str
    source: str

    def __call__(self, *args: Any, result: str = "") -> Any:
        """A call as a statement of TIR, or as an expression of the type ``result``."""
        from tvm.backend.cuda.op import cuda_func_call

        call = cuda_func_call(self.name, *args, source_code=self.source, return_type=result or "void")
        return call if result else run(call)


class Effect(NamedTuple):
    """What a function does to memory: ``words`` of 4 bytes that it reads of each operand, ``sums`` that each thread
    has in registers. ``waits``: all threads of a block wait in it, and ``of_cluster`` those of all its blocks.
    ``blocks``: of a cluster, whose memory it reads."""

    kind: Literal["copy", "round", "multiply", "finish", "cluster_sum", "none"]
    waits: bool = False
    words: tuple[int, ...] = ()
    sums: int = 0
    of_cluster: bool = False
    blocks: int = 1

    @staticmethod
    def of(name: str) -> Effect | None:
        """Of one of these functions; None for another one."""
        found = re.fullmatch(r"tunehub_([a-z_]+)(?:_(\d+))?(?:_(\d+))?(?:_[\d_]+)?", name)
        if found is None:
            return None
        kind, first, second = found[1].rstrip("_"), int(found[2] or 0), int(found[3] or 0)
        known = {
            "copy": Effect("copy"),
            "copies_end": Effect("none"),
            "copies_landed": Effect("none"),
            "round": Effect("round"),
            "copies_arrived": Effect("none", waits=True),
            "wgmma": Effect(
                "multiply", words=(first * (ROW_BYTES // 4), second * (ROW_BYTES // 4)), sums=first * second // 128
            ),
            "wgmma_done": Effect("none"),
            "wgmma_finished": Effect("finish", sums=first),
            "cluster_waited": Effect("none", waits=True, of_cluster=True),
            "cluster_sum": Effect("cluster_sum", sums=4, blocks=first),
        }
        return known.get(kind)


def shared_address() -> Function:
    """The 32-bit address of shared memory, whose first and last element are named: TVM cuts a buffer down to what lies
    between the elements that it sees in use."""
    name = "tunehub_shared_address"
    return Function(
        name, f"{INLINED} unsigned {name}(void* p, void*) {{ return (unsigned)__cvta_generic_to_shared(p); }}\n"
    )


def copy() -> Function:
    """Bring 16 bytes from global to shared memory, zeros where a condition does not hold."""
    name = "tunehub_copy_16"
    return Function(
        name,
        f"""{INLINED} void {name}(unsigned to, const void* from, bool holds) {{
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(to), "l"(from), "r"(holds ? 16 : 0) : "memory");
}}
""",
    )


def committed() -> Function:
    """End a group of copies."""
    name = "tunehub_copies_end"
    return Function(name, f'{INLINED} void {name}() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}\n')


def arrived(under_way: int) -> Function:
    """Wait until all but the last ``under_way`` groups of copies of all threads are there for products."""
    name = f"tunehub_copies_arrived_{under_way}"
    return Function(
        name,
        f"""{INLINED} void {name}() {{
  asm volatile("cp.async.wait_group {under_way};" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}}
""",
    )


def landed(under_way: int) -> Function:
    """Wait until all but the last ``under_way`` groups of a thread's own copies are there for it."""
    name = f"tunehub_copies_landed_{under_way}"
    return Function(
        name, f'{INLINED} void {name}() {{ asm volatile("cp.async.wait_group {under_way};" ::: "memory"); }}\n'
    )


def rounded() -> Function:
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


def multiplied(kind: str, columns: int, rows: int, b_turned: bool, a_apart: int, b_apart: int) -> Function:
    """Start the products of a warpgroup, of operands of a ``kind`` of PTX: ``rows`` (64 or 128) by ``columns`` by
    128 bytes of K.

    A is K-major, as is B unless ``b_turned``, which TF32 cannot be. ``a_apart``, ``b_apart``: bytes between 64 rows of
    A, and between 64 columns of B that is turned.
    """
    name = f"{WARPGROUPS}_{rows}_{columns}_{int(b_turned)}_{a_apart}_{b_apart}_{[*KINDS.values()].index(kind)}"
    body = [f"{INLINED} void {name}(float* d, unsigned a, unsigned b) {{", FENCE]
    count, depth = columns // 2, 8 if kind == "tf32" else 16
    turned = "" if kind == "tf32" else f", 0, {int(b_turned)}"
    for step in range(ROW_BYTES // STEP_BYTES):
        for part in range(rows // ROWS):
            held, operands = registers(count, part * count)
            a = f"{step * STEP_BYTES + part * a_apart}u"
            b = f"{step * (depth * ROW_BYTES if b_turned else STEP_BYTES)}u"
            body.append(
                f"""  {{
    unsigned long long da = {descriptor(f"a + {a}", 16, 1024)};
    unsigned long long db = {descriptor(f"b + {b}", b_apart if b_turned else 16, 1024)};
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind} {{{held}}}, "
      "%{count}, %{count + 1}, p, 1, 1{turned};\\n}}\\n"
      : {operands} : "l"(da), "l"(db));
  }}"""
            )
    return Function(name, "\n".join([*body, COMMIT, "}\n"]))


def registers(count: int, first: int = 0) -> tuple[str, str]:
    """What an instruction calls ``count`` sums of a thread, and these as operands, from the number ``first`` on."""
    return ", ".join(f"%{i}" for i in range(count)), ", ".join(f'"+f"(d[{first + i}])' for i in range(count))


def descriptor(address: str, leading: int, stride: int) -> str:
    """Of an operand in shared memory with rows of 128 bytes, in CUDA C++: where it starts, and bytes between its parts
    along the leading dimension and along the other."""
    constant = (1 << 62) | ((stride >> 4) << 32) | ((leading >> 4) << 16)
    return f"{constant:#x}ull | ((({address}) & 0x3FFFFu) >> 4)"


def waited(under_way: int) -> Function:
    """Wait for all products of a warpgroup but the last ``under_way`` that were started."""
    name = f"{WARPGROUPS}_done_{under_way}"
    return Function(
        name,
        f'{INLINED} void {name}() {{ asm volatile("wgmma.wait_group.sync.aligned {under_way};" ::: "memory"); }}\n',
    )


def finished(count: int) -> Function:
    """Wait for all products of a warpgroup, whose ``count`` sums can be used from then on."""
    return settled(f"{WARPGROUPS}_finished_{count}", 0, count)


def settled(name: str, under_way: int, count: int) -> Function:
    """Wait for all products of a warpgroup but the last ``under_way`` that were started; its ``count`` sums can be used
    from then on."""
    lines = [f'  asm volatile("wgmma.wait_group.sync.aligned {under_way};" ::: "memory");']
    lines += [f'  asm volatile("" : "+f"(d[{i}]) :: "memory");' for i in range(count)]
    return Function(name, "\n".join([f"{INLINED} void {name}(float* d) {{", *lines, "}\n"]))


def cluster_waited() -> Function:
    """Wait for all threads of a cluster of blocks, whose shared memory can be read from then on."""
    name = "tunehub_cluster_waited"
    return Function(
        name,
        f"""{INLINED} void {name}() {{
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}}
""",
    )


def cluster_sum(blocks: int) -> Function:
    """The sums of four numbers at one address of the shared memory of ``blocks`` blocks of a cluster, from the one of
    the rank ``first`` on."""
    name = f"tunehub_cluster_sum_{blocks}"
    return Function(
        name,
        f"""{INLINED} float4 {name}(unsigned from, int first) {{
  float4 found = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < {blocks}; ++i) {{
    float x, y, z, w;
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(from), "r"(first + i));
    asm volatile("ld.shared::cluster.v4.f32 {{%0, %1, %2, %3}}, [%4];"
                 : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(address) : "memory");
    found.x += x; found.y += y; found.z += z; found.w += w;
  }}
  return found;
}}
""",
    )
