"""Families: what makes each of them another model than Llama, held against numpy and, where it is installed, against
checkpoints that transformers saves and PyTorch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm

from tunehub.models.compiling import compile_model
from tunehub.models.config import Experts, read_config
from tunehub.models.random_weights import random_array
from tunehub.models.session import CacheSizes, greedy_tokens
from tunehub.models.stored import as_stored
from tunehub.models.weights import arrays

from ...numpy_decoder import NumpyDecoder
from ...small_models import TINY, small

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

ONE_LAYER = small(TINY, layers=1)
FAMILIES = {
    "biases and tied embeddings": small(ONE_LAYER, family="qwen2", qkv_bias=True, tied=True),
    "experts": small(ONE_LAYER, family="mixtral", experts=Experts(count=4, chosen=2, intermediate=32)),
    "experts and a shared one": small(
        ONE_LAYER, family="qwen2_moe", experts=Experts(count=5, chosen=3, intermediate=32, shared=64, normalised=False)
    ),
}
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7])
COUNT = 64
SAVED = ("Llama", "Qwen2", "Phi3", "Mixtral", "Qwen2Moe")


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_and_steps_give_numpys_logits(name: str) -> None:
    config = FAMILIES[name]
    compiled = compile_model(config, "q0f32", functions=("embed", "prefill", "batch_decode", "greedy"))
    values = [random_array(each) for each in compiled.parameters]
    numpy = NumpyDecoder(compiled, values)
    session = compiled.session(map(tvm.runtime.tensor, values), tvm.cpu(), CacheSizes(sequences=2, tokens=64, chunk=32))
    sequences = [session.open() for _ in PROMPTS]
    found = [session.prefill(*each).numpy()[0, 0] for each in zip(sequences, PROMPTS, strict=True)]
    after = session.decode(sequences, session.tokens([5, 6])).numpy()[:, 0]
    whole = [[*prompt, word] for prompt, word in zip(PROMPTS, (5, 6), strict=True)]
    wanted = [numpy.logits(each)[-1] for each in (*PROMPTS, *whole)]
    np.testing.assert_allclose([*found, *after], wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())


MIXTURES = [("experts and a shared one", "q4f32_1"), ("experts", "q4f32_1"), ("experts", "e4m3_f32")]


@pytest.mark.parametrize(("name", "quantization"), MIXTURES)
@pytest.mark.few(1)
def test_a_quantised_mixture_gives_numpys_tokens(name: str, quantization: str) -> None:
    functions = ("embed", "prefill", "batch_decode", "greedy")
    compiled = compile_model(FAMILIES[name], quantization, functions=functions)
    values = [random_array(each, compiled.quantization) for each in compiled.parameters]
    session = compiled.session(map(tvm.runtime.tensor, values), tvm.cpu(), CacheSizes(sequences=2, tokens=64, chunk=32))
    found = greedy_tokens(session, PROMPTS, 5).tolist()
    numpy = NumpyDecoder(compiled, values)
    assert found == [numpy.greedy_after(*each) for each in zip(PROMPTS, found, strict=True)]


def _saved(family: str, folder: Path, dtype: str = "float32") -> Any:
    """A small model of transformers' in float32, which lies in the folder in the type ``dtype`` then."""
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    transformers = pytest.importorskip("transformers", reason="saves a checkpoint")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 200,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "tie_word_embeddings": family == "Qwen2",
    }
    mixed = (
        {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2} if "Mo" in family or "Mi" in family else {}
    )
    own = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64} if family == "Qwen2Moe" else {}
    config = getattr(transformers, f"{family}Config")(**sizes, **mixed, **own, attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="100KB")
    return type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.filterwarnings("default")  # of transformers
@pytest.mark.parametrize("family", SAVED)
@pytest.mark.few(2)
def test_64_greedy_tokens_of_a_checkpoint_are_pytorchs(family: str, tmp_path: Path) -> None:
    check_tokens(_saved(family, tmp_path), tmp_path, "q0f32")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("family", "dtype"), [("Llama", "bfloat16"), ("Qwen2", "float16"), ("Mixtral", "bfloat16")])
@pytest.mark.few(1)
def test_64_greedy_tokens_of_a_checkpoint_in_16_bits_are_those_of_pytorch_in_float32(
    family: str, dtype: str, tmp_path: Path
) -> None:
    model = _saved(family, tmp_path, dtype)
    kind = as_stored("q0f32", tmp_path, read_config(tmp_path), "llvm")
    assert kind == {"bfloat16": "q0bf16_f32", "float16": "q0f16_f32"}[dtype]
    check_tokens(model, tmp_path, kind)


def check_tokens(model: Any, folder: Path, kind: str) -> None:
    """The likeliest tokens of a folder's model are those of PyTorch's ``model``."""
    import torch

    compiled = compile_model(read_config(folder), kind)
    weights = [
        tvm.runtime.tensor(each) for each in arrays(compiled.parameters, compiled.config, compiled.quantization, folder)
    ]
    session = compiled.session(weights, tvm.cpu(), CacheSizes(sequences=2, tokens=256, chunk=4))
    found = greedy_tokens(session, PROMPTS, COUNT).tolist()
    for prompt, own in zip(PROMPTS, found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *own[:-1]]])).logits[0, len(prompt) - 1 :]
        assert own == logits.argmax(-1).tolist()
