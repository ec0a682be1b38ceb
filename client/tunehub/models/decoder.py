"""A decoder in `tvm.relax.frontend.nn`, in MLC-LLM's form: a paged cache of keys and values, attention as one call of
it, and functions for one sequence and for batches. What families differ in is in the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from tunehub.models.experts import MixtureOfExperts
from tunehub.models.quantised_layers import embedding, linear

if TYPE_CHECKING:
    from tunehub.models.config import ModelConfig
    from tunehub.models.quantization import Quantization
    from tunehub.models.types import KVCache, NNModule, Tensor, TETensor
    from tunehub.tir.types import PrimExpr


class FeedForward(nn.Module):  # type: ignore[misc]
    """``down(silu(gate(x)) · up(x))``, gate and up as one product."""

    def __init__(self, hidden: int, intermediate: int, kind: Quantization) -> None:
        super().__init__()
        self.gate_up_proj = linear(hidden, 2 * intermediate, kind)
        self.down_proj = linear(intermediate, hidden, kind)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = op.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(op.silu(gate) * up)


class CachedAttention(nn.Module):  # type: ignore[misc]
    """Query, key and value as one product; the cache turns them, appends and attends."""

    def __init__(self, config: ModelConfig, kind: Quantization) -> None:
        super().__init__()
        self.config = config
        self.qkv_proj = linear(config.hidden, config.qkv, kind, bias=config.qkv_bias)
        self.o_proj = linear(config.heads * config.head_dim, config.hidden, kind)

    def forward(self, x: Tensor, cache: KVCache, layer: int) -> Tensor:
        heads, kv_heads, size = self.config.heads, self.config.kv_heads, self.config.head_dim
        batch, length, _ = x.shape
        qkv = op.reshape(self.qkv_proj(x), (batch, length, heads + 2 * kv_heads, size))
        attended = cache.attention_with_fused_qkv(layer, qkv, heads, sm_scale=size**-0.5)
        return self.o_proj(op.reshape(attended, (batch, length, heads * size)))


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward network, each behind a norm and added to what comes in."""

    def __init__(self, config: ModelConfig, kind: Quantization) -> None:
        super().__init__()
        self.self_attn = CachedAttention(config, kind)
        experts = config.experts
        if experts is None:
            self.mlp = FeedForward(config.hidden, config.intermediate, kind)
        else:
            shared = FeedForward(config.hidden, experts.shared, kind) if experts.shared else None
            self.moe = MixtureOfExperts(config, experts, kind, shared)
        self.input_layernorm = _norm(config, kind)
        self.post_attention_layernorm = _norm(config, kind)

    def forward(self, x: Tensor, cache: KVCache, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cache, layer)
        feed_forward = self.moe if hasattr(self, "moe") else self.mlp
        return x + feed_forward(self.post_attention_layernorm(x))


class DecoderLayers(nn.Module):  # type: ignore[misc]
    """All layers, with the embedding before them and the norm behind them."""

    def __init__(self, config: ModelConfig, kind: Quantization) -> None:
        super().__init__()
        self.embed_tokens = embedding(config.vocabulary, config.hidden, kind)
        self.layers = nn.ModuleList([DecoderLayer(config, kind) for _ in range(config.layers)])
        self.norm = _norm(config, kind)

    def forward(self, x: Tensor, cache: KVCache) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x, cache, number)
        return self.norm(x)


class Decoder(nn.Module):  # type: ignore[misc]
    """A whole model; its methods are the module's functions."""

    def __init__(self, config: ModelConfig, kind: Quantization) -> None:
        super().__init__()
        self.model = DecoderLayers(config, kind)
        self.lm_head = None if config.tied else linear(config.hidden, config.vocabulary, kind, out_dtype="float32")

    def embed(self, input_ids: Tensor) -> Tensor:
        return self.model.embed_tokens(input_ids)

    def prefill(self, input_embed: Tensor, paged_kv_cache: KVCache) -> tuple[Tensor, KVCache]:
        return self._logits(_last(self.model(input_embed, paged_kv_cache))), paged_kv_cache

    def decode(self, input_embed: Tensor, paged_kv_cache: KVCache) -> tuple[Tensor, KVCache]:
        return self._logits(self.model(input_embed, paged_kv_cache)), paged_kv_cache

    def batch_prefill(
        self, input_embeds: Tensor, logit_positions: Tensor, paged_kv_cache: KVCache
    ) -> tuple[Tensor, KVCache]:
        hidden = op.take(self.model(input_embeds, paged_kv_cache), logit_positions, axis=1)
        return self._logits(hidden), paged_kv_cache

    def batch_decode(self, input_embeds: Tensor, paged_kv_cache: KVCache) -> tuple[Tensor, KVCache]:
        return self._logits(self.model(input_embeds, paged_kv_cache)), paged_kv_cache

    def greedy(self, logits: Tensor) -> Tensor:
        """The likeliest words, int32 ``[batch_size]``; not one of MLC-LLM's functions."""
        return op.tensor_expr_op(_likeliest, name_hint="greedy", args=[logits])

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.embed_tokens.lm_head_forward(hidden) if self.lm_head is None else self.lm_head(hidden)


def _norm(config: ModelConfig, kind: Quantization) -> NNModule:
    return nn.RMSNorm(config.hidden, -1, config.epsilon, bias=False, dtype=kind.dtype)


def _last(hidden: Tensor) -> Tensor:
    """The last place of each sequence."""

    def index(x: TETensor) -> TETensor:
        batch, length, features = x.shape
        return te.compute((batch, 1, features), lambda i, _, k: x[i, length - 1, k], name="index")

    return op.tensor_expr_op(index, name_hint="index", args=[hidden])


def _likeliest(logits: TETensor) -> TETensor:
    """As two plain reductions, which schedules know: the largest value, and the first place that has it."""
    batch, words = logits.shape
    word, place = te.reduce_axis((0, words)), te.reduce_axis((0, words))
    most = te.compute((batch,), lambda i: te.max(logits[i, word], axis=word), name="most")
    last = tirx.const(int(words) - 1, "int32")  # also of logits that are no numbers

    def first(i: PrimExpr) -> PrimExpr:
        here = tirx.Select(logits[i, place] == most[i], place.astype("int32"), last)
        return te.min(here, axis=place)

    return te.compute((batch,), first, name="first")
