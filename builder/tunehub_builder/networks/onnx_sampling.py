"""What ONNX's Resize and Upsample read along an axis, and by which weights, as onnxruntime does it. No TVM.

TVM's operators know the sizes alone: coordinates go by ``in / out``, where ONNX has them by the scale of a node. They
resize what lies behind the first two axes, and know no antialiasing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tunehub_builder.networks.onnx_attributes import text_of

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]

FIRST_OPSET_WITH_COORDINATES = 11  # of Resize
WHOLE = (0.0, 1.0)
_CROPPING, _HALF = "tf_crop_and_resize", np.float32(0.5)
_REACH = {"linear": 1, "cubic": 2}
_EPSILON = np.float32(1e-5)  # by which TVM keeps floors and ceilings from the rounding of their operands


@dataclass(frozen=True, kw_only=True, slots=True)
class Resizing:
    """What the attributes of a node say."""

    mode: str
    coordinates: str = "asymmetric"
    rounding: str = "simple"  # before opset 11, which named others
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    extrapolation_value: float = 0.0
    antialias: bool = False
    policy: str = "stretch"

    @classmethod
    def of(cls, attributes: Mapping[str, Any], *, by_scales_alone: bool) -> Resizing:
        """Those of a Resize; ``by_scales_alone``: of one before opset 11, or of an Upsample."""
        text = partial(text_of, attributes)
        mode = text("mode", "nearest")
        if by_scales_alone:
            return cls(mode=mode)
        return cls(
            mode=mode,
            coordinates=text("coordinate_transformation_mode", "half_pixel"),
            rounding=text("nearest_mode", "round_prefer_floor"),
            cubic_coeff_a=attributes.get("cubic_coeff_a", -0.75),
            exclude_outside=bool(attributes.get("exclude_outside", 0)),
            extrapolation_value=attributes.get("extrapolation_value", 0.0),
            antialias=bool(attributes.get("antialias", 0)) and mode != "nearest",
            policy=text("keep_aspect_ratio_policy", "stretch"),
        )

    @property
    def crops(self) -> bool:
        """Whether it reads a region of the data, and a value of its own outside of the data."""
        return self.coordinates == _CROPPING

    @property
    def goes_by_sizes(self) -> bool:
        """Whether TVM has an operator for it, where scales are those of the sizes."""
        return not self.antialias and not self.crops and self.coordinates in _COORDINATES_BY_SIZES


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizedAxis:
    """An axis before and after; ``region``: beginning and end of what is read where a node crops, of the whole as 1."""

    size: int
    resized: int
    scale: float
    region: tuple[float, float] = WHOLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Taps:
    """What each element of a resized axis is the sum of: ``places`` of the old axis, (resized, n), by ``weights``.
    ``outside``: which elements are the extrapolation value."""

    places: npt.NDArray[np.int32]
    weights: Floats
    outside: npt.NDArray[np.bool_]


def axis_by_scale(size: int, scale: float, region: tuple[float, float] = WHOLE) -> ResizedAxis:
    """An axis that is resized by a scale, whatever part of it is read."""
    return ResizedAxis(size=size, resized=int(np.float32(scale) * np.float32(size)), scale=scale, region=region)


def axes_to_sizes(
    policy: str, sizes: Mapping[int, tuple[int, int]], regions: Mapping[int, tuple[float, float]]
) -> dict[int, ResizedAxis]:
    """Axes that are resized from one size to another, or as near to that as one scale for all comes."""
    scales = {axis: np.float32(new) / np.float32(old) for axis, (old, new) in sizes.items()}
    resized = {axis: new for axis, (_, new) in sizes.items()}
    if policy != "stretch":
        scales = dict.fromkeys(sizes, {"not_larger": min, "not_smaller": max}[policy](scales.values()))
        resized = {axis: int(np.floor(scales[axis] * np.float32(old) + _HALF)) for axis, (old, _) in sizes.items()}
    return {
        axis: ResizedAxis(size=old, resized=resized[axis], scale=float(scales[axis]), region=regions.get(axis, WHOLE))
        for axis, (old, _) in sizes.items()
    }


def taps(resizing: Resizing, axis: ResizedAxis) -> Taps:
    """What an axis is made of. Raises KeyError for a mode that is not known."""
    origins = _origins(resizing, axis)
    outside = (origins < 0) | (origins > axis.size - 1) if resizing.crops else np.zeros(axis.resized, bool)
    places, weights = _unbounded(resizing, axis, origins)
    if resizing.exclude_outside and resizing.mode != "nearest":
        weights *= (places >= 0) & (places < axis.size)
    if resizing.exclude_outside or resizing.antialias:
        weights /= np.where(outside[:, None], np.float32(1), weights.sum(1, keepdims=True))
    places = np.clip(places, 0, axis.size - 1)
    return Taps(places=places.astype("int32"), weights=weights.astype("float32"), outside=outside)


def reads_by_sizes(resizing: Resizing, axis: ResizedAxis) -> bool:
    """Whether TVM's operator reads the same elements by the same weights."""
    if not resizing.goes_by_sizes:
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        theirs = _COORDINATES_BY_SIZES[resizing.coordinates](*_numbers(axis))
    own = _origins(resizing, axis)
    if not np.isfinite(theirs).all():
        return False
    if resizing.mode != "nearest":
        return bool(np.abs(own - theirs).max(initial=0) <= _EPSILON * axis.size)
    moved = {"floor": _EPSILON, "simple": _EPSILON, "ceil": -_EPSILON}.get(resizing.rounding, np.float32(0))
    rounded = _ROUNDED["floor" if resizing.rounding == "simple" else resizing.rounding](theirs + moved)
    found = [np.clip(each, 0, axis.size - 1) for each in (_rounded(resizing, axis, own), rounded)]
    return bool(np.equal(*found).all())


