"""Weights of a folder quantised while they are read: blocks of groups by as many threads as there are cores, from the
file into a buffer that stays in a core's cache, and from there into memory of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm

from tunehub.exceptions import ModelError
from tunehub.kernels.cpu.group_quantisation import group_quantisation
from tunehub.models.device_tensors import empty_array, owned_on_device
from tunehub.models.quantization import GROUP, STORAGE, Quantization
from tunehub.models.weights import LEAST_SCALE, arrays
from tunehub.target.host import host_target, usable_threads

if TYPE_CHECKING:
    from tunehub.models.checkpoint import StoredTensor
    from tunehub.models.compiling import CompiledLanguageModel
    from tunehub.models.types import Device, DeviceTensor
    from tunehub.tir.types import PackedFunc

Array = npt.NDArray[Any]

_GROUPS = 8192  # of a block: 512 KB in 16 bits
_MOST_BYTES = 2**31  # that the function's indices reach


def folder_arrays(model: CompiledLanguageModel, folder: Path) -> Iterator[Array]:
    """A model's parameters of a folder in their order, in groups quantised as they are read. Raises ModelError."""
    with GroupReader(model.quantization) as reader:
        yield from arrays(model.parameters, model.config, model.quantization, folder, reader)


def folder_tensors(model: CompiledLanguageModel, folder: Path, device: Device) -> Iterator[DeviceTensor]:
    """The same on a device."""
    return (owned_on_device(each, device) for each in folder_arrays(model, folder))


class _Buffer:
    """What a thread reads into, and which groups it writes; both as the function takes them, too."""

    def __init__(self) -> None:
        self.raw, self.place = empty_array((_GROUPS * GROUP * 4,), "uint8"), empty_array((2,), "int32")
        self.groups = _flat(self.place, "int32")
        self.numbers = {dtype: _flat(self.raw, dtype) for dtype in ("float32", "uint32")}


class GroupReader:
    """Reads tensors of files, joined, as words and scales in groups."""

    def __init__(self, kind: Quantization) -> None:
        threads = usable_threads()
        self._kind, self._files = kind, dict[Path, int]()
        self._pool, self._buffers = ThreadPoolExecutor(threads), SimpleQueue[_Buffer]()
        for _ in range(threads):
            self._buffers.put(_Buffer())

    def __enter__(self) -> GroupReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        for each in self._files.values():
            os.close(each)

    def __call__(self, tensors: Sequence[StoredTensor]) -> tuple[Array, Array] | None:
        """Words [N, K / (32 / bits)] and scales [N, K / 32] of tensors [N, K] that lie row upon row; None for what is
        to be quantised otherwise. Raises ModelError for a file that ends before."""
        columns, rows = tensors[0].shape[-1], sum(int(np.prod(each.shape[:-1])) for each in tensors)
        words = (rows, columns * self._kind.bits // 32)
        if self._kind.e4m3 or columns % GROUP or int(np.prod(words)) * 4 >= _MOST_BYTES:
            return None
        made = empty_array(words, STORAGE), empty_array((rows, columns // GROUP), self._kind.dtype)
        into, first = [_flat(made[0], "uint8"), _flat(made[1], self._kind.dtype)], 0
        blocks: list[tuple[StoredTensor, int, int, int, int]] = []
        for each in tensors:
            count, file = int(np.prod(each.shape)) // GROUP, self._opened(each.path)
            blocks += [(each, file, at, first + at, min(_GROUPS, count - at)) for at in range(0, count, _GROUPS)]
            first += count
        list(self._pool.map(lambda block: self._quantise(into, *block), blocks))
        return made

    def _quantise(
        self, into: list[DeviceTensor], tensor: StoredTensor, file: int, at: int, first: int, count: int
    ) -> None:
        """So many groups of a tensor in an open ``file``, ``at`` first, which are ``first`` among those of all."""
        width, buffer = GROUP * np.dtype(tensor.dtype).itemsize, self._buffers.get()
        try:
            begin, raw = tensor.begin + at * width, buffer.raw[: count * width]
            if os.preadv(file, [raw.data], begin) < len(raw):
                reason, remedy = "ends within a tensor", "give the whole checkpoint"
                raise ModelError(tensor.path, reason, place="model", remedy=remedy)
            buffer.place[:] = first, count
            data = buffer.numbers["float32" if tensor.dtype == "float32" else "uint32"]
            _function(tensor.dtype, self._kind)(data, buffer.groups, *into)
        finally:
            self._buffers.put(buffer)

    def _opened(self, path: Path) -> int:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        return self._files[path]


def _flat(array: Array, dtype: str) -> DeviceTensor:
    """The memory of an array as a vector."""
    return owned_on_device(array.reshape(-1).view("uint8"), tvm.cpu())._create_view(
        (array.nbytes // np.dtype(dtype).itemsize,), dtype, 0
    )


@cache
def _function(source: str, kind: Quantization) -> PackedFunc:
    function = group_quantisation(source, kind.bits, LEAST_SCALE, kind.dtype)
    made = tvm.compile(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), host_target())
    return made["main"]
