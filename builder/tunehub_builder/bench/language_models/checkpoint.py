"""A model's weights by Hugging Face's names, for runtimes that make their own files of them, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt

from tunehub.models.checkpoint import SINGLE, ModelWeights
from tunehub.models.config import ModelConfig

Float32 = npt.NDArray[np.float32]
Weights = Callable[[str], Float32]
_POOL = (1 << 22) - 3  # a prime: rows do not repeat


def weights_of(folder: Path) -> Weights:
    """What reads one in float32, by its name. It raises ModelError."""
    checkpoint = ModelWeights(folder)
    return lambda name: checkpoint.tensor(name).astype("float32")


def shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Of each weight of a decoder without experts."""
    if config.experts is not None:
        raise NotImplementedError("mixtures of experts in files of other runtimes")
    size, table = config.head_dim, (config.vocabulary, config.hidden)
    rows = {"q": config.heads * size, "k": config.kv_heads * size, "v": config.kv_heads * size}
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (config.hidden,),
        "post_attention_layernorm": (config.hidden,),
    }
    layer |= {f"self_attn.{name}_proj": (count, config.hidden) for name, count in rows.items()}
    layer |= {
        "self_attn.o_proj": (config.hidden, config.heads * size),
        "mlp.down_proj": (config.hidden, config.intermediate),
    }
    layer |= {f"mlp.{name}_proj": (config.intermediate, config.hidden) for name in ("gate", "up")}
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table, "model.norm.weight": (config.hidden,)}
    found |= {} if config.tied else {"lm_head.weight": table}
    for number in range(config.layers):
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        if config.qkv_bias:
            found |= {f"model.layers.{number}.self_attn.{name}_proj.bias": (count,) for name, count in rows.items()}
    return found


def write_random(config: ModelConfig, folder: Path) -> None:
    """Write random weights in bfloat16, of which products keep the size of what they get."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    pool = rng.standard_normal(_POOL, dtype="float32")
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, shape in shapes(config).items():
        if name.endswith("norm.weight"):
            tensors[name] = np.ones(shape, "bfloat16")
            continue
        scale = 1.0 if "embed" in name or len(shape) == 1 else shape[-1] ** -0.5
        scaled = np.roll(pool * np.float32(scale), int(rng.integers(_POOL))).astype("bfloat16")
        tensors[name] = np.resize(scaled, int(np.prod(shape))).reshape(shape)
    save_file(tensors, folder / SINGLE)
