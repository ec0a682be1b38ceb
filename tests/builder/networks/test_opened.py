"""Standard networks with open dimensions."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnx")

import tvm

from tunehub.tir.nodes import shape_of
from tunehub_builder.networks import Network, OnnxFileError, onnx_model
from tunehub_builder.networks.bert import Bert, BertConfig
from tunehub_builder.networks.opened import opened
from tunehub_builder.networks.vit import ViT, ViTConfig

from ...tiny_networks import tiny_mobilenet

pytestmark = pytest.mark.slow


def tiny_bert() -> Network:
    return Bert(config=BertConfig(layers=1, hidden=8, heads=2, feed_forward=8, sequence=4)).network("tiny")


def test_encoders_have_an_open_batch_and_an_open_sequence() -> None:
    found = opened(tiny_bert(), {"sequence": (16, 32), "batch": (2, 4)})
    assert (found.name, dict(found.dims)) == ("tiny_open", {"sequence": (16, 32), "batch": (2, 4)})
    assert list(found.inputs.values()) == [(2, 16, 8)]
    (given,) = found.onnx_model().graph.input
    assert onnx_model.shape_of(given) == ("batch", "sequence", 8)
    (parameter, *_) = found.relax_module()["main"].params
    assert [str(extent) for extent in shape_of(parameter) or ()][:2] == ["batch", "sequence"]


def test_images_have_an_open_batch_alone() -> None:
    found = opened(tiny_mobilenet(), {"batch": (1, 8)})
    (given,) = found.onnx_model().graph.input
    assert onnx_model.shape_of(given) == ("batch", 3, 16, 16)
    with pytest.raises(OnnxFileError, match=r"it has no dimension 'sequence'\. Its dimensions are batch"):
        opened(tiny_mobilenet(), {"sequence": (1, 8)})


def test_each_image_of_an_open_batch_gets_the_class_token() -> None:
    """As in the network of one image: its constant is concatenated with the patches of all."""
    config = ViTConfig(image=16, patch=8, layers=1, hidden=16, heads=2, feed_forward=8, classes=3)
    network = ViT(config=config).network("tiny")
    fixed, batch = (
        tvm.relax.VirtualMachine(tvm.compile(each.relax_module(), "llvm"), tvm.cpu())
        for each in (network, opened(network, {"batch": (1, 3)}))
    )
    images = np.random.default_rng(3).uniform(-1, 1, (3, 3, 16, 16)).astype("float32")
    found = batch["main"](tvm.runtime.tensor(images)).numpy()
    one_by_one = [fixed["main"](tvm.runtime.tensor(images[i : i + 1])).numpy() for i in range(3)]
    np.testing.assert_allclose(found, np.concatenate(one_by_one), rtol=1e-4, atol=1e-5)
