"""Attention over pixels whose heads lie along channels reads and writes channels beside each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax
from tvm.relax import op

from tunehub.graph.attention.cuda.images import attention_over_pixels
from tunehub.graph.attention.cuda.joining import join_attention
from tunehub.graph.layout.cuda.channels_last import channels_last
from tunehub.tir.nodes import calls_in, operator_of, tensor_class

from .....unoptimised import UNOPTIMISED

pytestmark = pytest.mark.slow

_HEADS, _DEPTH, _SIDE = 2, 16, 4


def _network() -> Any:
    """A convolution that gives queries, keys and values of all heads, attention with a table, a convolution."""
    rng, dtype, wide = np.random.default_rng(0), "float16", _HEADS * _DEPTH

    def weight(*shape: int) -> Any:
        return relax.const((rng.standard_normal(shape) / 8).astype(dtype))

    image = relax.Var("image", tensor_class()((2, wide, _SIDE, _SIDE), dtype))
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [image]):
        with builder.dataflow():
            first = emit(op.nn.conv2d(emit(op.nn.relu(image)), weight(3 * wide, wide, 1, 1)))
            first = emit(op.add(first, weight(1, 3 * wide, 1, 1)))
            heads = emit(op.reshape(first, (2, _HEADS, 3 * _DEPTH, _SIDE * _SIDE)))
            ends = [(at * _DEPTH, (at + 1) * _DEPTH) for at in range(3)]
            parts = [emit(op.strided_slice(heads, [2], [begin], [end])) for begin, end in ends]
            q, v = (emit(op.permute_dims(parts[at], [0, 1, 3, 2])) for at in (0, 2))
            scores = emit(op.add(emit(op.matmul(q, parts[1])), weight(1, _HEADS, _SIDE**2, _SIDE**2)))
            made = emit(op.matmul(emit(op.nn.softmax(scores)), v))
            back = emit(op.reshape(emit(op.permute_dims(made, [0, 1, 3, 2])), (2, wide, _SIDE, _SIDE)))
            result = builder.emit_output(op.nn.relu(emit(op.nn.conv2d(back, weight(8, wide, 1, 1)))))
        builder.emit_func_output(result)
    return builder.get()


def _output(mod: Any) -> Any:
    image = np.random.default_rng(1).standard_normal((2, _HEADS * _DEPTH, _SIDE, _SIDE)).astype("float16")
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target(UNOPTIMISED)), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(image)).numpy().astype("float32")


def test_only_the_image_itself_is_turned_before_and_behind_attention_over_pixels() -> None:
    mod = _network()
    turned = channels_last(join_attention(attention_over_pixels(mod)))
    names = [operator_of(call) for call in calls_in(turned)]
    assert names.count("relax.call_tir") == 1
    assert not {"relax.strided_slice", "relax.nn.softmax", "relax.nn.conv2d"} & {*names}
    images = [call for call in calls_in(turned) if operator_of(call) == "relax.permute_dims"]
    assert sum(len(call.attrs.axes) == 4 for call in images) == 2
    expected = _output(mod)
    assert np.abs(_output(turned) - expected).max() <= 1e-2 * np.abs(expected).max()


def test_images_without_attention_stay_as_they_are() -> None:
    joined = join_attention(attention_over_pixels(_network()))
    assert attention_over_pixels(joined).same_as(joined)
