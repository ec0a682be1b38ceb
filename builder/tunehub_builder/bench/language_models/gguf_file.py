"""A model as llama.cpp's GGUF file, by its own package `gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tunehub.models.config import ModelConfig
from tunehub_builder.bench.language_models.checkpoint import Float32, Weights, shapes

KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2"}
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(config: ModelConfig, weights: Weights, path: Path, kind: str) -> None:
    """Write it with matrices of GGML's type ``kind``, vectors in float32. Raises NotImplementedError for families that
    are not written here."""
    import gguf

    if config.family not in _ARCHITECTURES or config.rope_scaling is not None:
        raise NotImplementedError(f"{config.family} as a GGUF file")
    writer = gguf.GGUFWriter(str(path), _ARCHITECTURES[config.family])
    _describe(writer, config)
    for name, shape in shapes(config).items():
        array = weights(name)
        if len(shape) == 1:
            writer.add_tensor(_named(name), _paired(array, name, config))
            continue
        chosen = gguf.GGMLQuantizationType[kind]
        stored = gguf.quants.quantize(_paired(array, name, config), chosen)
        writer.add_tensor(_named(name), stored, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: ModelConfig) -> None:
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.epsilon)
    writer.add_vocab_size(config.vocabulary)
    writer.add_tokenizer_model("none")


def _named(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    number, _, rest = name.removeprefix("model.layers.").partition(".")
    base, _, part = rest.rpartition(".")
    return f"blk.{number}.{_NAMES[base]}.{part}"


def _paired(array: Float32, name: str, config: ModelConfig) -> Float32:
    """GGML's `llama` turns neighbours of a head, where Hugging Face's turns halves."""
    if _ARCHITECTURES[config.family] != "llama" or not any(f"{each}_proj" in name for each in "qk"):
        return array
    halves = array.reshape(-1, 2, config.head_dim // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
