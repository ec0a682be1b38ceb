"""What quantisation costs: a small model that was trained on the standard library's sources, two layers of it.

``pytorch.json``: the perplexity and greedy tokens of PyTorch in float32 with these weights. Words are bytes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="the extra llm")

import tvm

from tunehub.models.compiling import CompiledLanguageModel, compile_model
from tunehub.models.config import read_config
from tunehub.models.session import CacheSizes, LanguageSession, greedy_tokens
from tunehub.models.weights import arrays

from ...cpu_features import AVX512_VNNI, cpu, here, host

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

FOLDER = Path(__file__).parent / "trained"
SEQUENCES, LENGTH = 16, 65
PYTORCH = json.loads((FOLDER / "pytorch.json").read_text())
# How far the perplexity may be from PyTorch's, for weights, activations and sums together.
KINDS = {
    "q0f32": 1e-5,
    "q0f16_f32": 1e-5,  # as they are stored
    "q0bf16": 3e-3,
    "q4f16_1": 1e-2,
    "q4f32_1": 1e-2,
    "q8f16_1": 2e-3,
    "q8f32_1": 2e-3,
    "e4m3": 5e-3,
    "e4m3_e4m3": 1e-2,
}


@cache
def compiled(kind: str, model: str | None, precision: Any) -> CompiledLanguageModel:
    return compile_model(read_config(FOLDER), kind, cpu(model) if model else host(2), precision=precision)


def session(kind: str, cpu_model: str | None = None, precision: Any = "float32") -> LanguageSession:
    model = compiled(kind, cpu_model, precision)
    weights = arrays(model.parameters, model.config, model.quantization, FOLDER)
    sizes = CacheSizes(sequences=SEQUENCES, tokens=SEQUENCES * 80, chunk=64)
    return model.session(map(tvm.runtime.tensor, weights), tvm.cpu(), sizes)


def perplexity(opened: LanguageSession) -> float:
    """Of the text in pieces, side by side; each byte but a piece's first is foretold."""
    text = np.frombuffer((FOLDER / "text.txt").read_bytes(), "uint8").reshape(SEQUENCES, LENGTH)
    sequences, losses = [opened.open() for _ in text], []
    for at in range(LENGTH - 1):
        words = [int(each) for each in text[:, at]]
        if at:
            logits = opened.decode(sequences, opened.tokens(words)).numpy()
        else:
            logits = np.stack(
                [opened.prefill(*each).numpy() for each in zip(sequences, text[:, :1].tolist(), strict=True)]
            )
        rows = logits.reshape(SEQUENCES, -1).astype("float64")
        rows -= rows.max(-1, keepdims=True)
        losses.append(np.log(np.exp(rows).sum(-1)) - rows[np.arange(SEQUENCES), text[:, at + 1]])
    return float(np.exp(np.mean(losses)))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["q0f32", "q0f16_f32"])
def test_greedy_tokens_are_pytorchs_in_float32(kind: str) -> None:
    prompt, wanted = list(PYTORCH["prompt"].encode()), list(PYTORCH["greedy"].encode())
    assert greedy_tokens(session(kind), [prompt], len(wanted)).tolist() == [wanted]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_perplexity_is_float32s(kind: str) -> None:
    assert perplexity(session(kind)) == pytest.approx(PYTORCH["perplexity"], rel=KINDS[kind])


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["q4f32_1", "q8f32_1"])
@pytest.mark.parametrize("model", here(AVX512_VNNI))
def test_activations_of_8_bits_cost_no_more(model: str, kind: str) -> None:
    found = perplexity(session(kind, model, precision="bf16"))
    assert found == pytest.approx(PYTORCH["perplexity"], rel=KINDS[kind])
