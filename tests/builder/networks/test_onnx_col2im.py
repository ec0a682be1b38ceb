"""Col2Im, imported, is that of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only if there is onnx

from tunehub_builder.networks import Network, OnnxFileError, from_onnx_file  # noqa: E402

pytestmark = pytest.mark.slow

Sizes = Sequence[int]


def written(path: Path, image: Sizes, block: Sizes, places: int, attributes: Mapping[str, Any], *, known: bool) -> Path:
    shape = [2, 3 * prod(block), places]
    given = {"image": np.array(image), "block": np.array(block)}
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    values += [] if known else [helper.make_tensor_value_info(each, TensorProto.INT64, [2]) for each in given]
    weights = [numpy_helper.from_array(value, name) for name, value in given.items()] if known else []
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], name="fold", **attributes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", values, [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


CASES: dict[str, tuple[Sizes, Sizes, int, dict[str, Any]]] = {
    "windows apart": ((4, 6), (2, 2), 6, {"strides": [2, 2]}),
    "overlapping": ((5, 4), (3, 2), 9, {}),
    "padded": ((7, 8), (3, 3), 16, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "padded on one side": ((5, 6), (3, 3), 16, {"strides": [2, 2], "pads": [0, 2, 4, 1]}),
    "dilated": ((9, 8), (3, 2), 25, {"dilations": [2, 3]}),
    "of one axis": ((9,), (3,), 5, {"strides": [2], "pads": [1, 1]}),
    "of three axes": ((4, 5, 3), (2, 3, 1), 18, {"strides": [2, 1, 1]}),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_images_are_those_of_onnxruntime(case: str, tmp_path: Path, difference: Callable[[Network], float]) -> None:
    path = written(tmp_path / "m.onnx", *CASES[case], known=True)
    assert difference(from_onnx_file(path)) < 1e-5


def test_sizes_that_are_inputs_are_refused_by_node(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", *CASES["windows apart"], known=False)
    with pytest.raises(OnnxFileError, match=r"the operator Col2Im \(node fold\): .*sizes that the model computes"):
        from_onnx_file(path).relax_module()
