"""Resize and Upsample, imported, are those of onnxruntime, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only if there is onnx

from tunehub_builder.networks import Network, OnnxFileError, from_onnx_file, open_onnx_file  # noqa: E402

pytestmark = pytest.mark.slow

Scales = Sequence[float]


def node(**attributes: Any) -> dict[str, Any]:
    return {"mode": "linear", **attributes}


def written(
    path: Path,
    shape: Sequence[Any],
    attributes: Mapping[str, Any],
    constants: Mapping[str, Any],
    *,
    opset: int = 19,
    kind: int = TensorProto.FLOAT,
    operator: str = "Resize",
) -> Path:
    """A model of one node, whose constants are r (region), s (scales), z (sizes); None is an input of the model."""
    names = ["s"] if opset < 11 else [each if each in constants else "" for each in "rsz"]
    values = [helper.make_tensor_value_info("x", kind, shape)]
    values += [helper.make_tensor_value_info(k, TensorProto.FLOAT, [8]) for k, v in constants.items() if v is None]
    weights = [numpy_helper.from_array(np.array(v), k) for k, v in constants.items() if v is not None]
    made = helper.make_node(operator, ["x", *names], ["y"], name="up", **attributes)
    graph = helper.make_graph([made], "g", values, [helper.make_tensor_value_info("y", kind, None)], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def scales(*given: float) -> dict[str, Any]:
    return {"s": np.array(given, "float32")}


CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
NINES = np.array([9, 9])
REGION = {"r": np.array([0, 0, 0.1, -0.2, 1, 1, 0.9, 1.2], "float32")}
CASES: dict[str, tuple[Sequence[int], dict[str, Any], dict[str, Any], int]] = {
    "linear": ((1, 2, 5, 7), node(), scales(1, 1, 1.5, 0.7), 19),
    "cubic": ((1, 2, 5, 7), node(mode="cubic", exclude_outside=1), scales(1, 1, 0.7, 2.6), 13),
    "nearest": ((2, 3, 7), node(mode="nearest"), scales(1, 1, 1.4), 13),
    "of three axes": ((1, 2, 5, 4, 3), node(), scales(1, 1, 1.5, 1.3, 1), 13),
    "of all axes": ((3, 4, 2), node(mode="nearest"), scales(1.7, 0.5, 2), 13),
    "of a matrix": ((5, 4), node(), scales(1.5, 0.7), 13),
    "antialias": ((1, 2, 9, 8), node(mode="cubic", antialias=1), scales(1, 1, 0.25, 0.6), 18),
    "a region": ((1, 2, 5, 7), node(**CROP), scales(1, 1, 1.5, 2) | REGION, 13),
    "named axes": ((1, 2, 5, 7), node(axes=[3, -2]), {"z": np.array([9, 3])}, 18),
    "kept aspect": ((1, 1, 5, 7), node(axes=[2, 3], keep_aspect_ratio_policy="not_larger"), {"z": NINES}, 19),
    "before opset 11": ((1, 2, 5, 7), node(), scales(1, 1, 1.5, 0.7), 10),
    "corners of one": ((1, 2, 5, 1), node(coordinate_transformation_mode="align_corners"), scales(1, 1, 0.3, 4), 13),
    "the same size": ((1, 2, 3, 3), node(), scales(1, 1, 1.25, 1.1), 13),
    "whole": ((1, 2, 5, 7), node(coordinate_transformation_mode="align_corners"), scales(1, 1, 2, 3), 13),
    "sizes beside empty scales": ((1, 2, 5, 7), node(), {"s": np.zeros(0, "float32"), "z": np.array([1, 2, 9, 3])}, 13),
}  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.parametrize("case", CASES)
def test_images_are_those_of_onnxruntime(case: str, tmp_path: Path, difference: Callable[[Network], float]) -> None:
    shape, attributes, constants, opset = CASES[case]
    path = written(tmp_path / "m.onnx", shape, attributes, constants, opset=opset)
    assert difference(from_onnx_file(path)) < 1e-5


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", [9, 7])
def test_upsamples_are_those_of_onnxruntime(opset: int, tmp_path: Path, difference: Callable[[Network], float]) -> None:
    by = [1.0, 1.0, 1.5, 2.6]
    attributes, constants = (node(scales=by), {}) if opset == 7 else (node(), scales(*by))
    path = written(tmp_path / "m.onnx", (1, 2, 5, 7), attributes, constants, opset=opset, operator="Upsample")
    if opset == 7:
        model = onnx.load(path)
        del model.graph.node[0].input[1:]
        onnx.save(model, path)
    assert difference(from_onnx_file(path)) < 1e-5


def test_numbers_of_8_bits_stay_within_their_type(tmp_path: Path) -> None:
    tvm = pytest.importorskip("tvm")
    path = written(tmp_path / "m.onnx", (1, 1, 1, 4), node(mode="cubic"), scales(1, 1, 1, 2.5), kind=TensorProto.UINT8)
    built = tvm.compile(from_onnx_file(path).relax_module(), tvm.target.Target({"kind": "llvm"}))
    given = np.array([0, 0, 255, 255], "uint8").reshape(1, 1, 1, 4)
    found = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(given)).numpy().reshape(-1)
    assert found[:3].tolist() == [0, 0, 0] and found[-3:].tolist() == [255, 255, 255]


def test_cubic_weights_outside_of_a_volume_are_left_out(tmp_path: Path) -> None:
    onnxruntime, tvm = pytest.importorskip("onnxruntime"), pytest.importorskip("tvm")
    image, volume = (
        written(tmp_path / f"{len(shape)}.onnx", shape, node(mode="cubic", exclude_outside=1), scales(*by))
        for shape, by in [((1, 2, 8, 5), (1, 1, 1, 2)), ((1, 2, 4, 2, 5), (1, 1, 1, 1, 2))]
    )
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 2, 5)).astype("float32")
    (expected,) = onnxruntime.InferenceSession(image.read_bytes()).run(None, {"x": x.reshape(1, 2, 8, 5)})
    built = tvm.compile(from_onnx_file(volume).relax_module(), tvm.target.Target({"kind": "llvm"}))
    found = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_an_open_batch_and_open_sizes_by_a_whole_scale(mode: str, tmp_path: Path) -> None:
    onnxruntime, tvm = pytest.importorskip("onnxruntime"), pytest.importorskip("tvm")
    for shape, by, given in [(("b", 2, 5, 4), (1.5, 0.7), (3, 2, 5, 4)), (("b", 2, "h", 4), (3, 2), (2, 2, 7, 4))]:
        path = written(tmp_path / "m.onnx", shape, node(mode=mode), scales(1, 1, *by))
        built = tvm.compile(open_onnx_file(path).relax_module(), tvm.target.Target({"kind": "llvm"}))
        x = np.random.default_rng(0).standard_normal(given).astype("float32")
        (expected,) = onnxruntime.InferenceSession(path.read_bytes()).run(None, {"x": x})
        found = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


REFUSED: dict[str, tuple[Sequence[Any], dict[str, Any], dict[str, Any], str]] = {
    "an open size": ((1, 2, "h", 8), node(), scales(1, 1, 0.5, 2), r"scale 0\.5 of axis 2.*--dim h=64"),
    "an open size, smoothed": ((1, 2, "h", 8), node(antialias=1), scales(1, 1, 2, 2), "axis 2 is open.*--dim h=64"),
    "nothing left": ((1, 2, 2, 8), node(), scales(1, 1, 0.3, 1), "axis 2 of 2 would have 0 elements"),
    "too much": ((1, 2, 2, 8), node(), scales(1, 1, 1e12, 1), r"would have \d{13} elements"),
    "a negative scale": ((1, 2, 2, 8), node(), scales(1, 1, -1, 1), r"scale -1\.0 of axis 2 is no positive number"),
    "not a number": ((1, 2, 2, 8), node(), scales(1, 1, float("nan"), 1), "no positive number"),
    "too few scales": ((1, 2, 2, 8), node(), scales(1, 1, 2), "3 scales or sizes are given for 4 axes"),
    "no size": ((1, 2, 2, 8), node(), {"z": np.array([1, 2, 0, 8])}, "not all positive"),
    "scales from outside": ((1, 2, 2, 8), node(), {"s": None}, "computed when the model runs"),
    "a region from outside": ((1, 2, 2, 8), node(**CROP), scales(1, 1, 2, 2) | {"r": None}, "crops by an input"),
    "no region": ((1, 2, 2, 8), node(**CROP), scales(1, 1, 2, 2), "has no region"),
    "half a region": ((1, 2, 2, 8), node(**CROP), scales(1, 1, 2, 2) | {"r": np.zeros(4, "float32")}, "4 numbers"),
    "cropped alone": ((1, 2, 5, 7), node(**CROP), scales(1, 1, 1, 2) | REGION, "axis 2 is cropped and not resized"),
    "kept aspect of open sizes": (
        (1, 2, "h", 8), node(axes=[2, 3], keep_aspect_ratio_policy="not_larger"), {"z": NINES},
        "keep_aspect_ratio_policy is not_larger",
    ),
    "an unknown mode": ((1, 2, 5, 7), node(mode="sinc"), scales(1, 1, 1.5, 2), "'sinc' is not known"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused_by_node_and_value(case: str, tmp_path: Path) -> None:
    shape, attributes, constants, expected = REFUSED[case]
    path = written(tmp_path / "m.onnx", shape, attributes, constants)
    with pytest.raises(OnnxFileError, match=rf"the operator Resize \(node up\): .*{expected}"):
        open_onnx_file(path).relax_module()
