"""What Resize reads along an axis is what onnxruntime reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only if there is onnx

from tunehub_builder.networks.onnx_sampling import (  # noqa: E402
    ResizedAxis,
    Resizing,
    axes_to_sizes,
    axis_by_scale,
    reads_by_sizes,
    taps,
)

pytestmark = pytest.mark.fast

COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize",
               "half_pixel_symmetric")  # fmt: skip
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SIZES = [(7, 1.5), (7, 0.7), (5, 0.6), (4, 2.0), (9, 2.6), (6, 10 / 3), (10, 0.34), (3, 1.25), (8, 0.3), (2, 0.5)]
REGION = (0.1, 1.2)


def by_onnxruntime(
    size: int, scale: float, attributes: Mapping[str, Any], opset: int = 19, given: Mapping[str, Any] | None = None
) -> Any:
    """An axis of ascending squares, the last of two behind a batch and a channel, and resized with another one."""
    onnxruntime = pytest.importorskip("onnxruntime")
    constants = {"s": np.array([1, 1, 2, scale], "float32")} if given is None else dict(given)
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        constants["r"] = np.array([0, 0, 0, REGION[0], 1, 1, 1, REGION[1]], "float32")
    names = ["s"] if opset < 11 else [name if name in constants else "" for name in "rsz"]
    node = helper.make_node("Resize", ["x", *names], ["y"], **attributes)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 1, 2, size]), ("y", None))]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {"x": np.stack([squares(size)] * 2)[None, None]})
    return found[0, 0, 0]


def squares(size: int) -> Any:
    return (np.arange(size, dtype="float32") + 1) ** 2


def sampled(resizing: Resizing, axis: ResizedAxis) -> Any:
    found = taps(resizing, axis)
    values = (squares(axis.size)[found.places] * found.weights).sum(1)
    return np.where(found.outside, resizing.extrapolation_value, values)


@pytest.mark.few(10)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_scales_that_give_no_whole_size_are_those_of_onnxruntime(coordinates: str, size: tuple[int, float]) -> None:
    modes: list[dict[str, Any]] = [{"mode": "nearest", "nearest_mode": each} for each in ROUNDING]
    modes += [{"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}]
    modes += [{"mode": each, "antialias": 1} for each in ("linear", "cubic")] if size[1] < 1 else []
    for mode in modes:
        attributes = {"coordinate_transformation_mode": coordinates, "extrapolation_value": 0.25, **mode}
        resizing = Resizing.of(attributes, by_scales_alone=False)
        axis = axis_by_scale(*size, region=REGION)
        np.testing.assert_allclose(sampled(resizing, axis), by_onnxruntime(*size, attributes), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_before_opset_11_ceilings_make_axes_smaller_and_floors_larger(mode: str) -> None:
    for size, scale in SIZES:
        resizing = Resizing.of({"mode": mode}, by_scales_alone=True)
        expected = by_onnxruntime(size, scale, {"mode": mode}, opset=10)
        np.testing.assert_allclose(sampled(resizing, axis_by_scale(size, scale)), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_sizes_may_be_approached_by_one_scale(policy: str) -> None:
    attributes = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    expected = by_onnxruntime(9, 0, attributes, given={"z": np.array([3, 11])})
    found = axes_to_sizes(policy, {2: (2, 3), 3: (9, 11)}, {})[3]
    np.testing.assert_allclose(sampled(Resizing.of(attributes, by_scales_alone=False), found), expected, rtol=1e-5)


def test_an_operator_of_sizes_reads_the_same_where_scales_are_whole() -> None:
    for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        for mode in ("nearest", "linear", "cubic"):
            given = {"mode": mode, "coordinate_transformation_mode": coordinates}
            resizing = Resizing.of(given, by_scales_alone=False)
            assert all(
                reads_by_sizes(resizing, axis_by_scale(size, scale)) for size, scale in [(5, 3), (64, 2), (8, 0.5)]
            )
            differs = [reads_by_sizes(resizing, axis_by_scale(7, scale)) for scale in (1.5, 0.7)]
            assert all(differs) == (coordinates == "align_corners")  # which knows no scale
    corners = Resizing.of({"coordinate_transformation_mode": "align_corners"}, by_scales_alone=False)
    assert not reads_by_sizes(corners, axis_by_scale(7, 0.2))
    smooth = Resizing.of({"mode": "linear", "antialias": 1}, by_scales_alone=False)
    assert not reads_by_sizes(smooth, axis_by_scale(8, 0.5))
