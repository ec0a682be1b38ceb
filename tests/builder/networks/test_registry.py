"""The list of networks: names, cost of importing, errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tunehub_builder import networks

pytestmark = pytest.mark.fast

EXPECTED = {
    *("squeezenet", "resnet50", "shufflenet", "inception_v1", "inception_v2", "densenet121"),
    *("vgg19", "alexnet", "zfnet512", "mobilenet_v2", "bert_base", "vit_b16", "bert_base_fp16", "resnet50_fp16"),
}


def test_names_are_the_standard_networks() -> None:
    assert set(networks.names()) == EXPECTED
    assert len(networks.names()) == len(EXPECTED)


@pytest.mark.parametrize("name", networks.names())
def test_inputs_are_identifiers_with_fixed_shapes(name: str) -> None:
    network = networks.get(name)
    assert network.name == name
    assert network.source
    for data, shape in network.inputs.items():
        assert data.isidentifier()
        assert all(d > 0 for d in shape)


def test_networks_are_known_in_half_precision() -> None:
    network = networks.get("squeezenet_fp16")
    assert (network.name, network.dtype) == ("squeezenet_fp16", "float16")
    assert networks.is_known("squeezenet_fp16")
    for name in ("squeezenet_fp16_fp16", "mobilenet_v2_fp16"):
        assert not networks.is_known(name)
        with pytest.raises(networks.UnknownNetworkError):
            networks.get(name)


def test_unknown_name_lists_the_names_and_mentions_files() -> None:
    with pytest.raises(networks.UnknownNetworkError) as caught:
        networks.get("resnet51")
    message = str(caught.value)
    assert "'resnet51'" in message
    assert all(name in message for name in networks.names())
    assert "model.onnx" in message


def test_listing_and_getting_import_neither_tvm_nor_onnx() -> None:
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from tunehub_builder import networks\n"
        "[networks.get(name) for name in networks.names()]\n"
        "print(sorted({'tvm', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sample_inputs_depend_on_the_seed_only() -> None:
    network = networks.get("squeezenet")
    first, again, other = network.sample_inputs(1), network.sample_inputs(1), network.sample_inputs(2)
    assert list(first) == list(network.inputs)
    assert first["data_0"].dtype == np.float32
    np.testing.assert_array_equal(first["data_0"], again["data_0"])
    assert not np.array_equal(first["data_0"], other["data_0"])


def test_sample_inputs_of_integers_and_bools_are_zero_or_one() -> None:
    network = networks.Network(
        name="n",
        source="test",
        inputs={"ids": (50,), "mask": (50,)},
        dtype="int64",
        input_dtypes={"mask": "bool"},
        definition=networks.get("squeezenet").definition,
    )
    sample = network.sample_inputs(0)
    assert sample["ids"].dtype == np.int64
    assert sample["mask"].dtype == np.bool_
    assert set(sample["ids"].tolist()) == {0, 1}
