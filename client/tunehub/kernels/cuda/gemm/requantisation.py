"""What follows products of integers, in fewer instructions: rounded and clipped by additions, divided by constants by
multiplications. Results are the same to the bit; NaN becomes the least byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tunehub.tir.cuda.ptx.rounding import nearest, nearest_byte, quotient
from tunehub.tir.index_expressions import operator_name
from tunehub.tir.nodes import element_type
from tunehub.tir.statements import const, f32
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Number, PrimExpr

_BYTES = {"uint8": (0, 255), "int8": (-128, 127)}


class _Clipped(NamedTuple):
    """``zero``, a number or an element of bytes, more than the integer nearest to ``x``, not less than ``low`` and not
    more than ``high``."""

    x: PrimExpr
    zero: Number
    low: int
    high: int


def in_fewer_instructions(value: PrimExpr) -> PrimExpr:
    """``value``, an expression or a function, with other expressions for rounded bytes and for quotients in float64."""
    import tvm_ffi
    from tvm import tirx

    return tvm_ffi.structural_map(value, [(tirx.Cast, _converted)], order="pre")


def _converted(cast: PrimExpr) -> PrimExpr:
    inner, dtype = cast.value, element_type(cast)
    if dtype in _BYTES:
        found = _clipped(inner, dtype)
        return cast if found is None else _byte(found, dtype)
    if dtype != "float32":
        return cast
    if type(inner).__name__ == "Cast" and (kind := element_type(inner)) in _BYTES:
        found = _clipped(inner.value, kind)
        return cast if found is None else _steps(found)
    quotient_of = _divided(inner)
    return cast if quotient_of is None else quotient_of


def _byte(found: _Clipped, dtype: str) -> PrimExpr:
    zero = const(found.zero) if isinstance(found.zero, int) else found.zero.astype("int32")
    return nearest_byte(dtype)(found.x, *_limits(found), zero, result=dtype)


def _steps(found: _Clipped) -> PrimExpr:
    steps: PrimExpr = nearest()(found.x, *_limits(found), result="float32")
    if not isinstance(found.zero, int):
        return steps + found.zero.astype("float32")
    return steps + f32(found.zero) if found.zero else steps


def _limits(found: _Clipped) -> tuple[PrimExpr, PrimExpr]:
    """Of ``x``."""
    if isinstance(found.zero, int):
        return f32(found.low - found.zero), f32(found.high - found.zero)
    return f32(found.low) - found.zero.astype("float32"), f32(found.high) - found.zero.astype("float32")


def _clipped(value: PrimExpr, dtype: str) -> _Clipped | None:
    """What ``value`` is where it rounds, adds a zero point, and clips to what ``dtype`` holds."""
    limits = {}
    for _ in range(2):
        kind = type(value).__name__
        limit = _integer(getattr(value, "b", None))
        if kind not in ("Min", "Max") or limit is None:
            return None
        limits[kind], value = limit, value.a
    least, most = _BYTES[dtype]
    low, high = limits.get("Max", least - 1), limits.get("Min", most + 1)
    if not least <= low <= high <= most:
        return None
    zero: Number = _zero(value.b) if type(value).__name__ == "Add" else 0
    rounded = value.a if type(value).__name__ == "Add" else value
    if zero is None or type(rounded).__name__ != "Call":
        return None
    if isinstance(zero, int) and abs(zero) > most - least:
        return None
    return _Clipped(rounded.args[0], zero, low, high) if operator_name(rounded) in ("round", "nearbyint") else None


def _zero(node: PrimExpr) -> Number | None:
    """An integer: a number, or an element of bytes that is made float32."""
    if type(node).__name__ == "Cast" and type(node.value).__name__ in LOADS and element_type(node.value) in _BYTES:
        return node.value
    return _integer(node)


def _integer(node: Number | None) -> int | None:
    if type(node).__name__ != "FloatImm":
        return None
    value = float(getattr(node, "value", 0.5))
    return int(value) if value.is_integer() else None


def _divided(value: PrimExpr) -> PrimExpr | None:
    """The quotient of a number in float32 by a constant, which was computed in float64."""
    if type(value).__name__ != "Div" or type(value.a).__name__ != "Cast" or element_type(value.a) != "float64":
        return None
    x, divisor = value.a.value, getattr(value.b, "value", None)
    if element_type(x) != "float32" or not isinstance(divisor, float) or float(np.float32(divisor)) != divisor:
        return None
    inverse = float(np.float32(1) / np.float32(divisor)) if divisor else 0.0
    return quotient()(x, f32(divisor), f32(inverse), result="float32") if 1e-30 < abs(divisor) < 1e30 else None
