"""ONNX models with open dimensions, as exporters write them: shapes are computed in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tunehub.compiler.pipeline import compile_module

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HIDDEN, HEADS = 16, 2
SIZES = ((1, 1), (1, 7), (2, 16), (3, 13), (5, 2))


class Writer:
    """Collects nodes and constants of a graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.rng = np.random.default_rng(0)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def const(self, value: Any) -> str:
        name = f"const_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.rng.uniform(-0.5, 0.5, shape).astype("float32"))

    def extent(self, tensor: str, axis: int) -> str:
        extent = self.add("Gather", self.add("Shape", tensor), self.const(np.array(axis)), axis=0)
        return self.add("Unsqueeze", extent, self.const(np.array([0])))

    def model(self, inputs: list[Any], outputs: list[Any]) -> Any:
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.checker.check_model(model)
        return model


def encoder() -> Any:
    """Embeddings with positions, a mask that is expanded, and attention by heads."""
    w = Writer()
    batch, length = w.extent("ids", 0), w.extent("ids", 1)
    positions = w.add("Slice", w.weight(64, HIDDEN), w.const(np.array([0])), length, w.const(np.array([0])))
    x = w.add("Add", w.add("Gather", w.weight(50, HIDDEN), "ids", axis=0), positions)
    whole = w.add("Concat", batch, w.const(np.array([1])), length, length, axis=0)
    mask = w.add("Unsqueeze", w.add("Cast", "mask", to=TensorProto.FLOAT), w.const(np.array([1, 2])))
    mask = w.add("Sub", w.const(np.float32(1)), w.add("Expand", mask, whole))
    mask = w.add("Mul", mask, w.const(np.float32(-1e4)))
    heads = w.add("Concat", batch, length, w.const(np.array([HEADS])), w.const(np.array([-1])), axis=0)
    q, k, v = (w.add("Reshape", w.add("MatMul", x, w.weight(HIDDEN, HIDDEN)), heads) for _ in range(3))
    q, v = (w.add("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
    scores = w.add("MatMul", q, w.add("Transpose", k, perm=[0, 2, 3, 1]))
    weights = w.add("Softmax", w.add("Add", w.add("Div", scores, w.const(np.float32(2.8))), mask), axis=-1)
    mixed = w.add("Transpose", w.add("MatMul", weights, v), perm=[0, 2, 1, 3])
    joined = w.add("Reshape", mixed, w.add("Concat", batch, length, w.const(np.array([HIDDEN])), axis=0))
    y = w.add("Add", x, w.add("MatMul", joined, w.weight(HIDDEN, HIDDEN)))
    y = w.add("LayerNormalization", y, w.weight(HIDDEN), w.weight(HIDDEN), axis=-1)
    y = w.add("MatMul", w.add("Clip", y, w.const(np.float32(-1)), w.const(np.float32(1))), w.weight(HIDDEN, 12))
    last = w.add("Gather", y, w.const(np.array(-1)), axis=1)
    w.nodes.append(helper.make_node("Identity", [last], ["out"]))
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in ("ids", "mask")]
    return w.model(ids, [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 12])])


def images() -> Any:
    """Convolutions with relu6, padding of their own and a flattening whose batch is read from the shape."""
    w = Writer()
    x = w.add("Conv", "image", w.weight(16, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    x = w.add("Clip", x, w.const(np.float32(0)), w.const(np.float32(6)))
    x = w.add("Pad", x, w.const(np.array([0, 0, 1, 1, 0, 0, 1, 1])), w.const(np.float32(0)))
    x = w.add("Conv", x, w.weight(16, 1, 3, 3), group=16)
    y = w.add("Relu", w.add("Conv", x, w.weight(24, 16, 1, 1)))
    y = w.add("GlobalAveragePool", y)
    flat = w.add("Reshape", y, w.add("Concat", w.extent(y, 0), w.const(np.array([-1])), axis=0))
    out = w.add("Gemm", flat, w.weight(10, 24), w.weight(10), transB=1)
    w.nodes.append(helper.make_node("Identity", [out], ["out"]))
    shape = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 16, 16])
    return w.model([shape], [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 10])])


@pytest.fixture
def held_to_onnxruntime(target: Any, make_hub: Any) -> Callable[..., Any]:
    def check(model: Any, inputs: list[dict[str, Any]]) -> Any:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        hub = None
        for layout in ("keep", "auto"):
            hub = make_hub(layout=layout)
            executable = compile_module(from_onnx(model, keep_params_in_input=False), target, hub)
            machine = relax.VirtualMachine(executable, tvm.cpu())
            assert not hub.failures and not hub.notes
            for arrays in inputs:
                (expected,) = session.run(None, arrays)
                found = machine["main"](*map(tvm.runtime.tensor, arrays.values())).numpy()
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        return hub

    return check


def test_an_encoder_from_onnx_is_right_at_every_size(held_to_onnxruntime: Any) -> None:
    rng = np.random.default_rng(1)
    inputs = [{"ids": rng.integers(0, 50, size), "mask": np.ones(size, "int64")} for size in SIZES]
    for each in inputs[1:]:
        each["mask"][:, -1] = 0
    hub = held_to_onnxruntime(encoder(), inputs)
    assert any(set(workload.symbols) == {"batch", "sequence"} for workload in hub.workloads)


@pytest.mark.sweep  # tests/client/compiler/test_symbolic_shapes.py has one
def test_a_convolution_network_from_onnx_is_right_at_every_batch(held_to_onnxruntime: Any) -> None:
    rng = np.random.default_rng(1)
    inputs = [{"image": rng.uniform(-1, 1, (n, 3, 16, 16)).astype("float32")} for n in (1, 2, 3, 7, 13, 16)]
    hub = held_to_onnxruntime(images(), inputs)
    assert all(workload.symbols == ("batch",) for workload in hub.workloads)
