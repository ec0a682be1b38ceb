"""Weights of no meaning, for models of which only the shapes are at hand: the same in every process and runtime."""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tunehub.models.export import ModelParameter

_POOL = (1 << 22) - 3  # a prime: rows do not repeat
_SPREAD = {4: 4.6, 8: 73.9}  # of stored values around 0


def random_array(parameter: ModelParameter, bits: int = 0) -> npt.NDArray[Any]:
    """An array for a parameter, of a model whose weights have so many ``bits`` (0: plain). Norms are 1; products
    keep the size of what they get."""
    if parameter.name.endswith("norm.weight"):
        return np.ones(parameter.shape, parameter.dtype)
    if parameter.name.endswith("q_scale"):
        features = 32 * parameter.shape[-1]
        scale = (1 if "embed" in parameter.name else features**-0.5) / _SPREAD[bits]
        return np.full(parameter.shape, scale, parameter.dtype)
    size, begin = int(np.prod(parameter.shape)), zlib.crc32(parameter.name.encode()) % _POOL
    kind = parameter.dtype if parameter.dtype == "uint32" else "float32"
    scale = 1.0 if kind == "uint32" or "embed" in parameter.name else parameter.shape[-1] ** -0.5
    pool = _pool(kind, 0 if kind == "uint32" else scale, parameter.dtype)
    return np.resize(np.roll(pool, -begin), size).reshape(parameter.shape)


@cache
def _pool(kind: str, scale: float, dtype: str) -> npt.NDArray[Any]:
    rng = np.random.default_rng(0)
    if kind == "uint32":
        return rng.integers(0, 1 << 32, _POOL, dtype="uint32")
    pool: npt.NDArray[Any] = (rng.standard_normal(_POOL, dtype="float32") * np.float32(scale)).astype(dtype)
    return pool
