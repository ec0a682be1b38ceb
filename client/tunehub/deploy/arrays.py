"""Arrays for a library: random ones, and those of `.npz` files, which are hostile until checked.

An archive of NumPy's may hold pickled objects, which are code, or claim to be larger than any memory. So each array's
header is compared with what the library takes, and with the size that the archive states, before the array is read.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub._files.atomic import create_file
from tunehub.deploy.interface import Interface, Sizes, TensorSpec, shape_text
from tunehub.exceptions import LibraryError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tunehub.tir.types import Array

    Arrays = dict[str, npt.NDArray[Any]]

_PLACE = "--inputs"
_REMEDIES = {
    _PLACE: "write it with numpy.savez(FILE, NAME=array, …); `tunehub run MODEL.so` shows the inputs",
    "inputs": "convert it with astype, reshape or their like; `model.inputs` says what it takes",
}
_SUFFIX = ".npy"
_UNREADABLE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError)


def generator(seed: int, name: str) -> np.random.Generator:
    """The random stream of the array `name`."""
    import numpy as np

    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def random_array(seed: int, name: str, shape: Sequence[int], dtype: str) -> npt.NDArray[np.generic]:
    """Standard normal for floats, 0 or 1 for integers and bools, which are valid as token ids, positions, masks and
    indices alike. Fixed by `seed` and `name`."""
    rng = generator(seed, name)
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=tuple(shape)).astype(dtype)
    return rng.standard_normal(tuple(shape), dtype="float32").astype(dtype, copy=False)


def random_inputs(interface: Interface, sizes: Sizes, seed: int) -> Arrays:
    """An array for each input, by name. Raises LibraryError for an open dimension without a size."""
    interface.check_sizes(sizes)
    shapes = {each.name: each.shape_at(sizes) for each in interface.inputs}
    try:
        arrays = {each.name: random_array(seed, each.name, shapes[each.name], each.dtype) for each in interface.inputs}
        return {each.name: arrays[each.name] * 0 if each.rows == 1 else arrays[each.name] for each in interface.inputs}
    except (MemoryError, ValueError) as error:  # NumPy has arrays of up to 2**63 bytes
        remedy = "give smaller sizes with --dim"
        raise LibraryError(dict(sizes), f"too large: {error}", place="--dim", remedy=remedy) from None


def read_inputs(path: Path, interface: Interface) -> Arrays:
    """The arrays of an `.npz` file, by name in the order of the inputs.

    Raises LibraryError: the file is missing or no `.npz`; an array is missing, is not one of the inputs, does not fit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_names(path, {info.filename for info in archive.infolist()}, interface)
            found = {each.name: _array(archive, each, path) for each in interface.inputs}
    except LibraryError:  # which is a ValueError
        raise
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise _wrong(path, "does not fit into memory") from None
    except _UNREADABLE as error:
        raise _wrong(path, f"is not a sound .npz file: {error}") from None
    check_inputs(path, found, interface)
    return found


def check_inputs(path: object, found: Mapping[str, Array], interface: Interface, place: str = _PLACE) -> None:
    """Raise LibraryError unless each open dimension has one size in all arrays, and indices are of rows that there are:
    others would read whatever lies in memory. Arrays may be PyTorch's; `place` is where they came from."""
    sizes: dict[str, tuple[int, str]] = {}
    for each in interface.inputs:
        _check_rows(path, each, found[each.name], place)
        for extent, size in zip(each.shape or (), found[each.name].shape, strict=False):
            if isinstance(extent, str) and sizes.setdefault(extent, (size, each.name))[0] != size:
                other, name = sizes[extent]
                raise _wrong(path, f"{extent!r} is {other} in {name!r} and {size} in {each.name!r}", place)


def _check_rows(path: object, spec: TensorSpec, array: Array, place: str) -> None:
    if spec.rows is None or not math.prod(array.shape):
        return
    least, most = int(array.min()), int(array.max())
    if least < spec.least or most >= spec.rows:
        wrong = most if most >= spec.rows else least
        reason = f"array {spec.name!r} has {wrong}, which is no row of a table of {spec.rows}"
        remedy = f"give values from {spec.least} to {spec.rows - 1}"
        raise LibraryError(path, reason, place=place, remedy=remedy)


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an `.npz` file in one step; what NumPy itself has no type for (bfloat16) as float32. Raises OSError."""
    import numpy as np

    plain: dict[str, Any] = {n: a if a.dtype.isbuiltin == 1 else a.astype("float32") for n, a in arrays.items()}

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as stream:  # given a name, NumPy would put .npz behind it
            np.savez(stream, **plain)

    create_file(path, fill)


def _check_names(path: Path, names: set[str], interface: Interface) -> None:
    wanted = {f"{each.name}{_SUFFIX}" for each in interface.inputs}
    for name in sorted(wanted - names):
        raise _wrong(path, f"has no array {name.removesuffix(_SUFFIX)!r}")
    for name in sorted(names - wanted):
        raise _wrong(path, f"has {name[:80]!r}, which is no input ({', '.join(str(i) for i in interface.inputs)})")


def _array(archive: zipfile.ZipFile, spec: TensorSpec, path: Path) -> Array:
    from numpy.lib import format as npy

    info = archive.getinfo(f"{spec.name}{_SUFFIX}")
    with archive.open(info) as stream:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise _wrong(path, f"array {spec.name!r} is of version {version} of the format")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
        check_array(path, spec, shape, str(dtype.newbyteorder("=")))
        if info.file_size - stream.tell() != math.prod(shape) * dtype.itemsize:
            raise _wrong(path, f"array {spec.name!r} has not the size that its shape {shape_text(shape)} says")
    with archive.open(info) as stream:
        array: Array = npy.read_array(stream, allow_pickle=False)
        return array.astype(dtype.newbyteorder("="), order="C", copy=False)


def check_array(path: object, spec: TensorSpec, shape: tuple[int, ...], dtype: str, place: str = _PLACE) -> None:
    """Raise LibraryError for another element type, rank or extent than those of `spec`."""
    if dtype != spec.dtype:
        raise _wrong(path, f"array {spec.name!r} is {dtype}, the input is {spec.dtype}", place)
    fits = spec.shape is None or (
        len(shape) == len(spec.shape)
        and all(isinstance(w, str) or w == s for w, s in zip(spec.shape, shape, strict=True))
    )
    if not fits:
        raise _wrong(path, f"array {spec.name!r} is {shape_text(shape)}, the input {shape_text(spec.shape)}", place)


def _wrong(path: object, reason: str, place: str = _PLACE) -> LibraryError:
    return LibraryError(path, reason, place=place, remedy=_REMEDIES[place])
