"""Small language models, as the client exports them: what they are, their weights, and where they run."""

from __future__ import annotations

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
