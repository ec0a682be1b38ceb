"""Quantised ONNX models against onnxruntime, which computes them in integers, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tunehub.graph.quantised.dynamic import quantised_at_once
from tunehub.tir.nodes import calls_in, operator_of
from tunehub_builder.networks.onnx_import import to_relax

from ....cpu_features import AMX, AVX2, AVX512_VNNI, AVX_VNNI, cpu, here, needs_tvm
from .onnx_models import Array, both, model

pytestmark = [pytest.mark.slow, needs_tvm]

RNG = np.random.default_rng(3)


@pytest.fixture(params=here(AVX2, AVX_VNNI, AVX512_VNNI, AMX))
def integer_cpu(request: Any) -> Any:
    """Each CPU with another instruction for integers."""
    return cpu(request.param)


def weights(*shape: int) -> Array:
    """Of seven bits: onnxruntime adds up pairs in 16 bits on CPUs without VNNI, where larger ones overflow."""
    return RNG.integers(-63, 64, shape).astype("int8")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.few(2)
def test_a_product_that_is_quantised_at_run_time(dtype: str, tmp_path: Any, integer_cpu: Any) -> None:
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
    result, expected, notes = both(model(nodes, constants, x.shape, 3), x, tmp_path, integer_cpu)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert notes == ["int8: 1 of 1 convolutions and products with quantised operands compute in integers"]


@pytest.mark.parametrize("rows", [3, 300])  # by one thread, and by all
def test_what_is_quantised_at_run_time_is_onnxruntimes_in_one_kernel(rows: int, tmp_path: Any) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("Cast", ["q"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["z"], ["zero"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["numbers", "zero"], ["moved"]),
        helper.make_node("Mul", ["moved", "s"], ["y"]),
    ]
    x = RNG.uniform(-1, 3, (rows, 192)).astype("float32")
    made = model(nodes, {}, x.shape, 2)
    result, expected, _ = both(made, x, tmp_path, cpu(AVX2))
    assert (result == expected).all()
    module = quantised_at_once(to_relax(made, "model"), cpu(AVX2))
    assert [operator_of(call) for call in calls_in(module)].count("relax.call_tir") == 1
    assert "quantize" not in [operator_of(call).rpartition(".")[2] for call in calls_in(module)]


DATA = {"xs": np.float32(0.02), "xz": np.uint8(120)}
RESULT = {"ys": np.float32(0.3), "yz": np.uint8(100)}
QUANTISE = helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"])
DEQUANTISE = helper.make_node("DequantizeLinear", ["r", "ys", "yz"], ["y"])


def check_steps(made: Any, x: Array, tmp_path: Any, target: Any, count: int) -> None:
    result, expected, notes = both(made, x, tmp_path, target)
    steps = np.abs(result - expected) / RESULT["ys"]
    assert steps.max() < 1.5
    assert (steps > 0.5).mean() < 1e-3
    assert notes == [f"int8: {count} of {count} convolutions and products with quantised operands compute in integers"]


def test_a_convolution_of_integers_with_bias(tmp_path: Any, integer_cpu: Any) -> None:
    constants = {
        **DATA,
        **RESULT,
        "w": weights(32, 16, 3, 3),
        "ws": RNG.uniform(0.001, 0.02, 32).astype("float32"),
        "wz": np.zeros(32, "int8"),
        "b": RNG.integers(-3000, 3000, 32).astype("int32"),
    }
    names = ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    nodes = [QUANTISE, helper.make_node("QLinearConv", names, ["r"], pads=[1, 1, 1, 1], strides=[2, 2]), DEQUANTISE]
    x = RNG.uniform(-2, 2, (1, 16, 30, 30)).astype("float32")
    check_steps(model(nodes, constants, x.shape, 4), x, tmp_path, integer_cpu, 1)


def test_a_product_and_an_addition_of_integers(tmp_path: Any, integer_cpu: Any) -> None:
    constants = {**DATA, **RESULT, "w": weights(32, 32), "ws": np.float32(0.02), "wz": np.int8(0)}
    nodes = [
        QUANTISE,
        helper.make_node("QLinearMatMul", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["p"]),
        helper.make_node("QLinearAdd", ["p", "ys", "yz", "q", "xs", "xz", "ys", "yz"], ["r"], domain="com.microsoft"),
        DEQUANTISE,
    ]
    x = RNG.uniform(-2, 2, (7, 32)).astype("float32")
    check_steps(model(nodes, constants, x.shape, 2), x, tmp_path, integer_cpu, 1)


@pytest.mark.few(2)
def test_a_convolution_with_sums_as_its_result_is_exact(tmp_path: Any, integer_cpu: Any) -> None:
    constants = {**DATA, "w": weights(32, 16, 3, 3), "wz": np.int8(0)}
    nodes = [
        QUANTISE,
        helper.make_node("ConvInteger", ["q", "w", "xz", "wz"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    x = RNG.uniform(-2, 2, (1, 16, 28, 28)).astype("float32")
    result, expected, notes = both(model(nodes, constants, x.shape, 4), x, tmp_path, integer_cpu)
    assert np.array_equal(result, expected)
    assert notes[0].startswith("int8: 1 of 1 ")
