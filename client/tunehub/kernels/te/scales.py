"""The arithmetic of quantised models: an integer ``q`` stands for ``scale * (q - zero)``. Pure.

Source: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018 (arXiv 1712.05877); the operators are ONNX's (QuantizeLinear, DequantizeLinear).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
_MOST_SUM = 2**31 - 1
_ON_GRID = 1e-3  # of a step, that an addend may be off the integers it was made of


class NotIntegerError(ValueError):
    """What keeps a convolution or product in floating point; the message is for reports."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine:
    """The scale and zero point of a tensor."""

    scale: float
    zero: int

    def reals(self, dtype: str) -> tuple[float, float]:
        """The least and the largest number that integers of ``dtype`` stand for."""
        low, high = LIMITS[dtype]
        return (low - self.zero) * self.scale, (high - self.zero) * self.scale

    def nearest(self, number: float, dtype: str) -> int:
        """The integer of ``dtype`` that ``number``, which may be infinite, is quantised to."""
        return int(np.clip(np.rint(number / self.scale) + self.zero, *LIMITS[dtype]))


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledSums:
    """What sums of products of integers stand for: ``scale * (sum + addend) + offset``, each for each output."""

    scale: Array
    addend: Array
    offset: Array | None = None

    @property
    def are_integers(self) -> bool:
        """Whether they stand for integers."""
        return self.offset is None and bool((self.scale == 1).all())

    def in_units(self, step: float) -> ScaledSums:
        """The same as multiples of ``step``."""
        divisor = np.float32(step)
        offset = None if self.offset is None else self.offset / divisor
        return replace(self, scale=self.scale / divisor, offset=offset)


def symmetric(weight: Array, zeros: Array, axis: int) -> Array:
    """``weight`` less its zero points as int8; NotIntegerError where that does not hold them."""
    if weight.dtype == np.int8 and not zeros.any():
        return weight
    along = [-1 if at == axis else 1 for at in range(weight.ndim)]
    shifted = weight.astype(np.int32) - zeros.astype(np.int32).reshape(along if zeros.size > 1 else ())
    low, high = LIMITS["int8"]
    if shifted.size and not (low <= shifted.min() and shifted.max() <= high):
        raise NotIntegerError("its weights less their zero point take more than 8 bits")
    return shifted.astype(np.int8)


def sums_of(data: Affine, weight: Array, scales: Array, axis: int) -> ScaledSums:
    """What the sums of ``weight``, outputs along ``axis``, times data stand for; the zero point of the data goes into
    the addend. NotIntegerError where sums may leave 32 bits."""
    addend = -data.zero * totals_of(weight, axis, data.zero)
    scale = np.float32(data.scale) * scales.astype(np.float32).reshape(-1)
    return ScaledSums(scale=np.broadcast_to(scale, addend.shape).astype(np.float32), addend=addend.astype(np.int32))


def totals_of(weight: Array, axis: int, zero: int) -> Array:
    """The sums of ``weight``, of 8 bits, for each output along ``axis``. NotIntegerError where products with unsigned
    bytes, less ``zero`` times these, may leave 32 bits."""
    others = tuple(at for at in range(weight.ndim) if at != axis)
    totals: Array = weight.sum(others, dtype=np.int64)
    most = 128 * (weight.size // max(totals.size, 1))  # of an output's weights without their signs
    if (255 + abs(zero)) * most > _MOST_SUM:  # else that need not be added up
        exact = np.abs(weight.astype(np.int64)).sum(others).max(initial=0)
        if 255 * exact + np.abs(zero * totals).max(initial=0) > _MOST_SUM:
            raise NotIntegerError("its sums may take more than 32 bits")
    return totals


def with_bias(sums: ScaledSums, bias: Array) -> ScaledSums:
    """``sums`` without an offset, with the float ``bias``, one for each output: in the addend where it is made of
    integers of their scale that are not too large, else as the offset."""
    steps = bias.astype(np.float64).reshape(-1) / sums.scale
    whole = np.rint(steps)
    total = whole + sums.addend
    near = np.abs(steps - whole) <= np.maximum(_ON_GRID, 1e-6 * np.abs(whole))
    if not near.all() or np.abs(total).max(initial=0) > _MOST_SUM / 2:
        return replace(sums, offset=bias.astype(np.float32).reshape(-1))
    return replace(sums, addend=total.astype(np.int32))


def clipped_anyway(result: Affine, dtype: str, bounds: tuple[float, float]) -> bool:
    """Whether what quantises to ``dtype`` by ``result`` is the same with and without clipping to ``bounds`` before."""
    low, high = result.reals(dtype)
    return bounds[0] <= low + 1e-6 * result.scale and high - 1e-6 * result.scale <= bounds[1]
