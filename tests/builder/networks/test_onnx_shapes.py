"""Models with masks, as exporters write them: rewritten without another result, so that TVM imports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tunehub_builder import networks  # noqa: E402
from tunehub_builder.networks import onnx_model  # noqa: E402

pytestmark = pytest.mark.slow

CONSTANTS = {
    "first": np.array(0), "step": np.array(1), "two": np.array(2), "axis": np.array(1), "around": np.array([0, 2]),
    "nothing": np.array([], "int64"), "kept": np.float32(0), "masked": np.float32(-1e4), "flat": np.array([1, -1, 4]),
}  # fmt: skip


def masked(first: str = "first", step: str = "step") -> Any:
    """Tokens of 4 numbers whose position is less than 3 are kept, others are masked; then one row of all tokens."""
    scalar = helper.make_tensor("value", TensorProto.INT64, [1], [3])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["length"], axis=0),
        helper.make_node("Cast", ["length"], ["limit"], to=TensorProto.INT64),
        helper.make_node("Range", [first, "limit", step], ["positions"]),
        helper.make_node("ConstantOfShape", ["nothing"], ["three"], value=scalar),
        helper.make_node("Less", ["positions", "three"], ["seen"]),
        helper.make_node("Unsqueeze", ["seen", "around"], ["mask"]),
        helper.make_node("Where", ["mask", "kept", "masked"], ["added"]),
        helper.make_node("Add", ["x", "added"], ["y"]),
        helper.make_node("Reshape", ["y", "flat"], ["out"]),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    sides = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", 4])]
    results = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, "tokens", 4])]
    graph = helper.make_graph(nodes, "g", sides, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def outputs(model: Any, data: Any) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": data})[0]


@pytest.mark.filterwarnings("ignore")
def test_a_mask_over_an_open_sequence_is_imported_and_right(tmp_path: Path, tvm: Any) -> None:
    from tvm import relax

    path = tmp_path / "masked.onnx"
    onnx.save(masked(), path)
    definition = networks.open_onnx_file(path)
    rewritten = definition.onnx_model()
    onnx.checker.check_model(rewritten, full_check=True)
    machine = relax.VirtualMachine(tvm.compile(definition.relax_module(), "llvm"), tvm.cpu())
    for size in ((1, 1), (2, 3), (3, 7)):
        data = np.random.default_rng(0).standard_normal((*size, 4)).astype("float32")
        expected = outputs(masked(), data)
        assert (expected < -5e3).any() == (size[1] > 3)
        np.testing.assert_array_equal(outputs(rewritten, data), expected)
        np.testing.assert_allclose(machine["main"](tvm.runtime.tensor(data)).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("changed", [{"first": "step"}, {"step": "two"}, {"first": "length"}])
def test_other_ranges_are_not_as_long_as_their_limit(changed: dict[str, str]) -> None:
    model = masked(**changed)
    onnx_model.simplify(model)
    ranges = [node for node in model.graph.node if node.op_type == "Range"]
    assert [node.output[0] for node in ranges] == ["positions"]


def test_a_limit_that_may_be_negative_stays() -> None:
    model = masked()
    (cast,) = (node for node in model.graph.node if node.op_type == "Cast")
    cast.CopyFrom(helper.make_node("Sub", ["length", "two"], ["limit"]))
    onnx_model.simplify(model)
    assert [node.output[0] for node in model.graph.node if node.op_type == "Range"] == ["positions"]
