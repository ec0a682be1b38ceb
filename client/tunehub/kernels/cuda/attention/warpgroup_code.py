"""The products of attention as instructions for warpgroups: a function of CUDA C++ for each.

Source: PTX ISA 8.0 and later, "Asynchronous Warpgroup Level Matrix Instructions". Operands lie in shared memory in rows
of 128 bytes, swizzled; weights are in registers.
"""

from __future__ import annotations

from tunehub.tir.cuda.ptx import (
    COMMIT,
    FENCE,
    INLINED,
    K_STEP,
    WARPGROUPS,
    Function,
    descriptor,
    registers,
    settled,
)

_ROW = 128  # bytes of a row
_STEPS = _ROW // (2 * K_STEP)  # of an instruction in a row


def scores(kind: str, keys: int, depth: int, query_apart: int, key_apart: int) -> Function:
    """Start the products of 64 queries with ``keys`` keys, both of ``depth`` numbers in parts of 64 that are so many
    bytes apart."""
    name = f"{WARPGROUPS}_scores_{keys}_{depth}_{query_apart}_{key_apart}_{kind}"
    count = keys // 2
    held, operands = registers(count)
    body = [f"{INLINED} void {name}(float* d, unsigned q, unsigned k) {{", FENCE]
    for step in range(depth // K_STEP):
        part, inside = divmod(step, _STEPS)
        a, b = (f"{at} + {part * apart + inside * 2 * K_STEP}u" for at, apart in (("q", query_apart), ("k", key_apart)))
        body.append(
            f"""  {{
    unsigned long long dq = {descriptor(a, 16, 1024)};
    unsigned long long dk = {descriptor(b, 16, 1024)};
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {int(step > 0)}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{keys}k16.f32.{kind}.{kind} {{{held}}}, "
      "%{count}, %{count + 1}, p, 1, 1, 0, 0;\\n}}\\n"
      : {operands} : "l"(dq), "l"(dk));
  }}"""
        )
    return Function(name, "\n".join([*body, COMMIT, "}\n"]))


def weighted(kind: str, outputs: int, keys: int, apart: int) -> Function:
    """Start adding the products of weights of 64 queries, in registers, with ``outputs`` numbers of ``keys`` values.
    Parts of 64 numbers are ``apart`` bytes apart."""
    name = f"{WARPGROUPS}_weighted_{outputs}_{keys}_{apart}_{kind}"
    count = outputs // 2
    held, operands = registers(count)
    weights = ", ".join(f"%{count + i}" for i in range(4))
    body = [f"{INLINED} void {name}(float* d, const unsigned* w, unsigned v) {{", FENCE]
    for step in range(keys // K_STEP):
        own = ", ".join(f'"r"(w[{4 * step + i}])' for i in range(4))
        body.append(
            f"""  {{
    unsigned long long dv = {descriptor(f"v + {step * K_STEP * _ROW}u", apart, 1024)};
    asm volatile("wgmma.mma_async.sync.aligned.m64n{outputs}k16.f32.{kind}.{kind} {{{held}}}, "
      "{{{weights}}}, %{count + 4}, 1, 1, 1, 1;"
      : {operands} : {own}, "l"(dv));
  }}"""
        )
    return Function(name, "\n".join([*body, COMMIT, "}\n"]))


def have(under_way: int, count: int) -> Function:
    """Wait for all products of a warpgroup but the last ``under_way`` that were started; its ``count`` sums can be used
    from then on."""
    return settled(f"{WARPGROUPS}_have_{under_way}_{count}", under_way, count)


def have_weighted(under_way: int, count: int, weights: int) -> Function:
    """As :func:`have` of products with ``weights`` in registers, which are kept until then: the assembler does not see
    that products under way still read them."""
    name = f"{WARPGROUPS}_have_weighted_{under_way}_{count}_{weights}"
    waited = have(under_way, count)
    kept = "".join(f'  asm volatile("" : "+r"(w[{i}]) :: "memory");\n' for i in range(weights))
    body = waited.source[waited.source.index("\n") + 1 :].removesuffix("}\n")
    return Function(name, f"{INLINED} void {name}(float* d, unsigned* w) {{\n{body}{kept}}}\n")
