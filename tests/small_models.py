"""Small language models, as the client and as others export them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tunehub.models.config import ModelConfig

LLAMA = ModelConfig(
    family="llama",
    hidden=256,
    intermediate=704,
    layers=2,
    heads=8,
    kv_heads=2,
    head_dim=32,
    vocabulary=1000,
    context=512,
    epsilon=1e-5,
    rope_theta=10000.0,
)
"""Llama's form."""


def small(config: ModelConfig = LLAMA, **changes: Any) -> ModelConfig:
    """That model with other fields."""
    return msgspec.structs.replace(config, **changes)


TINY = small(hidden=64, intermediate=96, heads=4, head_dim=16, vocabulary=200)
"""So small that numpy computes it in no time."""


def with_open_vocabulary(config: ModelConfig, quantization_name: str, target: Any, functions: Sequence[str]) -> Any:
    """The module of a model in the form of MLC-LLM's own Llama: how many words there are is open, and logits are
    computed in the type of activations first."""
    from tvm.relax.frontend import nn

    from tunehub.models import export
    from tunehub.models.decoder import Decoder
    from tunehub.models.quantised_layers import linear
    from tunehub.models.quantization import quantization
    from tunehub.tir.intrinsics import light_parser

    kind = quantization(quantization_name)
    opened = small(config, vocabulary="vocab_size")

    class Opened(Decoder):  # type: ignore[misc]
        def _logits(self, hidden: Any) -> Any:
            return self.lm_head(hidden).astype("float32")

    model = Opened(opened, kind)
    model.lm_head = linear(config.hidden, opened.vocabulary, kind)
    model.create_tir_paged_kv_cache = export._cache_creator(config, kind, target)
    with target, light_parser():
        return model.export_tvm(spec=nn.spec.ModuleSpec.from_raw(export._specs(config, kind, functions), model))[0]
