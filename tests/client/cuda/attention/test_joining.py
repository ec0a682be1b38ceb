"""Attention of exported networks becomes one function, which reads heads where they lie, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax
from tvm.relax import op
from tvm_ffi import structural_equal

from tunehub.cuda.attention.joining import join_attention
from tunehub.cuda.attention.spec import attention_of
from tunehub.relax.nodes import buffer_shapes

from ....threads_as_loops import UNOPTIMISED
from .graphs import DEPTH, GRAPHS, HEADS, LENGTH, Graph, inputs, module, run

pytestmark = pytest.mark.slow


def operators(mod: Any) -> list[str]:
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call):
            found.append(str(getattr(node.op, "name", "")).removeprefix("relax."))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def kernels(mod: Any) -> list[Any]:
    return [function for function in mod.functions.values() if isinstance(function, tvm.tirx.PrimFunc)]


@pytest.mark.parametrize("name", GRAPHS)
def test_one_function_computes_what_the_graph_does(name: str) -> None:
    mod = module(GRAPHS[name], "float32")
    joined = join_attention(mod)
    (function,) = kernels(joined)
    left = operators(joined)
    assert left.count("call_tir") == 1
    assert not {"matmul", "nn.softmax", "strided_slice", "take", "broadcast_to", "where"} & {*left}
    assert left.count("permute_dims") == (2 if name == "llama" else 0)  # in front of the sums
    found = attention_of(function)
    assert found is not None
    assert (found.depth, found.causal) == (
        DEPTH,
        {"gpt2": 0, "llama": 0, "split": 0, "operator": LENGTH - 16}.get(name),
    )
    given, target = inputs(mod), tvm.target.Target(UNOPTIMISED)
    np.testing.assert_allclose(run(joined, given, target), run(mod, given, target), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", GRAPHS)
def test_half_precision_is_found_as_well(name: str) -> None:
    (function,) = kernels(join_attention(module(GRAPHS[name], "float16")))
    found = attention_of(function)
    assert found is not None
    assert found.dtype == "float16"


def test_heads_are_read_where_a_linear_layer_wrote_them() -> None:
    (function,) = kernels(join_attention(module(GRAPHS["vit"], "float16")))
    assert [shape for shape, _ in buffer_shapes(function)] == [
        (LENGTH, 1, 3 * HEADS * DEPTH),
        (LENGTH, 1, HEADS, DEPTH),
    ]


def _other_weights(g: Graph) -> Any:
    """Weights that something else is done with."""
    q, k, v = (g.parameter(1, HEADS, LENGTH, DEPTH) for _ in range(3))
    weights = g(op.nn.softmax(g(op.matmul(q, g(op.permute_dims(k, [0, 1, 3, 2])))), axis=-1))
    return g(op.matmul(g(op.multiply(weights, weights)), v))


def _other_axis(g: Graph) -> Any:
    q, k, v = (g.parameter(1, HEADS, LENGTH, DEPTH) for _ in range(3))
    return g(op.matmul(g(op.nn.softmax(g(op.matmul(q, g(op.permute_dims(k, [0, 1, 3, 2])))), axis=-2)), v))


def _odd_depth(g: Graph) -> Any:
    q, k, v = (g.parameter(1, HEADS, LENGTH, 20) for _ in range(3))
    return g(op.matmul(g(op.nn.softmax(g(op.matmul(q, g(op.permute_dims(k, [0, 1, 3, 2])))), axis=-1)), v))


def _hidden_by_weights(g: Graph) -> Any:
    """Zero where another tensor is NaN."""
    q, k, v = (g.parameter(1, HEADS, LENGTH, DEPTH) for _ in range(3))
    weights = g(op.nn.softmax(g(op.matmul(q, g(op.permute_dims(k, [0, 1, 3, 2])))), axis=-1))
    other = g.parameter(1, HEADS, LENGTH, LENGTH)
    return g(op.matmul(g(op.where(g(op.isnan(other)), g.number(0), weights)), v))


@pytest.mark.parametrize("make", [_other_weights, _other_axis, _odd_depth, _hidden_by_weights])
def test_what_is_no_such_attention_stays(make: Any) -> None:
    mod = module(make, "float32")
    assert structural_equal(join_attention(mod), mod)
