"""Large tensors on their device. On a CPU they lie in huge pages where Linux has some: where a hypervisor's pages are
walked as well, two threads read 29 GB/s of these and 13 GB/s of small ones (a Xeon, 2026-11-29)."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunehub.models.types import Device, DeviceTensor

_ZEROS = 1 << 20
_HUGE = 2 << 20  # bytes of a page


def repeated(pool: DeviceTensor, begin: int, shape: Sequence[int], device: Device) -> DeviceTensor:
    """A tensor whose flat value ``i`` is that of ``pool``, a vector on the device, at ``begin + i``, over and over."""
    made = _empty(shape, str(pool.dtype), device)
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
    made = _empty(array.shape, str(array.dtype), device)
    made.copyfrom(array)
    return made


def _empty(shape: Sequence[int], dtype: str, device: Device) -> DeviceTensor:
    size = int(np.prod(shape, dtype="int64")) * np.dtype(dtype).itemsize
    if device.dlpack_device_type() != tvm.cpu().dlpack_device_type() or size < _HUGE:
        return tvm.runtime.empty(tuple(shape), dtype, device)
    memory = mmap.mmap(-1, size + _HUGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, "uint8")
    begin = -whole.ctypes.data % _HUGE
    return tvm.runtime.from_dlpack(whole[begin : begin + size])._create_view(tuple(shape), dtype, 0)
