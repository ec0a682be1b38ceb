"""Large tensors filled on their device, from a small one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunehub.models.types import Device, DeviceTensor

_ZEROS = 1 << 20


def repeated(pool: DeviceTensor, begin: int, shape: Sequence[int], device: Device) -> DeviceTensor:
    """A tensor whose flat value ``i`` is that of ``pool``, a vector on the device, at ``begin + i``, over and over."""
    made = tvm.runtime.empty(tuple(shape), str(pool.dtype), device)
    whole, width = int(np.prod(shape)), np.dtype(str(pool.dtype)).itemsize
    at, source = 0, begin
    while at < whole:
        count = min(pool.shape[0] - source, whole - at)
        part = pool._create_view((count,), str(pool.dtype), source * width)
        made._create_view((count,), str(pool.dtype), at * width).copyfrom(part)
        at, source = at + count, 0
    return made


def zeros(shape: Sequence[int], dtype: str, device: Device) -> DeviceTensor:
    """A tensor of zeros."""
    pool = np.zeros(min(_ZEROS, int(np.prod(shape))), dtype)
    return repeated(tvm.runtime.tensor(pool, device), 0, shape, device)


def on_device(array: npt.NDArray[Any], device: Device) -> DeviceTensor:
    """A copy."""
    return tvm.runtime.tensor(array, device)
