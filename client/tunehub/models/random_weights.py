"""Weights of no meaning, for models of which only the shapes are at hand: the same in every process and runtime."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np

from tunehub.kernels.te.e4m3 import LARGEST
from tunehub.models.quantization import E4M3, GROUP, STORAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tunehub.models.export import ModelParameter
    from tunehub.models.quantization import Quantization
    from tunehub.models.types import Device, DeviceTensor
    from tunehub.tir.types import Array

_POOL = (1 << 22) - 3  # a prime: rows do not repeat
_SPREAD = {4: 4.6, 8: 73.9}  # of stored values around 0
_SPREAD_OF_E4M3, _SCALE_OF_E4M3 = 64.0, 2.0**-12  # of tables; of rows, whose weights have what is left in their numbers


def pool_of(parameter: ModelParameter, kind: Quantization | None) -> tuple[Array, int]:
    """A vector, and where in it a parameter's values begin, of a model of that ``kind`` (None: plain weights);
    they go on at the vector's begin, over and over. Norms are 1; products keep the size of what they get."""
    name, dtype, table = parameter.name, parameter.dtype, "embed" in parameter.name
    if name.endswith("norm.weight"):
        return _constant(dtype, 1.0), 0
    begin = zlib.crc32(name.encode()) % _POOL
    if kind is not None and kind.e4m3 and name.endswith(("q_weight", "q_scale")):
        if name.endswith("q_scale"):
            return _constant(dtype, 1 / _SPREAD_OF_E4M3 if table else _SCALE_OF_E4M3), 0
        return _pool(dtype, _SPREAD_OF_E4M3 if table else parameter.shape[-1] ** -0.5 / _SCALE_OF_E4M3), begin
    if kind is not None and name.endswith("q_scale"):
        features = GROUP * parameter.shape[-1]
        return _constant(dtype, (1.0 if table else features**-0.5) / _SPREAD[kind.bits]), 0
    scale = 1.0 if dtype == STORAGE or table else parameter.shape[-1] ** -0.5
    return _pool(dtype, scale, "" if kind is None else kind.stored), begin


def random_array(parameter: ModelParameter, kind: Quantization | None = None) -> Array:
    """The array of a parameter, in this process's memory."""
    pool, begin = pool_of(parameter, kind)
    return np.resize(np.roll(pool, -begin), int(np.prod(parameter.shape))).reshape(parameter.shape)


def random_tensors(
    parameters: Sequence[ModelParameter], kind: Quantization | None, device: Device
) -> Iterator[DeviceTensor]:
    """The same on a device, of which each pool is copied once."""
    from tunehub.models.device_tensors import on_device, repeated

    pools: dict[int, tuple[Array, DeviceTensor]] = {}
    for parameter in parameters:
        pool, begin = pool_of(parameter, kind)
        if id(pool) not in pools:
            pools[id(pool)] = (pool, on_device(pool, device))
        yield repeated(pools[id(pool)][1], begin, parameter.shape, device)


@lru_cache
def _constant(kind: str, value: float) -> Array:
    return np.full(_POOL, value, kind)


@lru_cache
def _pool(kind: str, scale: float, stored: str = "") -> Array:
    """Of ``kind``, with numbers that the type in which they are ``stored`` has."""
    rng = np.random.default_rng(0)
    if kind == STORAGE:
        return rng.integers(0, 1 << 32, _POOL, dtype=STORAGE)
    numbers = rng.standard_normal(_POOL, dtype="float32") * np.float32(scale)
    pool: Array = (np.clip(numbers, -LARGEST, LARGEST) if kind == E4M3 else numbers).astype(stored or kind)
    return pool.astype(kind, copy=False)
