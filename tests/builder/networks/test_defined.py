"""MobileNetV2, BERT and ViT: the same function in Relax and in ONNX, on small sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tunehub_builder.networks import Network, get
from tunehub_builder.networks.bert import Bert, BertConfig
from tunehub_builder.networks.bert import plan as bert_plan
from tunehub_builder.networks.mobilenet_v2 import BottleneckStage, MobileNetV2, MobileNetV2Config
from tunehub_builder.networks.mobilenet_v2 import plan as mobilenet_plan
from tunehub_builder.networks.vit import ViT, ViTConfig
from tunehub_builder.networks.vit import plan as vit_plan

pytestmark = pytest.mark.slow

SMALL_MOBILENET = MobileNetV2Config(
    image=16,
    stem=8,
    stages=(
        BottleneckStage(expansion=1, channels=8, repeats=1, stride=1),
        BottleneckStage(expansion=2, channels=12, repeats=2, stride=2),
    ),
    head=16,
    classes=10,
)
SMALL_BERT = BertConfig(sequence=8, layers=1, hidden=16, heads=2, feed_forward=32)
SMALL_VIT = ViTConfig(image=8, patch=4, layers=1, hidden=16, heads=2, feed_forward=32, classes=10)


def small(name: str) -> Network:
    if name == "mobilenet_v2":
        return MobileNetV2(config=SMALL_MOBILENET).network(name)
    if name == "vit_b16":
        return ViT(config=SMALL_VIT).network(name)
    return Bert(config=SMALL_BERT).network(name)


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert_base", "vit_b16"])
def test_relax_and_onnx_compute_the_same(name: str, difference: Callable[[Network], float]) -> None:
    assert difference(small(name)) < 1e-4


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert_base", "vit_b16"])
def test_the_relax_module_has_one_function_of_the_data_inputs(name: str) -> None:
    pytest.importorskip("tvm")
    network = small(name)
    module = network.relax_module()
    assert [variable.name_hint for variable in module.get_global_vars()] == ["main"]
    parameters = module["main"].params
    assert [p.name if isinstance(getattr(p, "name", None), str) else p.name_hint for p in parameters] == [
        *network.inputs
    ]


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert_base", "vit_b16"])
def test_the_onnx_model_is_valid_and_has_only_the_data_inputs(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    network = small(name)
    model = network.onnx_model()
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == [*network.inputs]


def test_standard_mobilenet_v2_has_the_layers_of_the_paper() -> None:
    convolutions = [c for block in mobilenet_plan.blocks(MobileNetV2Config()) for c in block.convolutions]
    assert len(convolutions) == 52
    assert sum(c.groups > 1 for c in convolutions) == 17
    assert sum(block.residual for block in mobilenet_plan.blocks(MobileNetV2Config())) == 10
    weights = mobilenet_plan.weights(MobileNetV2Config(), 0)
    # torchvision's mobilenet_v2 has 3,504,872 parameters, of which 17,056 scales of normalisations are folded here.
    assert sum(array.size for array in weights.values()) == 3_504_872 - 17_056


def test_standard_bert_has_the_parameters_of_bert_base() -> None:
    shapes = bert_plan.parameter_shapes(BertConfig())
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 12 * 7_087_872
    assert get("bert_base").inputs == {"hidden": (1, 128, 768)}


def test_standard_vit_has_the_parameters_of_vit_b_16() -> None:
    shapes = vit_plan.parameter_shapes(ViTConfig())
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 86_567_656  # torchvision's vit_b_16
    assert get("vit_b16").inputs == {"data": (1, 3, 224, 224)}


def test_bert_exports_the_patterns_that_onnxruntime_fuses() -> None:
    pytest.importorskip("onnx")
    operators = Counter(node.op_type for node in small("bert_base").onnx_model().graph.node)
    assert operators["Gelu"] == 1
    assert operators["LayerNormalization"] == 2
    assert operators["MatMul"] == 8
    assert operators["Softmax"] == 1


def test_heads_must_divide_the_hidden_size() -> None:
    with pytest.raises(ValueError, match="hidden=10 is not a multiple of heads=3"):
        BertConfig(hidden=10, heads=3)


def test_patches_must_divide_the_image() -> None:
    with pytest.raises(ValueError, match="image=10 is not a multiple of patch=4"):
        ViTConfig(image=10, patch=4)


def test_weights_differ_between_seeds() -> None:
    first, second = (bert_plan.weights(SMALL_BERT, seed) for seed in (0, 1))
    assert not np.array_equal(first["layer0_up_weight"], second["layer0_up_weight"])
