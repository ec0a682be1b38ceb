"""Integer operators of ONNX in QDQ form: onnxruntime computes the same from both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunehub_builder.networks.onnx_quantised import to_qdq

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
ONE, TWO, OUT = ["s1", "z1"], ["s2", "z2"], ["so", "zo"]
CONSTANTS: dict[str, Array] = {
    "s1": np.array(0.02, "float32"),
    "z1": np.array(120, "uint8"),
    "s2": np.array(0.03, "float32"),
    "z2": np.array(4, "uint8"),
    "so": np.array(0.05, "float32"),
    "zo": np.array(90, "uint8"),
    "w": RNG.integers(-127, 128, (6, 4, 3, 3)).astype("int8"),
    "m": RNG.integers(-127, 128, (8, 6)).astype("int8"),
    "ws": RNG.uniform(0.001, 0.01, 6).astype("float32"),
    "wz": np.zeros(6, "int8"),
    "b": RNG.integers(-900, 900, 6).astype("int32"),
}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "QLinearConv": (["x", *ONE, "w", "ws", "wz", *OUT, "b"], {"pads": [1, 1, 1, 1]}),
    "QLinearMatMul": (["x", *ONE, "m", "ws", "wz", *OUT], {}),
    "QGemm": (["y", *ONE, "m", "ws", "wz", "b", *OUT], {}),
    "QLinearAdd": (["x", *ONE, "x", *TWO, *OUT], {}),
    "QLinearMul": (["x", *ONE, "x", *TWO, *OUT], {}),
    "QLinearSigmoid": (["x", *ONE, *OUT], {}),
    "QLinearLeakyRelu": (["x", *ONE, *OUT], {"alpha": 0.1}),
    "QLinearGlobalAveragePool": (["x", *ONE, *OUT], {}),
    "QLinearAveragePool": (["x", *ONE, *OUT], {"kernel_shape": [2, 2]}),
    "QLinearConcat": ([*OUT, "x", *ONE, "x", *TWO], {"axis": 1}),
}


def model(kind: str) -> Any:
    names, attributes = CASES[kind]
    standard = kind in ("QLinearConv", "QLinearMatMul")
    node = helper.make_node(kind, names, ["r"], domain="" if standard else "com.microsoft", **attributes)
    shape = [3, 8] if "y" in names else [2, 4, 8, 8]
    data = helper.make_tensor_value_info("y" if "y" in names else "x", TensorProto.UINT8, shape)
    result = helper.make_tensor_value_info("r", TensorProto.UINT8, None)
    used = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if name in names]
    graph = helper.make_graph([node], "one", [data], [result], used)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def run(made: Any, data: Array) -> Array:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {session.get_inputs()[0].name: data})[0]
    return result


@pytest.mark.parametrize("kind", CASES)
def test_the_rewritten_operator_gives_the_same_integers_but_for_rounding(kind: str) -> None:
    made = model(kind)
    extents = [extent.dim_value for extent in made.graph.input[0].type.tensor_type.shape.dim]
    data = RNG.integers(0, 256, extents).astype("uint8")
    expected = run(made, data)
    to_qdq(made.graph)
    assert kind not in {node.op_type for node in made.graph.node}
    result = run(made, data)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    apart = np.abs(result.astype("int32") - expected.astype("int32"))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.02


def test_scales_that_are_no_constants_leave_the_operator() -> None:
    made = model("QLinearConv")
    del made.graph.initializer[[each.name for each in made.graph.initializer].index("ws")]
    to_qdq(made.graph)
    assert [node.op_type for node in made.graph.node] == ["QLinearConv"]


def test_other_graphs_stay_as_they_are() -> None:
    node = helper.make_node("Relu", ["x"], ["r"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "r")]
    graph = helper.make_graph([node], "none", values[:1], values[1:])
    before = graph.SerializeToString()
    to_qdq(graph)
    assert graph.SerializeToString() == before
