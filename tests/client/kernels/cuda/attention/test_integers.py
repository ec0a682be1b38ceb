"""Attention of a quantised model as one kernel, its threads in lockstep on a CPU: the model's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.backend.cuda.ptx", reason="needs TVM 0.27")

from tvm import relax

from tunehub.graph.attention.cuda.integers import IntegerAttentions
from tunehub.graph.quantised.integers import in_integers
from tunehub.kernels.cuda.attention.kernels import kernel_of
from tunehub.kernels.cuda.attention.rule import tiles
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.kernels.cuda.integer_unit import TensorCores
from tunehub.kernels.devices.known import default_device
from tunehub.tir.nodes import buffer_kind, calls_in, constant_array, is_constant, operator_of, parameters

from .cases import H200
from .lockstep import run as run_in_lockstep

pytestmark = pytest.mark.slow
op = relax.op
HEADS, QUERIES, DEPTH = 2, 24, 32
SCALES = {"q": (0.04, 117), "k": (0.05, 140), "v": (0.03, 100), "s": (0.4, 128), "w": (1 / 255, 0), "o": (0.02, 130)}


def _constants(name: str) -> tuple[Any, Any]:
    scale, zero = SCALES[name]
    return relax.const(np.float32(scale)), relax.const(np.uint8(zero))


def _model() -> Any:
    """Of bytes [1, queries, heads, depth], all between quantised, as bytes."""
    builder = relax.BlockBuilder()
    shape = (1, QUERIES, HEADS, DEPTH)
    q, k, v = inputs = [relax.Var(name, relax.TensorType(shape, "uint8")) for name in "qkv"]
    with builder.function("main", inputs):
        with builder.dataflow():
            emit = builder.emit

            def rounded(x: Any, name: str) -> Any:
                return emit(
                    op.dequantize(emit(op.quantize(x, *_constants(name), out_dtype="uint8")), *_constants(name))
                )

            def integers(x: Any, name: str, axes: list[int]) -> Any:
                turned = emit(op.permute_dims(x, axes))
                return emit(op.dequantize(turned, *_constants(name)))

            scores = rounded(emit(op.matmul(integers(q, "q", [0, 2, 1, 3]), integers(k, "k", [0, 2, 3, 1]))), "s")
            scores = emit(op.multiply(scores, relax.const(np.float32(DEPTH**-0.5))))
            weights = rounded(emit(op.nn.softmax(scores)), "w")
            result = emit(op.matmul(weights, integers(v, "v", [0, 2, 1, 3])))
            result = builder.emit_output(emit(op.quantize(result, *_constants("o"), out_dtype="uint8")))
        builder.emit_func_output(result)
    return builder.get()


def test_scores_weights_and_results_are_rounded_as_the_model_says() -> None:
    notes: list[str] = []
    written = in_integers(_model(), TensorCores(), notes.append, IntegerAttentions)
    assert notes == ["int8: 2 of 2 convolutions and products with quantised operands compute in integers"]
    function = next(each for name, each in written.functions.items() if name.name_hint.startswith("attention"))
    (numbers,) = _constants_of_calls(written)
    attention = attention_of(function)
    assert attention is not None and [str(buffer_kind(each).dtype) for each in parameters(function)][-1] == "uint8"
    tile = next(iter(tiles(attention, H200)))
    rng = np.random.default_rng(0)
    given = {name: rng.integers(40, 216, (1, QUERIES, HEADS, DEPTH)) for name in "qkv"}
    narrow = [(each - SCALES[name][1]).astype("float16") for name, each in given.items()]
    out = np.zeros((1, QUERIES, HEADS, DEPTH), "uint8")
    run_in_lockstep(kernel_of(attention, tile, default_device().multiprocessors), *narrow, numbers, out)
    want = _numpy(*narrow)
    assert np.abs(out.astype(int) - want).max() <= 1 and (out != want).mean() < 0.02  # a weight in the middle of two
    assert len(np.unique(want)) > 20


def _constants_of_calls(mod: Any) -> list[Any]:
    """The constants that kernels are called with, of the last attention."""
    calls = [call for call in calls_in(mod) if operator_of(call) == "relax.call_tir"]
    return [constant_array(each) for each in calls[-1].args[1].fields if is_constant(each)]


def _numpy(q: Any, k: Any, v: Any) -> Any:
    def rounded(x: Any, name: str) -> Any:
        scale, zero = SCALES[name]
        return np.clip(np.rint(x / scale) + zero, 0, 255) - zero

    q, k, v = (each.astype("float64").transpose(0, 2, 1, 3) for each in (q, k, v))
    scores = rounded(q @ k.swapaxes(-1, -2) * (SCALES["q"][0] * SCALES["k"][0]), "s") * SCALES["s"][0] * DEPTH**-0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = rounded(powers / powers.sum(-1, keepdims=True), "w")
    result = rounded(weights @ v * (SCALES["w"][0] * SCALES["v"][0]), "o") + SCALES["o"][1]
    return result.transpose(0, 2, 1, 3).astype(int)
