"""Quantised ONNX models against onnxruntime, which computes them in integers, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tunehub
from tunehub.hub import Hub, Policy
from tunehub.registries.resolution import Resolution
from tunehub.relax.pipeline import compile_module
from tunehub.target.descriptors import descriptor_of
from tunehub.templates.dot_product import dot_product_of
from tunehub_builder import networks

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)


def model(nodes: Sequence[Any], constants: dict[str, Array], shape: tuple[int, ...], rank: int) -> Any:
    """An ONNX model from `x`, float32 of `shape`, to `y` of `rank` axes."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "quantised", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def both(made: Any, x: Array, tmp_path: Any) -> tuple[Array, Array, list[str]]:
    """What tunehub and onnxruntime compute, and the notes of the report."""
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    target = tunehub.host_target()
    host = descriptor_of(target)
    resolution, policy = Resolution(host=host, chosen=None), Policy(strict=True)
    hub = Hub(target=target, host=host, resolution=resolution, policy=policy, layout="auto")
    executable = compile_module(networks.open_onnx_file(path).relax_module(), target, hub)
    notes = [note for note in hub.report().notes if note.startswith("int8")]
    hub.close()
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    return result, expected, notes


@pytest.fixture(autouse=True)
def _instruction() -> None:
    if dot_product_of(tunehub.host_target()) is None:
        pytest.skip("this CPU, or the installed TVM, has no instruction for integers")


def weights(*shape: int) -> Array:
    return RNG.integers(-127, 128, shape).astype("int8")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_product_that_is_quantised_at_run_time(dtype: str, tmp_path: Any) -> None:
    shift = 0 if dtype == "int8" else 128
    constants = {
        "w": (weights(64, 48).astype("int32") + shift).astype(dtype),
        "zero": np.array(shift, dtype),
        "scale": np.float32(0.013),
        "bias": RNG.standard_normal(48).astype("float32"),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "scale"], ["both"]),
        helper.make_node("Mul", ["cast", "both"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    x = RNG.uniform(-1, 3, (2, 9, 64)).astype("float32")
    result, expected, notes = both(model(nodes, constants, x.shape, 3), x, tmp_path)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert notes == ["int8: 1 of 1 convolutions and products with quantised operands compute in integers"]
