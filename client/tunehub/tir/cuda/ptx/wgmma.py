"""Products of a warpgroup: PTX ISA 8.0 and later, "Asynchronous Warpgroup Level Matrix Instructions". Operands lie in
shared memory in rows of 128 bytes, in the canonical layouts with swizzling of 128 bytes."""

from __future__ import annotations

from typing import NamedTuple

from tunehub.tir.cuda.ptx.function import INLINED, Function

ARCHITECTURE = "sm_90a"  # of which alone instructions for warpgroups are
WARPGROUPS = "tunehub_wgmma"  # in each source that has instructions of sm_90a
_FENCE = '  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
_COMMIT = '  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
K_STEP = 16  # numbers of half precision, of one instruction
STEP_BYTES = 32  # of K, of one instruction
ROWS = 64  # of a warpgroup's instruction
WARPGROUP = 128  # threads
ROW_BYTES = 128  # of K, in shared memory
SWIZZLED_BYTES = 8 * ROW_BYTES  # a pattern of the swizzling, at whose multiples operands begin
KINDS = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}  # in PTX, of operands
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of one
BYTE_KINDS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8"}  # as KINDS, of 8 bits
_STEPS = ROW_BYTES // STEP_BYTES  # of an instruction in a row


def wgmma(kind: str, columns: int, rows: int, b_transposed: bool, a_apart: int, b_apart: int) -> Function:
    """Start the products of a warpgroup, of operands of a ``kind`` of PTX: ``rows`` (64 or 128) by ``columns`` by 128
    bytes of K.

    A is K-major, as is B unless ``b_transposed``, which TF32 cannot be. ``a_apart``, ``b_apart``: bytes between 64 rows
    of A, and between 64 columns of B that is transposed.
    """
    name = f"{WARPGROUPS}_{rows}_{columns}_{int(b_transposed)}_{a_apart}_{b_apart}_{[*KINDS.values()].index(kind)}"
    body = [f"{INLINED} void {name}(float* d, unsigned a, unsigned b) {{", _FENCE]
    count, depth = columns // 2, 8 if kind == "tf32" else 16
    transposed = "" if kind == "tf32" else f", 0, {int(b_transposed)}"
    for step in range(ROW_BYTES // STEP_BYTES):
        for part in range(rows // ROWS):
            held, operands = accumulators(count, part * count)
            a = f"{step * STEP_BYTES + part * a_apart}u"
            b = f"{step * (depth * ROW_BYTES if b_transposed else STEP_BYTES)}u"
            body.append(
                f"""  {{
    unsigned long long da = {descriptor(f"a + {a}", 16, 1024)};
    unsigned long long db = {descriptor(f"b + {b}", b_apart if b_transposed else 16, 1024)};
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind} {{{held}}}, "
      "%{count}, %{count + 1}, p, 1, 1{transposed};\\n}}\\n"
      : {operands} : "l"(da), "l"(db));
  }}"""
            )
    return Function(name, "\n".join([*body, _COMMIT, "}\n"]))


def wgmma_of_bytes(a: str, b: str, columns: int, rows: int, *, fresh: bool = False) -> Function:
    """As :func:`wgmma`, of K-major operands of the types ``a`` and ``b``, of :data:`BYTE_KINDS`: floats, or integers,
    whose accumulators are integers of 32 bits. ``fresh``: what the accumulators had is lost."""
    numbers, kinds = [*BYTE_KINDS], (BYTE_KINDS[a], BYTE_KINDS[b])
    name = f"{WARPGROUPS}_bytes_{rows}_{columns}_{numbers.index(a)}_{numbers.index(b)}_{int(fresh)}"
    count, total = columns // 2, accumulated(kinds[0])
    body = [f"{INLINED} void {name}({total.pointed} d, unsigned a, unsigned b) {{", _FENCE]
    for step in range(_STEPS):
        for part in range(rows // ROWS):
            held, operands = accumulators(count, part * count, total.constraint)
            at = step * STEP_BYTES + part * ROWS * ROW_BYTES
            body.append(
                f"""  {{
    unsigned long long da = {descriptor(f"a + {at}u", 16, 1024)};
    unsigned long long db = {descriptor(f"b + {step * STEP_BYTES}u", 16, 1024)};
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {int(step > 0 or not fresh)}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k32.{total.kind}.{kinds[0]}.{kinds[1]} {{{held}}}, "
      "%{count}, %{count + 1}, p{total.signs};\\n}}\\n"
      : {operands} : "l"(da), "l"(db));
  }}"""
            )
    return Function(name, "\n".join([*body, _COMMIT, "}\n"]))


class Accumulated(NamedTuple):
    """Accumulators: their ``kind`` in PTX, how a pointer to them is declared and what an operand of ``asm`` is, and
    what an instruction has for the signs of operands."""

    kind: str
    pointed: str
    constraint: str
    signs: str


def accumulated(kind: str) -> Accumulated:
    """What products of operands of a ``kind`` of PTX, or of a type of TVM, are added up in."""
    if kind in ("s8", "u8", "int32"):
        return Accumulated("s32", "int*", "+r", "")
    return Accumulated("f32", "float*", "+f", ", 1, 1")


def wgmma_fresh(kind: str, columns: int, depth: int, a_apart: int, b_apart: int) -> Function:
    """Start the products of 64 rows of A with ``columns`` of B, both of ``depth`` numbers in parts of 64 that are so
    many bytes apart; what the accumulators had is lost."""
    name = f"{WARPGROUPS}_scores_{columns}_{depth}_{a_apart}_{b_apart}_{kind}"
    count = columns // 2
    held, operands = accumulators(count)
    body = [f"{INLINED} void {name}(float* d, unsigned q, unsigned k) {{", _FENCE]
    for step in range(depth // K_STEP):
        part, inside = divmod(step, _STEPS)
        a, b = (f"{at} + {part * apart + inside * 2 * K_STEP}u" for at, apart in (("q", a_apart), ("k", b_apart)))
        body.append(
            f"""  {{
    unsigned long long dq = {descriptor(a, 16, 1024)};
    unsigned long long dk = {descriptor(b, 16, 1024)};
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {int(step > 0)}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{held}}}, "
      "%{count}, %{count + 1}, p, 1, 1, 0, 0;\\n}}\\n"
      : {operands} : "l"(dq), "l"(dk));
  }}"""
        )
    return Function(name, "\n".join([*body, _COMMIT, "}\n"]))


def wgmma_from_registers(kind: str, columns: int, depth: int, apart: int) -> Function:
    """Start adding the products of 64 rows of A, in registers, with ``columns`` of B, of ``depth`` numbers. B is
    transposed; parts of 64 of its columns are ``apart`` bytes apart."""
    name = f"{WARPGROUPS}_weighted_{columns}_{depth}_{apart}_{kind}"
    count = columns // 2
    held, operands = accumulators(count)
    fragments = ", ".join(f"%{count + i}" for i in range(4))
    body = [f"{INLINED} void {name}(float* d, const unsigned* w, unsigned v) {{", _FENCE]
    for step in range(depth // K_STEP):
        own = ", ".join(f'"r"(w[{4 * step + i}])' for i in range(4))
        body.append(
            f"""  {{
    unsigned long long dv = {descriptor(f"v + {step * K_STEP * ROW_BYTES}u", apart, 1024)};
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{held}}}, "
      "{{{fragments}}}, %{count + 4}, 1, 1, 1, 1;"
      : {operands} : {own}, "l"(dv));
  }}"""
        )
    return Function(name, "\n".join([*body, _COMMIT, "}\n"]))


def from_registers(kind: str, count: int) -> str:
    """CUDA code of two functions for ``count`` accumulators: one starts the products of 64 rows of A, in registers,
    with B in shared memory, 16 numbers deep; the other waits for them."""
    held, operands = accumulators(count)
    own = ", ".join(f"%{count + i}" for i in range(4))
    return f"""
{INLINED} void {WARPGROUPS}_from_registers(float (&d)[{count}], const unsigned (&a)[4], unsigned long long b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.{kind}.{kind} {{{held}}}, {{{own}}}, %{count + 4}, "
               "1, 1, 1, 0;" : {operands} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}

// Wait for all products but the last LEFT groups; without any left sums can be used.
template <int LEFT>
{INLINED} void wait_for_products(float (&d)[{count}]) {{
  asm volatile("wgmma.wait_group.sync.aligned %{count};" : {operands} : "n"(LEFT) : "memory");
}}
"""


def accumulators(count: int, first: int = 0, constraint: str = "+f") -> tuple[str, str]:
    """What an instruction calls ``count`` accumulators of a thread, and these as operands, from the number ``first``
    on."""
    held = ", ".join(f'"{constraint}"(d[{first + i}])' for i in range(count))
    return ", ".join(f"%{i}" for i in range(count)), held


def descriptor(address: str, leading: int, stride: int) -> str:
    """Of an operand in shared memory with rows of 128 bytes, in CUDA C++: where it starts, and bytes between its parts
    along the leading dimension and along the other."""
    constant = (1 << 62) | ((stride >> 4) << 32) | ((leading >> 4) << 16)
    return f"{constant:#x}ull | ((({address}) & 0x3FFFFu) >> 4)"


def wgmma_wait(pending: int) -> Function:
    """Wait for all products of a warpgroup but the last ``pending`` that were started."""
    name = f"{WARPGROUPS}_done_{pending}"
    return Function(
        name,
        f'{INLINED} void {name}() {{ asm volatile("wgmma.wait_group.sync.aligned {pending};" ::: "memory"); }}\n',
    )


def wgmma_finish(count: int, dtype: str = "float32") -> Function:
    """Wait for all products of a warpgroup, whose ``count`` accumulators of a ``dtype`` can be used from then on."""
    return _wait(f"{WARPGROUPS}_finished_{count}{'' if dtype == 'float32' else '_1'}", 0, count, dtype)


def wgmma_wait_for(pending: int, count: int) -> Function:
    """Wait for all products of a warpgroup but the last ``pending`` that were started; its ``count`` accumulators can
    be used from then on."""
    return _wait(f"{WARPGROUPS}_have_{pending}_{count}", pending, count)


def wgmma_wait_for_registers(pending: int, count: int, fragments: int) -> Function:
    """As :func:`wgmma_wait_for` of products with ``fragments`` in registers, which are kept until then: the assembler
    does not see that products under way still read them."""
    name = f"{WARPGROUPS}_have_weighted_{pending}_{count}_{fragments}"
    waited = wgmma_wait_for(pending, count)
    kept = "".join(f'  asm volatile("" : "+r"(w[{i}]) :: "memory");\n' for i in range(fragments))
    body = waited.source[waited.source.index("\n") + 1 :].removesuffix("}\n")
    return Function(name, f"{INLINED} void {name}(float* d, unsigned* w) {{\n{body}{kept}}}\n")


def _wait(name: str, pending: int, count: int, dtype: str = "float32") -> Function:
    """Wait for all products of a warpgroup but the last ``pending`` that were started; its ``count`` accumulators of a
    ``dtype`` can be used from then on."""
    total = accumulated(dtype)
    lines = [f'  asm volatile("wgmma.wait_group.sync.aligned {pending};" ::: "memory");']
    lines += [f'  asm volatile("" : "{total.constraint}"(d[{i}]) :: "memory");' for i in range(count)]
    return Function(name, "\n".join([f"{INLINED} void {name}({total.pointed} d) {{", *lines, "}\n"]))
