"""Weights of no meaning, for models of which only the shapes are at hand: the same in every process and runtime."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt

from tunehub.models.quantization import GROUP, STORAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tunehub.models.export import ModelParameter
    from tunehub.models.types import Device, DeviceTensor

_POOL = (1 << 22) - 3  # a prime: rows do not repeat
_SPREAD = {4: 4.6, 8: 73.9}  # of stored values around 0


def pool_of(parameter: ModelParameter, bits: int) -> tuple[npt.NDArray[Any], int]:
    """A vector, and where in it a parameter's values begin, of a model whose weights have so many ``bits`` (0: plain);
    they go on at the vector's begin, over and over. Norms are 1; products keep the size of what they get."""
    name, kind = parameter.name, parameter.dtype
    if name.endswith("norm.weight"):
        return _constant(kind, 1.0), 0
    if name.endswith("q_scale"):
        features = GROUP * parameter.shape[-1]
        return _constant(kind, (1.0 if "embed" in name else features**-0.5) / _SPREAD[bits]), 0
    scale = 1.0 if kind == STORAGE or "embed" in name else parameter.shape[-1] ** -0.5
    return _pool(kind, scale), zlib.crc32(name.encode()) % _POOL


def random_array(parameter: ModelParameter, bits: int = 0) -> npt.NDArray[Any]:
    """The array of a parameter, in this process's memory."""
    pool, begin = pool_of(parameter, bits)
    return np.resize(np.roll(pool, -begin), int(np.prod(parameter.shape))).reshape(parameter.shape)


def random_tensors(parameters: Sequence[ModelParameter], bits: int, device: Device) -> Iterator[DeviceTensor]:
    """The same on a device, of which each pool is copied once."""
    from tunehub.models.device_tensors import on_device, repeated

    pools: dict[int, tuple[npt.NDArray[Any], DeviceTensor]] = {}
    for parameter in parameters:
        pool, begin = pool_of(parameter, bits)
        if id(pool) not in pools:
            pools[id(pool)] = (pool, on_device(pool, device))
        yield repeated(pools[id(pool)][1], begin, parameter.shape, device)


@lru_cache
def _constant(kind: str, value: float) -> npt.NDArray[Any]:
    return np.full(_POOL, value, kind)


@lru_cache
def _pool(kind: str, scale: float) -> npt.NDArray[Any]:
    rng = np.random.default_rng(0)
    if kind == STORAGE:
        return rng.integers(0, 1 << 32, _POOL, dtype=STORAGE)
    pool: npt.NDArray[Any] = (rng.standard_normal(_POOL, dtype="float32") * np.float32(scale)).astype(kind)
    return pool
