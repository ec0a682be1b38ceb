"""A model's parameters in a file, as a session takes them: joined and quantised once, then mapped into memory.

The file is a ``.safetensors`` whose tensors begin at multiples of 64 bytes where their sizes allow it: kernels read
these where they lie, and processes share the memory. What stands in a file is checked: anybody may have written it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import msgspec
import numpy as np

from tunehub.exceptions import ModelError

if TYPE_CHECKING:
    from tunehub.models.export import ModelParameter
    from tunehub.models.types import Device, DeviceTensor
    from tunehub.tir.types import Array

_ALIGNED = 64
_MOST_HEADER = 64 << 20
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint32": "U32", "float8_e4m3fn": "F8_E4M3"}
_REMEDY = "write it again: tunehub compile FOLDER --weights FILE"


class TensorPlace(msgspec.Struct, frozen=True):
    """A tensor in a file's header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def write_parameters(path: Path, parameters: Sequence[ModelParameter], arrays: Iterable[Array]) -> None:
    """Write the ``arrays`` of a model, one at a time. Raises OSError."""
    places, at = {}, 0
    for parameter in sorted(parameters, key=lambda each: _bytes(each) % _ALIGNED != 0):
        end = at + _bytes(parameter)
        places[parameter.name] = TensorPlace(_NAMES[parameter.dtype], parameter.shape, (at, end))
        at = end
    header = msgspec.json.encode(places)
    header += b" " * (-(8 + len(header)) % _ALIGNED)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for parameter, array in zip(parameters, arrays, strict=True):
            file.seek(8 + len(header) + places[parameter.name].data_offsets[0])
            file.write(np.ascontiguousarray(array).view("uint8").reshape(-1).data)


def mapped_parameters(path: Path, parameters: Sequence[ModelParameter], device: Device) -> Iterator[DeviceTensor]:
    """The tensors of a file: on a CPU what is mapped itself, elsewhere copies. Raises ModelError for a file that is
    another model's, or no file of parameters."""
    data, begin, places = mapped_tensors(path)
    for parameter in parameters:
        place = places.get(parameter.name)
        if place is None or (place.dtype, place.shape) != (_NAMES[parameter.dtype], parameter.shape):
            raise _wrong(parameter.name, f"is not there in {parameter.dtype} {list(parameter.shape)}", path)
        first, end = place.data_offsets
        if first < 0 or end - first != _bytes(parameter) or begin + end > len(data):
            raise _wrong(parameter.name, "lies outside of the file", path)
        yield _tensor(np.frombuffer(data, "uint8", end - first, begin + first), parameter, device)


def mapped_tensors(path: Path, remedy: str = _REMEDY) -> tuple[mmap.mmap, int, Mapping[str, TensorPlace]]:
    """What is mapped of a ``.safetensors``, where tensors begin in it, and their places. Raises ModelError."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error), path, remedy) from None
    size = int.from_bytes(data[:8], "little")
    if size > min(_MOST_HEADER, len(data) - 8):
        raise _wrong(path, "has no header", path, remedy)
    try:
        header = msgspec.json.decode(data[8 : 8 + size], type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)  # what PyTorch's files say of themselves
        return data, 8 + size, {name: msgspec.json.decode(each, type=TensorPlace) for name, each in header.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(path, str(error), path, remedy) from None


def _tensor(raw: Array, parameter: ModelParameter, device: Device) -> DeviceTensor:
    """Of bytes; copied where kernels cannot read them in place."""
    import tvm  # here: processes of other runtimes read checkpoints, and TVM's handlers of signals are none of theirs

    if device.dlpack_device_type() != tvm.cpu().dlpack_device_type() or raw.ctypes.data % _ALIGNED:
        return tvm.runtime.tensor(raw.view(parameter.dtype).reshape(parameter.shape), device)
    return tvm.runtime.from_dlpack(raw)._create_view(parameter.shape, parameter.dtype, 0)


def _bytes(parameter: ModelParameter) -> int:
    return int(np.prod(parameter.shape, dtype="int64")) * np.dtype(parameter.dtype).itemsize


def _wrong(value: object, reason: str, path: Path, remedy: str = _REMEDY) -> ModelError:
    return ModelError(value, reason, place=str(path), remedy=remedy)
