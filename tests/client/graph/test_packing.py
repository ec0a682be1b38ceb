"""Weights packed with numpy are those that TVM's FoldConstant computes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from tunehub.compiler.preparing import prepare
from tunehub.compiler.schedule.apply import apply_exact
from tunehub.graph.packing import pack_weights
from tunehub.tir.traces import import_trace
from tunehub.tir.versions import CONSTANTS

pytestmark = pytest.mark.slow

WEIGHT = (16, 8, 3, 3)


def split_module(nets: Any, target: Any, final: list[Any]) -> Any:
    """A convolution whose weight is copied by `final`, after TVM has split the copy off."""
    mod = prepare(nets.conv(channels=8, out=16, size=6), target)
    (variable,) = [v for v, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc)]
    index_map = {"index_map": {"ndim": 4, "final": final, "inverse": None}}
    trace = [
        ["GetSBlock", [], ["conv2d_nchw", "main"], ["b0"]],
        ["CacheRead", ["b0", []], [1, "global"], ["b1"]],
        ["Annotate", ["b1", True], ["meta_schedule.layout_rewrite_preproc"], []],
        ["TransformLayout", ["b0", index_map], [1, 0, None, 1], []],
    ]
    function = mod[variable]
    task = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    scheduled = apply_exact(task, import_trace([trace, []])).mod["main"].without_attr("global_symbol")
    mod.update_func(variable, scheduled)
    return relax.transform.SplitLayoutRewritePreproc()(mod)


def constants(mod: Any) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if type(node).__name__ in CONSTANTS:
            found.append((node.data if hasattr(node, "data") else node.value).numpy())

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def packed(mod: Any) -> Any:
    (weight,) = [c for c in constants(mod) if c.size >= np.prod(WEIGHT)]
    return weight


def random_layout(seed: int, divisors: list[list[int]]) -> list[Any]:
    """Each axis whole or split, all parts in a random order."""
    rng = random.Random(seed)
    parts: list[Any] = []
    for axis, choices in enumerate(divisors):
        factor = rng.choice(choices)
        parts += [f"v{axis}"] if factor == 1 else [["//", f"v{axis}", factor], ["%", f"v{axis}", factor]]
    rng.shuffle(parts)
    return parts


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8)
@given(st.integers(0, 1 << 30))
def test_packing_equals_constant_folding(nets: Any, target: Any, seed: int) -> None:
    final = random_layout(seed, [[1, 2, 4, 8, 16], [1, 2, 4], [1, 3], [1, 3]])
    mod = split_module(nets, target, final)
    with target:
        by_tvm = relax.transform.FoldConstant()(mod)
    ours = pack_weights(mod)
    assert not [v for v in relax_calls(ours) if v.endswith("_weight_prepack")]
    np.testing.assert_array_equal(packed(ours), packed(by_tvm))


def test_gaps_of_a_padded_layout_are_zero(nets: Any, target: Any) -> None:
    mod = split_module(nets, target, [["//", "v0", 5], "v1", "v2", "v3", ["%", "v0", 5]])
    weight = packed(pack_weights(mod))
    (original,) = [c for c in constants(mod) if c.shape == WEIGHT]
    assert weight.shape == (4, 8, 3, 3, 5)
    flat = np.moveaxis(weight, -1, 1).reshape(20, 8, 3, 3)
    np.testing.assert_array_equal(flat[:16], original)
    assert not flat[16:].any()


def test_weights_that_are_parameters_are_left_alone(nets: Any, target: Any) -> None:
    mod = nets.build(lambda b, x, w: b.emit(relax.op.nn.conv2d(x, w, padding=1)), (1, 8, 6, 6), WEIGHT)
    before = prepare(mod, target)
    assert relax_calls(pack_weights(before)) == relax_calls(before)
    assert not constants(pack_weights(before))


def relax_calls(mod: Any) -> list[str]:
    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and getattr(node.op, "name", "").startswith("relax.call_tir"):
            names.append(node.args[0].name_hint)

    relax.analysis.post_order_visit(mod["main"], visit)
    return names


def test_a_function_that_computes_is_not_packed(nets: Any, target: Any) -> None:
    """Only copies are done here; anything else is left for TVM, whatever it is called."""
    builder = relax.BlockBuilder()
    x = nets.var("x", (4, 4))
    with builder.function("main", [x]):
        with builder.dataflow():
            doubled = builder.call_te(_double, nets.const(4, 4), primfunc_name_hint="conv_weight_prepack")
            output = builder.emit_output(builder.emit(relax.op.add(x, builder.emit(doubled))))
        builder.emit_func_output(output)
    mod = builder.get()
    assert relax_calls(pack_weights(mod)) == relax_calls(mod) == ["conv_weight_prepack"]


def _double(a: Any) -> Any:
    from tvm import te

    return te.compute(a.shape, lambda *i: a(*i) * 2, name="double")


@pytest.mark.parametrize("kind", ["conv", "residual"])
def test_modules_without_packing_stay(nets: Any, target: Any, kind: str) -> None:
    mod = prepare(getattr(nets, kind)(), target)
    assert relax_calls(pack_weights(mod)) == relax_calls(mod)
