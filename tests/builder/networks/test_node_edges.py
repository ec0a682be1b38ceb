"""Which calls read which, by the nodes that they compute."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytestmark = pytest.mark.fast

import onnx  # noqa: E402 - only if there is onnx
from onnx import TensorProto, helper  # noqa: E402

from tunehub_builder.networks.node_edges import call_edges, node_sources  # noqa: E402


def test_calls_read_what_others_compute_also_through_what_became_a_constant(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["c"], name="second"),
        helper.make_node("Add", ["c", "a"], ["y"], name="sum"),
    ]
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", kinds[:1], kinds[1:])), tmp_path / "model.onnx")
    sources = node_sources(tmp_path / "model.onnx")
    assert sources == {"first": (), "b": ("first",), "second": ("b",), "sum": ("second", "first")}
    assert call_edges([["first"], ["second"], ["sum"]], sources) == {(0, 1), (1, 2), (0, 2)}
    assert call_edges([["first", "b", "second", "sum"], []], sources) == set()
    assert node_sources(tmp_path / "model.pt2") == {}
