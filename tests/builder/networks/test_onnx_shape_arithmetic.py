"""Shapes that a model computes from its open dimensions: the same numbers, and such as TVM's importer takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import tvm  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tunehub_builder import networks  # noqa: E402
from tunehub_builder.networks.exceptions import OnnxFileError  # noqa: E402
from tunehub_builder.networks.onnx_shape_arithmetic import fold_shapes  # noqa: E402

pytestmark = pytest.mark.slow

NUMBERS = {
    "zero": 0, "one": 1, "two": 2, "four": 4, "zeros": [0], "ones": [1], "twos": [2], "ends": [2**63 - 1], "all": [-1],
    "eight": [8], "first": [0, 1], "pair": [2, 2], "none": [],
}  # fmt: skip


def model_of(nodes: list[Any], shape: tuple[Any, ...], rank: int) -> Any:
    """A model of `x` and `y`, in which the names of NUMBERS are constants of int64."""
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"d{axis}" for axis in range(rank)])],
        [numpy_helper.from_array(np.array(NUMBERS[name], "int64"), name) for name in sorted(used & NUMBERS.keys())],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def node(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(operator, ["" if name == "-" else name for name in inputs.split()], [output], **attributes)


def heads() -> Any:
    """[batch, sequence, 32] in four heads, as torch.onnx.export(dynamo=True) writes it: a number is reshaped."""
    return model_of([
        node("Shape", "x", "batch", start=0, end=1), node("Shape", "x", "length", start=1, end=2),
        node("Squeeze", "batch", "b"), node("Mul", "b four", "rows"), node("Reshape", "rows all", "row"),
        node("Transpose", "x", "t", perm=[1, 0, 2]), node("Concat", "length row eight", "s", axis=0),
        node("Reshape", "t s", "y"),
    ], ("batch", "sequence", 32), 3)  # fmt: skip


def image(casts: bool) -> Any:
    """An image at half its size, resized to its own, as either exporter of PyTorch writes it."""
    axes = [
        node("Shape", "x", "shape"), node("Gather", "shape two", "h", axis=0), node("Unsqueeze", "h zeros", "hs"),
        node("Slice", "shape pair2 ends zeros", "tail"), node("Slice", "tail ones ends zeros", "ws"),
        node("Concat", "hs ws", "sides", axis=0),
    ] if casts else [
        node("Shape", "x", "hs", start=2, end=3), node("Shape", "x", "ws", start=3),
        node("Concat", "hs ws", "sides", axis=0),
    ]  # fmt: skip
    for each in axes:
        each.input[:] = ["twos" if name == "pair2" else name for name in each.input]
    last = "whole" if casts else "sides"
    casted = [node("Cast", "sides", "whole", to=TensorProto.INT64)] if casts else []
    return model_of([
        *axes, *casted, node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[2, 2]), node("Shape", "p", "ps"),
        node("Slice", "ps zeros twos zeros", "front"), node("Concat", f"front {last}", "sizes", axis=0),
        node("Resize", "p - - sizes", "y", mode="linear", coordinate_transformation_mode="half_pixel"),
    ], ("batch", 3, "height", "width"), 4)  # fmt: skip


def vectors() -> Any:
    """Arithmetic on whole shapes."""
    return model_of([
        node("Shape", "x", "shape"), node("Gather", "shape first", "both", axis=0), node("Mul", "both pair", "twice"),
        node("Div", "twice two", "same"), node("Add", "same ones", "more"), node("Sub", "more one", "again"),
        node("Concat", "again twos twos", "s", axis=0), node("Reshape", "x s", "y"),
    ], ("batch", "sequence", 4), 4)  # fmt: skip


def halves() -> Any:
    """Halves of the channels of an image of known size swapped, as PyTorch's older exporter writes ``chunk``."""
    return model_of([
        node("Shape", "x", "shape"), node("Gather", "shape ones", "channels", axis=0),
        node("Add", "channels ones", "more"), node("Div", "more twos", "half"), node("Slice", "x zeros half ones", "a"),
        node("Slice", "x half ends ones", "b"), node("Concat", "b a", "y", axis=1),
    ], (1, 6, 4, 5), 4)  # fmt: skip


MODELS = {
    "halves": halves(),
    "heads": heads(),
    "vectors": vectors(),
    "image by casts": image(True),
    "image": image(False),
}
SHAPES = {"halves": ((1, 6, 4, 5),), "heads": ((1, 7, 32), (3, 12, 32)), "vectors": ((1, 7, 4), (3, 12, 4))}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_open_dimensions_computes_what_onnxruntime_does_at_every_size(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(MODELS[name], path)
    executable = tvm.compile(networks.open_onnx_file(path).relax_module(), tvm.target.Target({"kind": "llvm"}))
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    session = onnxruntime.InferenceSession(str(path))
    for shape in SHAPES.get(name, ((1, 3, 8, 12), (2, 3, 9, 14))):
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        found = machine["main"](tvm.runtime.tensor(x)).numpy()
        (expected,) = session.run(None, {"x": x})
        assert found.shape == expected.shape
        assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_folded_computes_the_same(name: str) -> None:
    before, after = MODELS[name], onnx.ModelProto()
    after.CopyFrom(before)
    assert fold_shapes(after)
    onnx.checker.check_model(after)
    for shape in SHAPES.get(name, ((1, 3, 8, 12), (2, 3, 9, 14))):
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        results = [
            onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0] for model in (before, after)
        ]
        assert np.array_equal(*results)


def test_what_open_dimensions_keep_from_being_imported_is_said_with_the_sizes_that_help(tmp_path: Path) -> None:
    """Rows of unknown length that are resized: TVM has no operator for them."""
    path = tmp_path / "model.onnx"
    nodes = [node("Shape", "x", "s"), node("Mul", "s doubled", "sizes"),
             node("Resize", "x - - sizes", "y", mode="linear")]  # fmt: skip
    model = model_of(nodes, ("batch", 3, "length"), 3)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2], "int64"), "doubled"))
    onnx.save(model, path)
    with pytest.raises(OnnxFileError, match="Fix what is open there: --dim length=64, say; or export"):
        networks.open_onnx_file(path).relax_module()


def test_nothing_is_folded_where_nothing_depends_on_a_shape() -> None:
    model = model_of([node("Reshape", "x all", "y")], ("batch", 4), 1)
    before = model.SerializeToString()
    assert not fold_shapes(model)
    assert model.SerializeToString() == before
