"""Names of a model's nodes on their way to the calls of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.slow

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only if there is onnx

from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.origins import call_names, fused_with_names, named, names_of, spread_names  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402


def two_equal_layers() -> Any:
    """A convolution and a ReLU, twice alike but for the weights; the second ReLU has no name."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((8, 8, 1, 1)).astype("float32"), f"w{at}") for at in (0, 1)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first/conv"),
        helper.make_node("Relu", ["a"], ["b"], name="first/relu"),
        helper.make_node("Conv", ["b", "w1"], ["c"], name="second/conv"),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 4, 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "twice", kinds[:1], kinds[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("layout", ["keep", "auto"])
@pytest.mark.parametrize("target", [{"kind": "llvm", "mcpu": "znver4"}, {"kind": "cuda", "arch": "sm_90"}])
def test_each_call_of_one_function_has_its_own_nodes(target: dict[str, Any], layout: Any) -> None:
    from tunehub_builder.networks.onnx_import import to_relax

    found = call_names(prepare(to_relax(two_equal_layers(), "twice"), tvm.target.Target(target), layout=layout))
    (twice,) = [names for name, names in found.items() if "conv2d" in name]
    assert twice == [("first/conv", "first/relu"), ("second/conv", "y")]


def test_a_module_without_names_stays_as_it_is() -> None:
    from ...tiny_networks import tiny_mobilenet

    mod = tiny_mobilenet().relax_module()
    assert spread_names(mod).same_as(mod)
    fuse = tvm.relax.transform.FuseOps()
    legal = tvm.relax.transform.AnnotateTIROpPattern()(tvm.relax.transform.LegalizeOps()(mod))
    tvm.ir.assert_structural_equal(fused_with_names(fuse)(legal), fuse(legal))


def test_names_change_no_structure() -> None:
    from tvm.relax.frontend.onnx import from_onnx

    from tunehub_builder.networks.onnx_import import to_relax

    model = two_equal_layers()
    named, plain = to_relax(model, "twice"), from_onnx(model, keep_params_in_input=False)
    tvm.ir.assert_structural_equal(named["main"].body, plain["main"].body, map_free_vars=True)
    (block,) = named["main"].body.blocks
    assert [names_of(each.var) for each in block.bindings[:2]] == [("first/conv",), ("first/relu",)]


def doubled(first: Any) -> Any:
    """Results of ``first`` added to themselves 64 times, the last sum with a name."""
    builder, x = tvm.relax.BlockBuilder(), tvm.relax.Var("x", tensor_class()([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(first(x))
            for _ in range(64):
                value = builder.emit(tvm.relax.op.add(value, value))
            result = builder.emit_output(named(builder.normalize(tvm.relax.op.negative(value)), ("last",)))
        builder.emit_func_output(result)
    return builder.get()


def test_values_of_which_others_are_made_again_and_again_are_compared_once() -> None:
    before, after = (doubled(first) for first in (tvm.relax.op.exp, tvm.relax.op.negative))
    named_after = fused_with_names(lambda _mod: after)(before)
    (block,) = named_after["main"].body.blocks
    assert names_of(block.bindings[-1].var) == ("last",)
