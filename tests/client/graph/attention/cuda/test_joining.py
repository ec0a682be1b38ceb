"""Attention of exported networks becomes one function, which reads heads where they lie, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax
from tvm.relax import op
from tvm_ffi import structural_equal

from tunehub.compiler.preparing import prepare
from tunehub.graph.attention.cuda.joining import join_attention
from tunehub.kernels.cuda import choose
from tunehub.kernels.cuda.attention import rule
from tunehub.kernels.cuda.attention.rule import serves
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.tir.nodes import buffer_shapes, main_module

from .....unoptimised import UNOPTIMISED
from ....kernels.cuda.attention.cases import H200
from ....kernels.cuda.attention.graphs import DEPTH, GRAPHS, HEADS, LENGTH, WIDTH, Graph, inputs, module, run
from ....kernels.cuda.attention.lockstep import run as run_in_lockstep

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
@pytest.mark.few(2)
def test_one_function_computes_what_the_graph_does(name: str) -> None:
    mod = module(GRAPHS[name], "float32")
    joined = join_attention(mod)
    (function,) = kernels(joined)
    left = operators(joined)
    assert left.count("call_tir") == 1
    assert left.count("matmul") == (2 if name == "rows_first" else 0)  # of the layers around
    assert not {"nn.softmax", "strided_slice", "take", "broadcast_to", "where"} & {*left}
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


def _rounded(to: str = "float16") -> Callable[[Graph], Any]:
    """As a network in half precision is once its products add up in float32: what these give is rounded ``to`` that."""

    def make(g: Graph) -> Any:
        q, k, v = (g.parameter(1, LENGTH, WIDTH) for _ in range(3))
        scores = g(op.matmul(g.heads(q, 0, 2, 1, 3), g.heads(k, 0, 2, 3, 1), out_dtype="float32"))
        scores = g(op.multiply(g(op.astype(scores, g.dtype)), g.number(DEPTH**-0.5)))
        context = g(op.matmul(g(op.nn.softmax(scores, axis=-1)), g.heads(v, 0, 2, 1, 3), out_dtype="float32"))
        return g.merged(g(op.astype(context, to)))

    return make


def test_a_cast_becomes_the_functions_own_and_so_does_what_is_behind_it() -> None:
    mod = module(_rounded(), "float16")
    joined = join_attention(mod)
    (function,) = kernels(joined)
    assert sorted(set(operators(joined))) == ["call_tir", "reshape"]
    assert buffer_shapes(function)[-1] == ((1, LENGTH, HEADS, DEPTH), "float16")
    given, target = inputs(mod), tvm.target.Target(UNOPTIMISED)
    np.testing.assert_allclose(run(joined, given, target), run(mod, given, target), rtol=2e-3, atol=2e-3)


def test_results_in_float32_and_in_float16_are_of_two_functions() -> None:
    def both(g: Graph) -> Any:
        whole = _rounded("float32")(g)
        return relax.Tuple([whole, _rounded()(g)])

    found = kernels(join_attention(module(both, "float16")))
    assert sorted(buffer_shapes(each)[-1][1] for each in found) == ["float16", "float32"]


def test_what_is_rounded_to_integers_or_was_rounded_before_stays_a_cast() -> None:
    assert "astype" in operators(join_attention(module(_rounded("int8"), "float16")))
    wider = join_attention(module(lambda g: g(op.astype(GRAPHS["eager"](g), "float32")), "float16"))
    assert "astype" in operators(wider)


@pytest.mark.skipif(not serves(tvm.target.Target({"kind": "cuda", "arch": "sm_90"})), reason="needs TVM 0.27")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_kernel_writes_rounded_heads_where_the_next_layer_reads_them(arch: str) -> None:
    mod, target = module(_rounded(), "float16"), tvm.target.Target({**H200, "arch": arch})
    (function,) = kernels(join_attention(mod))
    found = choose.by_one(rule, main_module(function), target)
    assert found is not None
    given, out = inputs(mod), np.full((1, LENGTH, HEADS, DEPTH), np.nan, "float16")
    run_in_lockstep(found[0].mod["main"], *given, out)
    want = run(mod, given, tvm.target.Target(UNOPTIMISED))
    np.testing.assert_allclose(out.reshape(want.shape), want, rtol=2e-3, atol=2e-3)


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


def _layer(same_rows: bool, biases: bool, transposed: bool) -> Any:
    """A layer whose queries, keys and values are products of its input with constants."""

    def make(g: Graph) -> Any:
        rng, width = np.random.default_rng(1), HEADS * DEPTH
        rows = [g.parameter(1, LENGTH, width)]
        rows += [rows[0] if same_rows else g.parameter(1, LENGTH, width) for _ in range(2)]
        parts = []
        for source in rows:
            array = rng.uniform(-0.2, 0.2, (width, width)).astype(g.dtype)
            weight = relax.const(array.T.copy() if transposed else array)
            product = g(op.matmul(source, g(op.permute_dims(weight)) if transposed else weight))
            bias = relax.const(rng.uniform(-1, 1, width).astype(g.dtype))
            parts.append(g(op.add(bias, product)) if biases else product)
        q, k, v = parts
        scores = g(op.matmul(g.heads(q, 0, 2, 1, 3), g.heads(k, 0, 2, 3, 1)))
        return g.merged(g(op.matmul(g(op.nn.softmax(scores, axis=-1)), g.heads(v, 0, 2, 1, 3))))

    return make


@pytest.mark.parametrize(("biases", "transposed"), [(True, False), (True, True), (False, False)])
@pytest.mark.few(1)
def test_queries_keys_and_values_of_the_same_rows_are_one_product(biases: bool, transposed: bool) -> None:
    mod = module(_layer(True, biases, transposed), "float16")
    joined = join_attention(mod)
    assert operators(joined).count("matmul") == 1
    (function,) = kernels(joined)
    assert buffer_shapes(function)[0][0] == (1, LENGTH, 3 * HEADS * DEPTH)
    given, target = inputs(mod), tvm.target.Target(UNOPTIMISED)
    np.testing.assert_allclose(run(joined, given, target), run(mod, given, target), rtol=2e-2, atol=2e-2)


def test_products_of_other_rows_and_of_float32_stay_apart() -> None:
    assert operators(join_attention(module(_layer(False, True, False), "float16"))).count("matmul") == 3
    assert operators(join_attention(module(_layer(True, True, False), "float32"))).count("matmul") == 3


@pytest.mark.skipif(not serves(tvm.target.Target({"kind": "cuda", "arch": "sm_90"})), reason="needs TVM 0.27")
def test_a_vision_transformer_is_prepared_with_channels_last() -> None:
    """TVM's ConvertLayout fails on its ``squeeze`` along an axis that counts from the end, which is gone before."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    prepared = prepare(module(GRAPHS["vit"], "float16"), target, channels_last=True)
    assert sum(attention_of(each) is not None for each in kernels(prepared)) == 1