def _numbers(axis: ResizedAxis) -> tuple[Floats, np.float32, np.float32]:
    """The places after resizing, and the sizes before and after."""
    return np.arange(axis.resized, dtype="float32"), np.float32(axis.size), np.float32(axis.resized)


def _origins(resizing: Resizing, axis: ResizedAxis) -> Floats:
    """Where each element lies on the old axis, in the order in which onnxruntime computes it."""
    x, old, new = _numbers(axis)
    scale, (start, end) = np.float32(axis.scale), map(np.float32, axis.region)
    if resizing.crops:
        middle = _HALF * (start + end) * (old - 1) + x
        return np.asarray(start * (old - 1) + x * (end - start) * (old - 1) / (new - 1)) if axis.resized > 1 else middle
    if resizing.coordinates == "align_corners":
        return x * (old - 1) / (new - 1) if axis.resized > 1 else x
    if scale == 1:
        return x
    return np.asarray(_COORDINATES[resizing.coordinates](x, scale, old, new))


def _unbounded(resizing: Resizing, axis: ResizedAxis, origins: Floats) -> tuple[Places, Floats]:
    """Places and weights, before and behind the axis as well."""
    if resizing.mode == "nearest":
        return _rounded(resizing, axis, origins)[:, None], np.ones((axis.resized, 1), "float32")
    reach = _REACH[resizing.mode]
    stretched = max(1 / axis.scale, 1.0) if resizing.antialias else 1.0
    first = np.floor(origins - np.float32(reach * stretched)).astype("int64") + 1
    places = first[:, None] + np.arange(int(np.ceil(2 * reach * stretched)))
    away = np.abs(places - origins[:, None].astype("float64")) / stretched
    weights = np.maximum(1 - away, 0) if reach == 1 else _cubic(away, resizing.cubic_coeff_a)
    return places, weights.astype("float32")


def _cubic(away: npt.NDArray[np.float64], a: float) -> npt.NDArray[np.float64]:
    near = ((a + 2) * away - (a + 3)) * away * away + 1
    far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
    return np.where(away < 1, near, np.where(away < 2, far, 0))


def _rounded(resizing: Resizing, axis: ResizedAxis, origins: Floats) -> Places:
    if resizing.rounding == "simple":
        return (np.ceil(origins) if axis.scale < 1 else np.trunc(origins)).astype("int64")
    return np.asarray(_ROUNDED[resizing.rounding](origins)).astype("int64")


def _symmetric(x: Floats, scale: np.float32, offset: np.float32) -> Floats:
    """Half pixels, moved: onnxruntime has these in double precision."""
    return np.asarray(offset + (x.astype("float64") + 0.5) / np.float64(scale) - 0.5, "float32")


_ROUNDED: Mapping[str, Callable[[Any], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda origins: np.ceil(origins - _HALF),
    "round_prefer_ceil": lambda origins: np.floor(origins + _HALF),
}
_COORDINATES: Mapping[str, Callable[[Any, Any, Any, Any], Any]] = {  # by the scale
    "asymmetric": lambda x, scale, _old, _new: x / scale,
    "half_pixel": lambda x, scale, _old, _new: (x + _HALF) / scale - _HALF,
    "pytorch_half_pixel": lambda x, scale, _old, new: (x + _HALF) / scale - _HALF if new > 1 else x,
    "tf_half_pixel_for_nn": lambda x, scale, _old, _new: (x + _HALF) / scale,
    "half_pixel_symmetric": lambda x, scale, old, new: _symmetric(x, scale, old / 2 * (1 - new / (scale * old))),
}
_COORDINATES_BY_SIZES: Mapping[
    str, Callable[[Any, Any, Any], Any]
] = {  # as TVM has them, where in two and three dimensions alike
    "asymmetric": lambda x, old, new: old / new * x,
    "half_pixel": lambda x, old, new: (x + _HALF) * (old / new) - _HALF,
    "pytorch_half_pixel": lambda x, old, new: (x + _HALF) * (old / new) - _HALF if new > 1 else x,
    "align_corners": lambda x, old, new: (old - 1) / (new - 1) * x,
}
