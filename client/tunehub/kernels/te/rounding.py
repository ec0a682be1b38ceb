"""Quantising and dequantising as expressions that become vectors (why so: :mod:`tunehub.graph.quantised.rounding`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import te, tirx

from tunehub.kernels.te.scales import LIMITS, Affine

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr


def quantised(x: PrimExpr, affine: Affine, dtype: str) -> PrimExpr:
    """The integer of ``dtype`` that stands for the float32 expression ``x``; NaN becomes one of the limits."""
    steps = x if affine.scale == 1 else x / _f32(affine.scale)
    least = LIMITS[dtype][0]
    return clipped_to(rounded(te.max(steps, _f32(least - affine.zero))) + _i32(affine.zero - least), dtype)


def quantised_at_run_time(x: PrimExpr, scale: PrimExpr, zero: PrimExpr, dtype: str) -> PrimExpr:
    """The same for a scale and a zero point that are expressions."""
    least = LIMITS[dtype][0]
    steps = te.max(x / scale, _f32(least) - zero.astype("float32"))
    return clipped_to(rounded(steps) + (zero.astype("int32") - _i32(least)), dtype)


def dequantised(q: PrimExpr, affine: Affine) -> PrimExpr:
    """The float32 number that the integer ``q`` stands for."""
    steps = q.astype("int32")
    if affine.zero:
        steps = steps - _i32(affine.zero)
    return steps.astype("float32") * _f32(affine.scale)


def rounded_to_steps(x: PrimExpr, affine: Affine, dtype: str) -> PrimExpr:
    """What :func:`dequantised` makes of ``x`` as :func:`quantised`, number by number, without 8 bits between."""
    steps = x if affine.scale == 1 else x / _f32(affine.scale)
    low, high = (_f32(limit - affine.zero) for limit in LIMITS[dtype])
    return rounded(te.min(te.max(steps, low), high)).astype("float32") * _f32(affine.scale)


def rounded(x: PrimExpr) -> PrimExpr:
    """The integer of 32 bits that is nearest to ``x``, ties to even."""
    return tirx.call_llvm_pure_intrin("int32", "llvm.lrint", x)


def clipped_to(above: PrimExpr, dtype: str) -> PrimExpr:
    """The integer of ``dtype`` that is ``above`` its least one, or its largest one."""
    low, high = LIMITS[dtype]
    steps = te.min(above.astype("uint32"), tirx.const(high - low, "uint32"))
    return (steps.astype("int32") + _i32(low)).astype(dtype) if low else steps.astype(dtype)


def _f32(value: float) -> PrimExpr:
    return tirx.const(value, "float32")


def _i32(value: int) -> PrimExpr:
    return tirx.const(value, "int32")
