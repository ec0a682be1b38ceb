"""Rounding to integers of 8 bits without the units that convert, which take a quarter of the numbers in a cycle that
others do: the sum of a number and 1.5 * 2^23 is an integer in its last bits, rounded to nearest, ties to even."""

from __future__ import annotations

from tunehub.tir.cuda.ptx.function import INLINED, Function, function

_SHIFT = "12582912.0f"  # 1.5 * 2^23
_CLIPPED = "fminf(fmaxf(x, low), high)"


def nearest_byte(dtype: str) -> Function:
    """The integer of ``dtype`` (uint8 or int8) that is ``zero`` more than the one nearest to ``x``, not less than
    ``low`` and not more than ``high``."""
    kind, name = ("unsigned", "tunehub_nearest_byte") if dtype == "uint8" else ("signed", "tunehub_nearest_signed_byte")
    body = f"return ({kind} char)(__float_as_int({_CLIPPED} + {_SHIFT}) + zero);"
    return Function(name, f"{INLINED} {kind} char {name}(float x, float low, float high, int zero) {{ {body} }}\n")


def nearest() -> Function:
    """The integer nearest to ``x``, not less than ``low`` and not more than ``high``, in float32."""
    name = "tunehub_nearest"
    body = f"return __fsub_rn(__fadd_rn({_CLIPPED}, {_SHIFT}), {_SHIFT});"
    return Function(name, f"{INLINED} float {name}(float x, float low, float high) {{ {body} }}\n")


def quotient() -> Function:
    """``x`` by a number whose ``inverse`` is known, as IEEE 754 rounds it: P. Markstein, "Computation of elementary
    functions on the IBM RISC System/6000 processor", 1990, theorem 4. What is infinite has no rest."""
    name = "tunehub_quotient"
    return Function(
        name,
        f"""{INLINED} float {name}(float x, float divisor, float inverse) {{
  float q = __fmul_rn(x, inverse);
  float nearer = __fmaf_rn(__fmaf_rn(-q, divisor, x), inverse, q);
  return nearer == nearer ? nearer : q;
}}
""",
    )


def table_element(dtype: str) -> Function:
    """The byte at an address and a place behind it in shared memory."""
    kind, sign = ("unsigned", "") if dtype == "uint8" else ("signed", "signed_")
    name = f"tunehub_{sign}table_element"
    body = f"""  unsigned found;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(found) : "r"(table + (unsigned)place));
  return ({kind} char)found;"""
    return Function(name, f"{INLINED} {kind} char {name}(unsigned table, int place) {{\n{body}\n}}\n")


def set_table_element() -> Function:
    """Write a byte at an address and a place behind it in shared memory."""
    body = '  asm volatile("st.shared.u8 [%0], %1;" :: "r"(table + (unsigned)place), "r"(value) : "memory");'
    return function("tunehub_set_table_element", "unsigned table, int place, int value", body)
