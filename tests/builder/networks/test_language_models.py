"""Language models that `tune` knows by name."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub_builder import networks
from tunehub_builder.networks.language_models import MODELS
from tunehub_builder.replay.workloads import is_known


@pytest.mark.fast
def test_a_model_has_its_quantization_behind_its_name() -> None:
    network = networks.get("llama-3-8b_q4f16_1")
    assert (network.name, network.dtype, network.inputs) == ("llama-3-8b_q4f16_1", "float16", {})
    assert networks.OPEN in network.source and set(network.dims) == {"seq_len", "batch_size"}
    assert networks.get_open("phi-3-mini_q0bf16", {"seq_len": (64,)}).dims["seq_len"] == (64,)
    assert all(is_known(f"{name}_q0f16") for name in MODELS)
    for name in ("llama-3-8b", "llama-3-8b_q", "llama_q0f16"):
        assert not networks.is_known(name)


@pytest.mark.fast
def test_what_a_language_model_does_not_have_is_said() -> None:
    with pytest.raises(networks.NetworkError, match=r"no dimension 'batch'\. Its dimensions are seq_len"):
        networks.get_open("llama-3-8b_q0f16", {"batch": (1,)})
    with pytest.raises(networks.NetworkError, match="no form in ONNX"):
        networks.get("llama-3-8b_q0f16").onnx_model()
    with pytest.raises(networks.UnknownNetworkError, match="llama-3-8b_q0f16"):
        networks.get("llama-3-9b_q0f16")


@pytest.mark.slow
@pytest.mark.sweep
def test_products_of_an_open_number_of_rows_are_tasks_for_the_template() -> None:
    """tests/builder/tuning has open dimensions' points and the tiles of one product, which take no language model."""
    from tunehub.target.descriptors import as_tvm_target
    from tunehub_builder.tuning.search.knobs import space_of
    from tunehub_builder.tuning.tasks import extract_tasks

    network, target = networks.get("qwen2.5-0.5b_q0f16"), as_tvm_target("cuda-h200")
    tasks = extract_tasks([(network.name, network.relax_module())], target, dims=network.dims)
    products = [task for task in tasks if "matmul" in task.name and task.points]
    assert len(products) == 5 and all(len(task.points) == len(network.dims["batch_size"]) for task in products)
    assert any(len(space_of(task.mod, target)) > 8 for task in products)
