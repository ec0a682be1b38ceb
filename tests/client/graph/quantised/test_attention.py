"""Quantised attention against onnxruntime, whose products are of integers, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.graph.attention.cpu.integers import scores_at_once
from tunehub.kernels.te.attention import Rounding, Step
from tunehub.kernels.te.scales import Affine
from tunehub_builder.networks import in_precision
from tunehub_builder.networks.bert import Bert, BertConfig

from ....cpu_features import AMX, AVX512_VNNI, cpu, here, needs_tvm
from ....relax_nets import net
from .onnx_models import both, computed, model

pytestmark = [pytest.mark.slow, needs_tvm]

Array = np.ndarray[Any, Any]
TOKENS, HEADS, DEPTH = 37, 2, 32
RESULT = 0.011  # a step of the result


@pytest.fixture(params=here(AVX512_VNNI, AMX))
def integer_cpu(request: Any) -> Any:
    """Each CPU with a kernel for quantised attention."""
    return cpu(request.param)


class Graph:
    """Nodes in QDQ form with their constants."""

    def __init__(self, dtype: str) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.dtype = dtype

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [*inputs], [name], **attributes))
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def rounded(self, x: str, scale: float, zero: int) -> str:
        shift = 128 if self.dtype == "int8" else 0
        parameters = self.constant(np.float32(scale)), self.constant(np.asarray(zero - shift, self.dtype))
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *parameters), *parameters)


def attention(dtype: str, *, masked: bool, rounded_scores: bool = True) -> Graph:
    """Of `x` with itself, turned about three ways; the mask is quantised, as all that is added is."""
    graph = Graph(dtype)

    def heads(scale: float, zero: int, order: list[int]) -> str:
        own = graph.rounded(graph.add("Mul", "x", graph.constant(np.float32(30 * scale))), scale, zero)
        shape = graph.constant(np.array([1, TOKENS, HEADS, DEPTH]))
        split = graph.rounded(graph.add("Reshape", own, shape), scale, zero)
        return graph.rounded(graph.add("Transpose", split, perm=order), scale, zero)

    query, key, value = heads(0.03, 120, [0, 2, 1, 3]), heads(0.04, 131, [0, 2, 3, 1]), heads(0.02, 127, [0, 2, 1, 3])
    scores = graph.add("MatMul", query, key)
    if rounded_scores:
        scores = graph.rounded(scores, 0.33, 121)
    scores = graph.add("Div", scores, graph.constant(np.float32(DEPTH**0.5)))
    if masked:
        away = np.where(np.random.default_rng(0).random((1, 1, 1, TOKENS)) < 0.3, -10, 0)
        hidden = graph.rounded(graph.constant(away.astype("float32")), 0.04, 255)
        scores = graph.add("Add", graph.rounded(scores, 0.06, 128), hidden)
    if rounded_scores:
        scores = graph.rounded(scores, 0.06, 140)
    weights = graph.rounded(graph.add("Softmax", scores, axis=-1), 1 / 255, 0)
    result = graph.rounded(graph.add("MatMul", weights, value), RESULT, 126)
    turned = graph.rounded(graph.add("Transpose", result, perm=[0, 2, 1, 3]), RESULT, 126)
    graph.nodes.append(helper.make_node("Identity", [turned], ["y"]))
    return graph


@pytest.mark.parametrize(("dtype", "masked"), [("uint8", False), ("int8", False), ("uint8", True)])
@pytest.mark.few(2)
def test_attention_is_that_of_onnxruntime(dtype: str, masked: bool, tmp_path: Any, integer_cpu: Any) -> None:
    """Bit by bit where each node is computed as the model says; onnxruntime's own softmax of 8 bits is up to a step off
    that, and so are we of it."""
    graph = attention(dtype, masked=masked)
    x = np.random.default_rng(1).standard_normal((1, TOKENS, HEADS * DEPTH)).astype("float32")
    made = model(graph.nodes, graph.constants, x.shape, 4)
    found, expected, notes = both(made, x, tmp_path, integer_cpu)
    assert notes == ["int8: 2 of 2 convolutions and products with quantised operands compute in integers"]
    np.testing.assert_array_equal(found, computed(made, x, optimised=False))
    assert np.abs(found - expected).max() < 1.01 * RESULT


def test_a_second_rounding_that_moves_nothing_is_left_out() -> None:
    first, half = Rounding(Affine(scale=0.32, zero=125), "uint8"), Step("relax.divide", 8.0, None, False)
    same, other = (Rounding(Affine(scale=scale, zero=125), "uint8") for scale in (0.04, 0.06))
    elsewhere, more = Rounding(Affine(scale=0.04, zero=100), "uint8"), Step("relax.add", None, 0, False)
    one = Rounding(Affine(scale=0.04, zero=125), "uint8")
    assert scores_at_once((first, half, same)) == (one, 0.32, ())
    assert scores_at_once((first, half, same, more, other)) == (one, 0.32, (more, other))
    for steps in ((half, other), (half, elsewhere), (more, same), (half,), ()):  # the third adds a tensor
        assert scores_at_once((first, *steps)) == (first, 0.32, steps)
    assert scores_at_once((half, same)) == (None, 1.0, (half, same))


@pytest.mark.few(1)
def test_scores_in_float32_are_no_hindrance(tmp_path: Any, integer_cpu: Any) -> None:
    graph = attention("uint8", masked=False, rounded_scores=False)
    x = np.random.default_rng(2).standard_normal((1, TOKENS, HEADS * DEPTH)).astype("float32")
    made = model(graph.nodes, graph.constants, x.shape, 4)
    found, _, notes = both(made, x, tmp_path, integer_cpu)
    assert notes == ["int8: 2 of 2 convolutions and products with quantised operands compute in integers"]
    assert np.abs(found - computed(made, x, optimised=False)).max() < 1.01 * RESULT


@pytest.mark.few(1)
def test_attention_of_open_lengths_is_that_of_known_ones(make_hub: Any, integer_cpu: Any) -> None:
    def build(length: Any) -> Any:
        hub = make_hub(layout="auto")
        executable = compile_module(open_attention(length), integer_cpu, hub)
        assert not hub.failures
        assert hub.notes == ["int8: 2 of 2 convolutions and products with quantised operands compute in integers"]
        assert [each.template for each in hub.workloads if "attention" in each.name] == ["attention"]
        machine = relax.VirtualMachine(executable, tvm.cpu())
        return lambda arrays: machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()

    kernel = build(tvm.tirx.Var("s", "int64"))
    for length in (9, 13, 40, 100):
        rng = np.random.default_rng(length)
        arrays = [rng.normal(0, 1.5, (1, length, HEADS, DEPTH)).astype("float32") for _ in range(3)]
        np.testing.assert_array_equal(kernel(arrays), build(length)(arrays))


def open_attention(length: Any) -> Any:
    """Of three tensors of so many tokens."""

    def make(b: Any, *tensors: Any) -> Any:
        def rounded(x: Any, scale: float, zero: int) -> Any:
            parameters = relax.const(np.float32(scale)), relax.const(np.uint8(zero))
            return b.emit(op.dequantize(b.emit(op.quantize(x, *parameters, out_dtype="uint8")), *parameters))

        def heads(x: Any, order: list[int], scale: float, zero: int) -> Any:
            return rounded(b.emit(op.permute_dims(rounded(x, scale, zero), order)), scale, zero)

        orders, affines = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), ((0.03, 120), (0.04, 131), (0.02, 127))
        query, key, value = (heads(*each, *affine) for *each, affine in zip(tensors, orders, affines, strict=True))
        scores = b.emit(op.divide(rounded(b.emit(op.matmul(query, key)), 0.33, 121), relax.const(np.float32(5.6))))
        weights = rounded(b.emit(op.nn.softmax(rounded(scores, 0.06, 140), axis=-1)), 1 / 255, 0)
        return rounded(b.emit(op.matmul(weights, value)), RESULT, 126)

    op = relax.op
    return net(make, *[(1, length, HEADS, DEPTH)] * 3)


@pytest.mark.few(1)
def test_all_products_of_an_encoder_compute_in_integers(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, integer_cpu: Any
) -> None:
    """As onnxruntime's quantiser writes it."""
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    config = BertConfig(layers=1, hidden=64, heads=2, feed_forward=64, sequence=TOKENS)
    network = in_precision(Bert(config=config).network("tiny"), "int8")
    (x,) = network.sample_inputs().values()
    made = network.onnx_model()
    found, _, notes = both(made, x, tmp_path, integer_cpu)
    expected = computed(made, x, optimised=False)
    assert notes == ["int8: 8 of 8 convolutions and products with quantised operands compute in integers"]
    step = np.diff(np.unique(expected)).max()
    assert np.abs(found - expected).max() < 1.01 * step
