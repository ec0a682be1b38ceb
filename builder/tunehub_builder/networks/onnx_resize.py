"""ONNX's Resize and Upsample as onnxruntime computes them: by TVM's operator where that does, else along one axis after
the other (:mod:`tunehub_builder.networks.onnx_sampling`). What can be neither is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te

from tunehub.tir.nodes import constant_array, is_constant, plain_extent, same_extent, shape_of, tensor_type
from tunehub_builder.networks.exceptions import UnfitNodeError
from tunehub_builder.networks.onnx_attributes import node_name
from tunehub_builder.networks.onnx_sampling import (
    FIRST_OPSET_WITH_COORDINATES,
    WHOLE,
    ResizedAxis,
    Resizing,
    Taps,
    axes_to_sizes,
    axis_by_scale,
    reads_by_sizes,
    taps,
)

OPERATORS = ("Resize", "Upsample")
_MOST = 1 << 24  # elements of an axis: coordinates are float32
_UNROLLED = 4
_RANKS = (3, 4, 5)  # that TVM's operators have

Regions = Mapping[int, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class ResizeNode:
    """A Resize or Upsample. ``constant``: an input as the constant that it is, if it is one; ``by_sizes``: TVM's
    converter."""

    operator: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any]
    opset: int
    constant: Callable[[Any], Any]
    by_sizes: Callable[[Sequence[Any], Mapping[str, Any]], Any]

    def converted(self, builder: Any) -> Any:
        """The expression. Raises UnfitNodeError, which names the node."""
        try:
            return self._converted(builder)
        except (KeyError, ValueError) as error:
            reason = f"{error} is not known" if isinstance(error, KeyError) else str(error)
            raise UnfitNodeError(self.operator, node_name(self.attributes), reason) from error

    @property
    def _by_scales_alone(self) -> bool:
        return self.operator == "Upsample" or self.opset < FIRST_OPSET_WITH_COORDINATES

    def _converted(self, builder: Any) -> Any:
        extents, resizing = self._extents(), Resizing.of(self.attributes, by_scales_alone=self._by_scales_alone)
        roi, scales, sizes = map(self._given, self._operands())
        axes = [int(axis) % len(extents) for axis in self.attributes.get("axes") or range(len(extents))]
        if resizing.crops and roi is not None and not is_constant(roi):
            return self._cropped(sizes)
        regions = _regions(roi, axes) if resizing.crops else {}
        if scales is not None:
            static, opened = self._by_scales(resizing, dict(zip(axes, _numbers(scales, axes), strict=True)), regions)
        else:
            static, opened = self._to_sizes(resizing, dict(zip(axes, _numbers(sizes, axes), strict=True)), regions)
        return self._resized(builder, resizing, static, opened)

    def _extents(self) -> tuple[Any, ...]:
        extents = shape_of(self.inputs[0])
        if extents is None:
            raise ValueError("nothing is known of the shape of its data")
        return extents

    def _operands(self) -> list[Any]:
        """The region, the scales and the sizes."""
        given = [*list(self.inputs)[1:], None, None, None][:3]
        if not self._by_scales_alone:
            return given
        scales = self.attributes.get("scales")
        return [None, given[0] if scales is None else relax.const(np.array(scales, "float32")), None]

    def _given(self, value: Any) -> Any:
        found = None if value is None else self.constant(value)
        return None if is_constant(found) and not constant_array(found).size else found

    def _by_scales(
        self, resizing: Resizing, scales: Mapping[int, Any], regions: Regions
    ) -> tuple[dict[int, ResizedAxis], dict[int, Any]]:
        """Axes that are resized, and the new extents of those that are open."""
        static, opened, extents = dict[int, ResizedAxis](), dict[int, Any](), self._extents()
        for axis, scale in scales.items():
            if not 0 < scale < np.inf:
                raise ValueError(f"the scale {scale} of axis {axis} is no positive number")
            if isinstance(extents[axis], int):
                static[axis] = axis_by_scale(extents[axis], scale, regions.get(axis, WHOLE))
            elif scale != int(scale):
                raise ValueError(f"the scale {scale:g} of axis {axis}, whose size is open, may give no whole size")
            elif scale != 1 or resizing.crops:
                opened[axis] = extents[axis] * int(scale)
        return static, opened

    def _to_sizes(
        self, resizing: Resizing, sizes: Mapping[int, Any], regions: Regions
    ) -> tuple[dict[int, ResizedAxis], dict[int, Any]]:
        """As :meth:`_by_scales`."""
        extents = self._extents()
        known = {a: e for a, e in sizes.items() if isinstance(e, int) and isinstance(extents[a], int)}
        opened = {a: e for a, e in sizes.items() if a not in known and not same_extent(e, extents[a])}
        if resizing.policy != "stretch" and len(known) < len(sizes):
            raise ValueError(f"keep_aspect_ratio_policy is {resizing.policy}, and axes are open")
        if any(size < 1 for size in known.values()):
            raise ValueError(f"the sizes {[*known.values()]} are not all positive")
        return axes_to_sizes(resizing.policy, {a: (extents[a], e) for a, e in known.items()}, regions), opened

    def _resized(
        self, builder: Any, resizing: Resizing, static: Mapping[int, ResizedAxis], opened: Mapping[int, Any]
    ) -> Any:
        changed = {axis: each for axis, each in static.items() if _changes(resizing, axis, each)}
        if not opened and not resizing.crops and all(each.resized == each.size for each in changed.values()):
            return self.inputs[0]  # whatever the scales: onnxruntime copies
        behind = len(self._extents()) in _RANKS and all(axis > 1 for axis in (*changed, *opened))
        one = resizing.coordinates == "align_corners" and 1 in self._extents()[2:]  # TVM would divide by zero
        # TVM lets integers wrap around, and divides by zero along three axes.
        cubic = resizing.mode == "cubic" and (
            len(self._extents()) > 4 or "int" in str(tensor_type(self.inputs[0]).dtype)
        )
        fits = resizing.goes_by_sizes and behind and not one and not cubic
        if fits and all(reads_by_sizes(resizing, each) for each in changed.values()):
            return self._whole(resizing, {**{axis: each.resized for axis, each in changed.items()}, **opened})
        if opened:
            raise ValueError(f"axis {min(opened)} is open, and no operator of TVM's resizes it in this way")
        return _sampled(builder, self.inputs[0], resizing, {a: taps(resizing, each) for a, each in changed.items()})

    def _whole(self, resizing: Resizing, resized: Mapping[int, Any]) -> Any:
        """By TVM's operator."""
        sizes = relax.ShapeExpr([resized.get(axis, extent) for axis, extent in enumerate(self._extents())])
        named = {"coordinate_transformation_mode": resizing.coordinates.encode()}
        rounding = {"nearest_mode": b"floor"} if resizing.rounding == "simple" else {}
        return self.by_sizes([self.inputs[0], None, None, sizes], {**self.attributes, **named, **rounding})

    def _cropped(self, sizes: Any) -> Any:
        """A region that is known when the model runs alone: by TVM, which reads it for what is behind the first two
        axes."""
        extents = self._extents()
        axes = range(len(extents))
        wanted = None if sizes is None else _numbers(sizes, axes)
        plain = not {"axes", "keep_aspect_ratio_policy", "antialias"} & self.attributes.keys()
        if not plain or wanted is None or not all(map(same_extent, extents[:2], wanted[:2])):
            raise ValueError("it crops by an input of the model")
        return self.by_sizes([self.inputs[0], self.inputs[1], None, sizes], self.attributes)


