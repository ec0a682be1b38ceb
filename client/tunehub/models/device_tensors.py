"""Tensors of a model on their device. On a CPU they lie in huge pages where Linux has some, small ones many in one:
where a hypervisor's pages are walked as well, two threads read 29 GB/s of these, 13 to 20 of small pages (a Xeon)."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tunehub.models.types import Device, DeviceTensor
    from tunehub.tir.types import Array

_ZEROS = 1 << 20
_HUGE = 2 << 20  # bytes of a page
_SHARED, _ALIGNED = 32 * _HUGE, 64  # bytes of what small tensors share, and of what each begins at a multiple of
_ALONE = 16 * _HUGE  # from so many bytes on a tensor has pages of its own: of the last the rest is lost


@contextmanager
def new_memory_in_huge_pages(device: Device) -> Iterator[None]:
    """Large memory that is mapped meanwhile for a CPU has huge pages where Linux has some, whoever maps it: TVM cannot
    be told so of a cache."""
    before = _mapped() if _is_cpu(device) else None
    yield
    if before is None:
        return
    with suppress(OSError, AttributeError):  # a system without
        advise, pages = ctypes.CDLL(None).madvise, mmap.MADV_HUGEPAGE
        for begin, end in _mapped() - before:
            if end - begin >= _HUGE:
                advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), pages)


def _mapped() -> set[tuple[int, int]]:
    """Where memory of this process alone begins and ends; nothing where the system does not say."""
    found = set[tuple[int, int]]()
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights, _, _, node, *name = line.split()
            if rights == "rw-p" and node == "0" and name in ([], ["[heap]"]):
                begin, end = (int(each, 16) for each in place.split("-"))
                found.add((begin, end))
    return found


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


def on_device(array: Array, device: Device) -> DeviceTensor:
    """A copy."""
    made = _empty(array.shape, str(array.dtype), device)
    made.copyfrom(array)
    return made


def empty_array(shape: Sequence[int], dtype: str) -> Array:
    """One in memory as :func:`owned_on_device` takes it on a CPU."""
    return _memory(int(np.prod(shape, dtype="int64")) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)


def owned_on_device(array: Array, device: Device) -> DeviceTensor:
    """An array that nobody else writes: itself on a CPU where it is of :func:`empty_array`, else a copy."""
    memory: Any = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    own = isinstance(memory, memoryview) and isinstance(memory.obj, mmap.mmap) and not array.ctypes.data % _ALIGNED
    if not own or not _is_cpu(device):
        return on_device(array, device)
    return tvm.runtime.from_dlpack(array.reshape(-1).view("uint8"))._create_view(array.shape, str(array.dtype), 0)


def _empty(shape: Sequence[int], dtype: str, device: Device) -> DeviceTensor:
    size = int(np.prod(shape, dtype="int64")) * np.dtype(dtype).itemsize
    if not _is_cpu(device) or not size:
        return tvm.runtime.empty(tuple(shape), dtype, device)
    return tvm.runtime.from_dlpack(_memory(size))._create_view(tuple(shape), dtype, 0)


def _is_cpu(device: Device) -> bool:
    return bool(device.dlpack_device_type() == tvm.cpu().dlpack_device_type())


def _memory(size: int) -> npt.NDArray[np.uint8]:
    return _huge_pages(size) if size >= _ALONE else _SMALL.part(size)


def _huge_pages(size: int) -> npt.NDArray[np.uint8]:
    """So many bytes of huge pages. Of shared memory, which ``mmap`` gives unless it is told, Linux makes none."""
    memory = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, "uint8")
    begin = -whole.ctypes.data % _HUGE
    return whole[begin : begin + size]


class _SharedMemory:
    """Small tensors lie in it one behind the other; it is freed when none of them is left."""

    def __init__(self) -> None:
        self._left, self._lock = np.empty(0, "uint8"), threading.Lock()

    def part(self, size: int) -> npt.NDArray[np.uint8]:
        """So many bytes, fewer than ``_ALONE``."""
        with self._lock:
            if len(self._left) < size:
                self._left = _huge_pages(_SHARED)
            found, self._left = self._left[:size], self._left[-(-size // _ALIGNED) * _ALIGNED :]
        return found


_SMALL = _SharedMemory()
