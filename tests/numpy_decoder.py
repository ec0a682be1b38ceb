"""Language models in numpy, in float64: what compiled ones are held against. Nothing is cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunehub.models.compiling import CompiledLanguageModel
from tunehub.models.config import ModelConfig
from tunehub.models.export import ExportedModel
from tunehub.models.quantization import GROUP, Quantization

Array = npt.NDArray[Any]


class NumpyDecoder:
    """A model by its parameters, under their names in the module."""

    def __init__(self, model: ExportedModel | CompiledLanguageModel, arrays: Sequence[Array]) -> None:
        self.config: ModelConfig = model.config
        self._weights = _floats(model, arrays)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Of every place: ``[tokens, words]``."""
        x = self._weights["model.embed_tokens"][np.asarray(tokens)]
        for number in range(self.config.layers):
            name = f"model.layers.{number}."
            x = x + self._attention(self._norm(x, f"{name}input_layernorm"), f"{name}self_attn.")
            x = x + self._feed_forward(self._norm(x, f"{name}post_attention_layernorm"), name)
        head = "model.embed_tokens" if self.config.tied else "lm_head"
        return self._linear(self._norm(x, "model.norm"), head)

    def greedy_after(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """The likeliest token at each place of ``tokens``, behind the prompt and those before it."""
        logits = self.logits([*prompt, *tokens[:-1]])
        return [int(each) for each in logits[len(prompt) - 1 :].argmax(-1)]

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weights[name].T + self._weights.get(f"{name}.bias", 0.0)

    def _norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.epsilon) * self._weights[name]

    def _feed_forward(self, x: Array, name: str) -> Array:
        if self.config.experts is None:
            return self._gated(x, f"{name}mlp.")
        return self._mixed(x, f"{name}moe.")

    def _gated(self, x: Array, name: str) -> Array:
        gate, up = np.split(self._linear(x, f"{name}gate_up_proj"), 2, -1)
        return self._linear(_silu(gate) * up, f"{name}down_proj")

    def _mixed(self, x: Array, name: str) -> Array:
        experts = self.config.experts
        assert experts is not None
        scores = _softmax(self._linear(x, f"{name}gate"))
        mixed = np.zeros_like(x)
        for row, share in enumerate(scores):
            chosen = np.argsort(-share, kind="stable")[: experts.chosen]
            total = share[chosen].sum() if experts.normalised else 1.0
            for each in chosen:
                gate, up = np.split(self._weights[f"{name}e1_e3"][each] @ x[row], 2)
                mixed[row] += share[each] / total * (self._weights[f"{name}e2"][each] @ (_silu(gate) * up))
        if experts.shared:
            gate = 1 / (1 + np.exp(-self._linear(x, f"{name}shared_expert_gate")))
            mixed = mixed + gate * self._gated(x, f"{name}shared_expert.")
        return mixed

    def _attention(self, x: Array, name: str) -> Array:
        config, length = self.config, len(x)
        parts = self._linear(x, f"{name}qkv_proj").reshape(length, -1, config.head_dim).transpose(1, 0, 2)
        query, keys, values = np.split(parts, [config.heads, config.heads + config.kv_heads])
        group = config.heads // config.kv_heads
        query, keys = self._turned(query), np.repeat(self._turned(keys), group, 0)
        scores = query @ keys.transpose(0, 2, 1) * config.head_dim**-0.5
        here, there = np.arange(length)[:, None], np.arange(length)
        seen = there <= here
        attended = _softmax(np.where(seen, scores, -np.inf)) @ np.repeat(values, group, 0)
        return self._linear(attended.transpose(1, 0, 2).reshape(length, -1), f"{name}o_proj")

    def _turned(self, x: Array) -> Array:
        """Rotary embeddings of ``[heads, length, size]``: the halves of a head are pairs."""
        rates = self.config.rope_theta ** -(np.arange(0, self.config.head_dim, 2) / self.config.head_dim)
        angles = np.tile(np.arange(x.shape[1])[:, None] * rates, 2)
        first, second = np.split(x, 2, -1)
        return x * np.cos(angles) + np.concatenate([-second, first], -1) * np.sin(angles)


def _floats(model: ExportedModel | CompiledLanguageModel, arrays: Sequence[Array]) -> Mapping[str, Array]:
    """Every weight in float64, by its module's name; biases end in ``.bias``."""
    found: dict[str, Array] = {}
    words: Array | None = None
    for parameter, array in zip(model.parameters, arrays, strict=True):
        base, _, part = parameter.name.rpartition(".")
        if part == "q_weight":
            words = array
        elif part == "q_scale":
            assert words is not None
            features = words.shape[-1] if model.quantization.e4m3 else array.shape[-1] * GROUP
            found[base] = dequantized_rows(words, array, features, model.quantization).astype("float64")
        else:
            found[parameter.name if part == "bias" else base] = array.astype("float64")
    return found


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _softmax(x: Array) -> Array:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def dequantized_rows(words: Array, scales: Array, features: int, kind: Quantization) -> Array:
    """The floats ``[…, features]``, float32, that words and scales stand for."""
    if kind.e4m3:
        numbers = words.astype("float32")
        return np.asarray(numbers * scales[..., None])
    shifts = np.arange(kind.per_word, dtype="uint32") * np.uint32(kind.bits)
    values = (words[..., None] >> shifts) & np.uint32((1 << kind.bits) - 1)
    groups = values.reshape(*scales.shape, GROUP).astype("float32") - np.float32(kind.zero)
    weight: Array = (groups * scales.astype("float32")[..., None]).reshape(*scales.shape[:-1], -1)
    return weight[..., :features]
