"""The tensors of a folder's `*.safetensors` by Hugging Face's names, in floats or in e4m3.

Checkpoints in e4m3 have a weight's scales beside it: one, one for each row (``weight_scale``), or one for each block
(``weight_scale_inv``, as DeepSeek's have; weights are multiplied with it, whatever its name says).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt

from tunehub.exceptions import ModelError
from tunehub.models.parameter_file import TensorPlace, mapped_tensors

Array = npt.NDArray[Any]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MOST_BYTES = 64 << 20
_E4M3 = "F8_E4M3"  # in headers
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SCALES = ("weight_scale_inv", "weight_scale")
_BLOCK = 128
ONE_MODEL = "give weights and configuration of one model"
_REMEDY = "give the whole checkpoint, as transformers saves it"


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def has_weights(folder: Path) -> bool:
    """Whether weights lie in the folder."""
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One of a file: where it begins, in bytes, and its type by numpy's name."""

    path: Path
    begin: int
    shape: tuple[int, ...]
    dtype: str


class ModelWeights:
    """The tensors of a folder by Hugging Face's names. Raises ModelError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._headers: dict[str, tuple[int, Mapping[str, TensorPlace]]] = {}
        self._places = _places(folder)

    def names(self) -> list[str]:
        """Of all tensors. Raises ModelError."""
        files = sorted(set(self._places.values())) or [SINGLE]
        return [name for file in files for name in mapped_tensors(self.folder / file, _REMEDY)[2]]

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ModelError for a tensor of another shape. One that cannot be read says so when it is."""
        place = self._places.get(name, SINGLE)
        try:
            found = tuple(self._opened(place).get_slice(name).get_shape())
        except Exception:  # as in `_plain`
            return
        if found != shape:
            reason = f"has the shape {found}, and config.json says {shape}"
            raise ModelError(name, reason, place=str(self.folder), remedy=ONE_MODEL)

    def tensor(self, name: str) -> Array:
        """One in floats: in its own type, or in float32 where it is in e4m3."""
        found = self.in_e4m3(name)
        if found is None:
            return self._plain(name)
        numbers, scales = found
        if scales.ndim > 1:
            rows, columns = numbers.shape
            scales = scales.repeat(_BLOCK, 0).repeat(_BLOCK, 1)[:rows, :columns]
        return numbers.astype("float32") * (scales if scales.ndim > 1 else scales[:, None])

    def in_e4m3(self, name: str) -> tuple[Array, Array] | None:
        """Numbers [N, K] in e4m3, and their scales in float32, of rows [N] or of blocks of 128 by 128; None for a
        tensor that is in another type."""
        place = self._places.get(name, SINGLE)
        if self._dtype(name, place) != _E4M3:
            return None
        data, begin, places = mapped_tensors(self.folder / place, _REMEDY)
        own, base = places[name], name.removesuffix("weight")
        first, end = own.data_offsets
        numbers = np.frombuffer(data, ml_dtypes.float8_e4m3fn, end - first, begin + first).reshape(own.shape)
        scales = next((base + each for each in _SCALES if self._has(base + each, place)), None)
        if scales is None or numbers.ndim != 2:
            raise ModelError(name, "is in e4m3 without scales", place=str(self.folder / place), remedy=_REMEDY)
        return numbers, _scales(self._plain(scales).astype("float32"), numbers.shape, scales, self.folder / place)

    def stored(self, name: str) -> StoredTensor | None:
        """Where one in floats lies; None for another, or where there is none."""
        place = self._places.get(name, SINGLE)
        dtype = _FLOATS.get(self._dtype(name, place) or "")
        if dtype is None:
            return None
        if place not in self._headers:
            self._headers[place] = mapped_tensors(self.folder / place, _REMEDY)[1:]
        begin, places = self._headers[place]
        return StoredTensor(self.folder / place, begin + places[name].data_offsets[0], places[name].shape, dtype)

    def _dtype(self, name: str, place: str) -> str | None:
        """As headers say it; None where it cannot be read."""
        try:
            return str(self._opened(place).get_slice(name).get_dtype())
        except Exception:  # as below
            return None

    def matrix_types(self) -> set[str]:
        """Of all tensors with two axes and more, as headers name them. Raises ModelError."""
        files = sorted(set(self._places.values())) or [SINGLE]
        found = [each for file in files for each in mapped_tensors(self.folder / file, _REMEDY)[2].values()]
        return {each.dtype for each in found if len(each.shape) > 1}

    def _has(self, name: str, place: str) -> bool:
        return name in self._places if self._places else name in self._opened(place).keys()  # noqa: SIM118 - no dict

    def _plain(self, name: str) -> Array:
        place = self._places.get(name, SINGLE)
        try:
            return np.asarray(self._opened(place).get_tensor(name))
        except Exception as error:  # safetensors has a class of its own that is no OSError
            reason = f"cannot be read: {error}"
            raise ModelError(name, reason, place=str(self.folder / place), remedy=_REMEDY) from None

    def _opened(self, place: str) -> Any:
        if place not in self._files:
            from safetensors import safe_open

            self._files[place] = safe_open(str(self.folder / place), framework="np")
        return self._files[place]


def _places(folder: Path) -> Mapping[str, str]:
    """The file of each tensor; none where there is one file, which counts before an index as in transformers."""
    path = folder / INDEX
    if (folder / SINGLE).is_file() or not path.is_file():
        return {}
    remedy = "give the checkpoint's own index"
    if path.stat().st_size > _MOST_BYTES:
        raise ModelError(path, "is larger than 64 MB", place="model", remedy=remedy)
    try:
        places = msgspec.json.decode(path.read_bytes(), type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise ModelError(path, str(error), place="model", remedy=remedy) from None
    for name in set(places.values()):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(name, "is no file beside the index", place=str(path), remedy=remedy)
    return places


def _scales(found: Array, shape: tuple[int, ...], name: str, path: Path) -> Array:
    """As :meth:`ModelWeights.in_e4m3` has them. Raises ModelError, also where all outputs would be NaN."""
    if not np.isfinite(found).all() or (found < 0).any():
        reason = "has scales that are infinite, below 0 or no numbers"
        raise ModelError(name, reason, place=str(path), remedy="give a checkpoint that is not damaged")
    if found.size == 1:
        return np.resize(found, shape[0])
    if found.size == shape[0] and found.shape in ((shape[0],), (shape[0], 1)):
        return found.reshape(-1)
    if found.shape == tuple(-(-extent // _BLOCK) for extent in shape):
        return found
    reason = f"has the shape {found.shape} for weights {shape}"
    raise ModelError(name, reason, place=str(path), remedy="give one scale, one of each row, or of 128 by 128 weights")
