"""Transformer encoders with planned layouts compute what TVM's plain pipeline computes, in as many kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

import tunehub  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.workloads import call_counts  # noqa: E402
from tunehub_builder.networks.bert import Bert, BertConfig  # noqa: E402
from tunehub_builder.networks.network import Network  # noqa: E402

from ...sweeps import swept  # noqa: E402

pytestmark = pytest.mark.slow

SMALL = BertConfig(layers=2, sequence=13, hidden=64, heads=4, feed_forward=96)


@pytest.fixture
def encoder() -> Network:
    return Bert(config=SMALL, seed=3).network("small")


@pytest.fixture
def target() -> Any:
    return tunehub.host_target()


def output(executable: Any, network: Network) -> Any:
    arguments = [tvm.runtime.tensor(value) for value in network.sample_inputs().values()]
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*arguments).numpy()


@pytest.mark.parametrize("source", swept(["onnx"], ["relax"]))
def test_an_encoder_computes_the_same(encoder: Network, target: Any, source: str) -> None:
    if source == "onnx":
        onnx = pytest.importorskip("tvm.relax.frontend.onnx")
        module = onnx.from_onnx(encoder.onnx_model(), keep_params_in_input=False)
    else:
        module = encoder.relax_module()
    planned = output(tunehub.compile(module, target, layout="auto"), encoder)
    plain = output(tvm.compile(module, target), encoder)
    assert np.abs(planned - plain).max() <= 1e-5 * np.abs(plain).max()


def test_weights_are_packed_in_kernels_with_their_epilogues(encoder: Network, target: Any) -> None:
    counts = {
        layout: call_counts(prepare(encoder.relax_module(), target, layout=layout)) for layout in ("keep", "auto")
    }
    assert counts["auto"].total() == counts["keep"].total()
    packed = {name: count for name, count in counts["auto"].items() if "dense" in name}
    assert sum(packed.values()) == 6 * SMALL.layers
    assert all("add" in name for name in packed)