def _changes(resizing: Resizing, axis: int, each: ResizedAxis) -> bool:
    """Whether an axis is resized or cropped. Raises ValueError for what runtimes take for different things."""
    if not 0 < each.resized < _MOST:
        raise ValueError(f"axis {axis} of {each.size} would have {each.resized} elements")
    cropped = resizing.crops and each.region != WHOLE
    if cropped and each.scale == 1:
        raise ValueError(f"axis {axis} is cropped and not resized, which runtimes take for different things")
    return cropped or each.resized != each.size or (each.scale != 1 and not resizing.antialias)


def _numbers(given: Any, axes: Sequence[int]) -> list[Any]:
    """The scales or sizes of the axes; open sizes are TVM's expressions."""
    if isinstance(given, relax.ShapeExpr):
        found = [plain_extent(each) for each in given.values]
    elif is_constant(given):
        found = constant_array(given).reshape(-1).tolist()
    else:
        raise ValueError("its scales or sizes are computed when the model runs")
    if len(found) != len(axes):
        raise ValueError(f"{len(found)} scales or sizes are given for {len(axes)} axes")
    return found


def _regions(roi: Any, axes: Sequence[int]) -> Regions:
    if roi is None:
        raise ValueError("it crops, and has no region")
    found = constant_array(roi).astype("float64").reshape(-1).tolist()
    if len(found) != 2 * len(axes):
        raise ValueError(f"its region has {len(found)} numbers for {len(axes)} axes")
    return {axis: (found[at], found[at + len(axes)]) for at, axis in enumerate(axes)}


def _sampled(builder: Any, data: Any, resizing: Resizing, found: Mapping[int, Taps]) -> Any:
    """``data`` along one axis after the other; what lies outside is the extrapolation value."""
    kind, chosen = str(tensor_type(data).dtype), resizing.mode == "nearest"
    wide = "float64" if kind == "float64" else "float32"
    moved = data if chosen else builder.normalize(relax.op.astype(data, wide))
    for axis, each in found.items():
        weights = [] if chosen else [relax.const(each.weights.astype(wide))]
        moved = builder.emit_te(_along(axis), moved, relax.const(each.places), *weights, primfunc_name_hint="resize")
    if "int" in kind and (resizing.mode == "cubic" or resizing.antialias):  # which goes beyond what it is made of
        limits = np.iinfo(kind)
        moved = builder.normalize(relax.op.clip(relax.op.round(moved), float(limits.min), float(limits.max)))
    moved = moved if chosen else builder.normalize(relax.op.astype(moved, kind))
    for axis, each in found.items():
        if each.outside.any():
            shape = [-1 if at == axis else 1 for at in range(len(shape_of(data) or ()))]
            value = relax.const(np.array(resizing.extrapolation_value, kind))
            moved = builder.normalize(relax.op.where(relax.const(each.outside.reshape(shape)), value, moved))
    return moved


def _along(axis: int) -> Callable[..., Any]:
    """The function of data, places and, unless elements are chosen, weights."""

    def resized(data: Any, places: Any, weights: Any = None) -> Any:
        many = int(places.shape[1])
        number = te.reduce_axis((0, many), name="tap")

        def tap(at: Sequence[Any], which: Any) -> Any:
            read = data(*at[:axis], places(at[axis], which), *at[axis + 1 :])
            return read if weights is None else read * weights(at[axis], which)

        def element(*at: Any) -> Any:
            if many > _UNROLLED:
                return te.sum(tap(at, number), axis=number)
            first, *others = (tap(at, which) for which in range(many))
            for each in others:
                first = first + each
            return first

        shape = [*data.shape[:axis], places.shape[0], *data.shape[axis + 1 :]]
        return te.compute(shape, element, name="resized")

    return resized
