"""Models of a few bytes whose constants would fill any memory are refused by node and size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.fast
onnx = pytest.importorskip("onnx")
pytest.importorskip("tvm")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tunehub.exceptions import ConstantTooLargeError, TunehubError  # noqa: E402
from tunehub.graph.constant_sizes import check_constant_sizes  # noqa: E402
from tunehub_builder.networks.exceptions import OnnxFileError  # noqa: E402
from tunehub_builder.networks.onnx_import import to_relax  # noqa: E402

SIDE = 1 << 18  # its square is of 256 GB
ONE = np.ones((1, 1, 1, 1), "float32")
NUMBERS = np.array([1, 1, SIDE, SIDE])
CASES: dict[str, tuple[str, list[Any]]] = {
    "vector": ("ConstantOfShape", [np.array([SIDE**2])]),
    "matrix": ("ConstantOfShape", [NUMBERS]),
    "expand": ("Expand", [ONE, NUMBERS]),
    "tile": ("Tile", [ONE, NUMBERS]),
    "pad": ("Pad", [ONE, np.array([0, 0, 0, 0, 0, 0, SIDE, SIDE])]),
    "range": ("Range", [np.int64(0), np.int64(SIDE**2), np.int64(1)]),
    "range of floats": ("Range", [np.float32(0), np.float32(1), np.float32(1e-12)]),
    "sum": ("Add", [np.ones((SIDE, 1), "float32"), np.ones((1, SIDE), "float32")]),
}


def model(operator: str, constants: list[Any]) -> Any:
    names = [f"constant_{at}" for at in range(len(constants))]
    nodes = [
        helper.make_node(operator, names, ["made"], name="a_node"),
        helper.make_node("Cast", ["made"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "floats"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1]), ("y", None)))
    initializers = [
        numpy_helper.from_array(np.array(value), name) for name, value in zip(names, constants, strict=True)
    ]
    graph = helper.make_graph(nodes, "graph", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("operator", "constants"), CASES.values(), ids=CASES)
def test_a_constant_that_no_memory_holds_is_refused_by_node_and_size(operator: str, constants: list[Any]) -> None:
    with pytest.raises(ConstantTooLargeError, match="so many elements would be computed") as caught:
        check_constant_sizes(to_relax(model(operator, constants), "model.onnx"))
    assert caught.value.elements >= SIDE**2
    assert caught.value.nodes


@pytest.mark.parametrize("step", [0, float("nan"), float("inf")])
def test_a_range_without_an_end_is_an_error_of_the_file(step: float) -> None:
    numbers = [np.float32(0), np.float32(1 if step == 0 else step), np.float32(0 if step == 0 else 1)]
    with pytest.raises((OnnxFileError, TunehubError)):
        to_relax(model("Range", numbers), "model.onnx")


def test_large_weights_and_what_is_as_large_as_its_operands_stay() -> None:
    check_constant_sizes(to_relax(model("ConstantOfShape", [np.array([1 << 20])]), "model.onnx"))
    check_constant_sizes(to_relax(model("Add", [np.ones((64, 1), "float32"), np.ones((1, 64), "float32")]), "m.onnx"))
