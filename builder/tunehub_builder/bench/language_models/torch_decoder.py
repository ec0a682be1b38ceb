"""A language model in PyTorch, as one writes it for speed: joined projections, a static cache, grouped attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunehub.models.config import ModelConfig


class TorchDecoder:
    """`weights`: tensors by the module's names, plain floats."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Any]) -> None:
        import torch

        if config.rope_scaling is not None:
            raise NotImplementedError("scaled rotary embeddings in PyTorch")
        self.config, self.weights = config, weights
        place = weights["model.norm.weight"].device
        steps = torch.arange(0, config.head_dim, 2, device=place).float() / config.head_dim
        self._rates = 1.0 / (config.rope_theta**steps)

    def cache(self, batch: int, tokens: int) -> tuple[Any, Any]:
        """Keys and values of all layers, zeros: `[layers, batch, heads, tokens, size]`."""
        import torch

        config, like = self.config, self.weights["model.norm.weight"]
        shape = (config.layers, batch, config.kv_heads, tokens, config.head_dim)
        return tuple(torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))

    def prompt(self, words: Any) -> Any:
        """Logits of the last place of `[batch, length]`, which nothing is before."""
        import torch

        positions = torch.arange(words.shape[1], device=words.device)
        return self._forward(words, positions, lambda _layer, q, k, v: _attention(q, k, v, causal=True))

    def step(self, words: Any, position: Any, mask: Any, keys: Any, values: Any) -> Any:
        """Logits of `[batch, 1]` at a position `[1]` that all have; `mask`: the places that are seen."""

        def attended(layer: int, q: Any, k: Any, v: Any) -> Any:
            keys[layer].index_copy_(2, position, k)
            values[layer].index_copy_(2, position, v)
            return _attention(q, keys[layer], values[layer], mask=mask)

        return self._forward(words, position, attended)

    def _forward(self, words: Any, positions: Any, attended: Any) -> Any:
        from torch.nn import functional

        config, (batch, length) = self.config, words.shape
        x = functional.embedding(words, self.weights["model.embed_tokens.weight"])
        for number in range(config.layers):
            name = f"model.layers.{number}."
            qkv = self._linear(self._norm(x, f"{name}input_layernorm"), f"{name}self_attn.qkv_proj")
            parts = qkv.view(batch, length, -1, config.head_dim).transpose(1, 2)
            query, key, value = parts.split([config.heads, config.kv_heads, config.kv_heads], 1)
            query, key = self._turned(query, positions), self._turned(key, positions)
            out = attended(number, query, key, value).transpose(1, 2).reshape(batch, length, -1)
            x = x + self._linear(out, f"{name}self_attn.o_proj")
            normed = self._norm(x, f"{name}post_attention_layernorm")
            x = x + (self._feed_forward(normed, f"{name}mlp") if config.experts is None else self._moe(normed, name))
        head = "model.embed_tokens" if config.tied else "lm_head"
        return self._linear(self._norm(x[:, -1:], "model.norm"), head).float()

    def _feed_forward(self, x: Any, name: str) -> Any:
        return self._linear(_gated(self._linear(x, f"{name}.gate_up_proj")), f"{name}.down_proj")

    def _moe(self, x: Any, layer: str) -> Any:
        """Steps read the weights of the chosen experts, prompts pass one expert after the other."""
        import torch

        experts, name = self.config.experts, f"{layer}moe"
        assert experts is not None
        rows = x.reshape(-1, x.shape[-1])
        share, number = torch.softmax(self._linear(rows, f"{name}.gate").float(), -1).topk(experts.chosen, -1)
        share = share / share.sum(-1, keepdim=True) if experts.normalised else share
        first, second = self.weights[f"{name}.e1_e3.weight"], self.weights[f"{name}.e2.weight"]
        if x.shape[1] == 1:
            each = torch.einsum(
                "rcnk,rck->rcn", second[number], _gated(torch.einsum("rcnk,rk->rcn", first[number], rows))
            )
            mixed = (each.float() * share[..., None]).sum(1)
        else:
            mixed = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
            for expert in range(experts.count):
                at, slot = torch.where(number == expert)
                each = _gated(rows[at] @ first[expert].T) @ second[expert].T
                mixed.index_add_(0, at, each.float() * share[at, slot, None])
        out = mixed.to(x.dtype).reshape(x.shape)
        if not experts.shared:
            return out
        return out + self._linear(x, f"{name}.shared_expert_gate").sigmoid() * self._feed_forward(
            x, f"{name}.shared_expert"
        )

    def _linear(self, x: Any, name: str) -> Any:
        from torch.nn import functional

        return functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _norm(self, x: Any, name: str) -> Any:
        from torch.nn import functional

        return functional.rms_norm(x, (self.config.hidden,), self.weights[f"{name}.weight"], self.config.epsilon)

    def _turned(self, x: Any, positions: Any) -> Any:
        """Rotary embeddings; the halves of a head are pairs."""
        import torch

        angles = positions.float()[:, None] * self._rates
        cos, sin = (torch.cat([each, each], -1) for each in (angles.cos(), angles.sin()))
        first, second = x.chunk(2, -1)
        return (x.float() * cos + torch.cat([-second, first], -1).float() * sin).to(x.dtype)


def _gated(both: Any) -> Any:
    """SiLU of the first half, times the second."""
    from torch.nn import functional

    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


def _attention(query: Any, key: Any, value: Any, *, causal: bool = False, mask: Any = None) -> Any:
    from torch.nn import functional

    return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, enable_gqa=True)
