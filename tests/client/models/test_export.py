"""Exported modules: their functions, their parameters, and that they are in MLC-LLM's form."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")


from tunehub.exceptions import UsageError
from tunehub.models.export import FUNCTIONS, export

from ...small_models import LLAMA, small

pytestmark = pytest.mark.slow

CUDA = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_num_threads": 1024,
    "thread_warp_size": 32,
    "max_shared_memory_per_block": 49152,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("target", [{"kind": "llvm"}, CUDA])
def test_every_function_takes_the_weights_as_one_tuple(target: dict[str, object]) -> None:
    exported = export(LLAMA, target, "q4f16_1")
    for name in set(FUNCTIONS) - {"greedy"}:
        assert len(exported.module[name].params[-1].ty.fields) == len(exported.parameters)
    assert "create_tir_paged_kv_cache" in {str(each.name_hint) for each in exported.module.functions}


def test_only_the_functions_that_are_asked_for_are_made() -> None:
    names = {str(each.name_hint) for each in export(LLAMA, "llvm", functions=("decode",)).module.functions}
    assert "decode" in names
    assert not {"prefill", "batch_decode", "embed"} & names


def test_quantised_weights_are_words_and_scales_of_groups() -> None:
    shapes = {each.name: (each.shape, each.dtype) for each in export(LLAMA, "llvm", "q4bf16_1", ("embed",)).parameters}
    assert shapes["model.layers.0.mlp.down_proj.q_weight"] == ((256, 88), "uint32")
    assert shapes["model.layers.0.mlp.down_proj.q_scale"] == ((256, 22), "bfloat16")


def test_tied_embeddings_have_no_weight_of_the_head() -> None:
    assert not [
        each for each in export(small(tied=True), "llvm", functions=("embed",)).parameters if "lm_head" in each.name
    ]


def test_an_unknown_quantization_is_an_error() -> None:
    with pytest.raises(UsageError, match="q4f16_1"):
        export(LLAMA, "llvm", "q3f16_0")
