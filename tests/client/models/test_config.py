"""What is read of a model's `config.json`, and what is said of one that is not what it has to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunehub.exceptions import ModelError
from tunehub.models.config import read_config

pytestmark = pytest.mark.fast

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 500000.0,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _folder(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return path


def test_what_is_not_said_is_what_transformers_takes(tmp_path: Path) -> None:
    config = read_config(_folder(tmp_path))
    assert (config.head_dim, config.kv_heads, config.qkv) == (16, 2, 128)
    assert (config.rope_theta, config.rope_scaling, config.context, config.tied) == (500000.0, None, 128, False)


def test_newer_files_have_rotary_embeddings_under_one_key(tmp_path: Path) -> None:
    parameters = {**LLAMA3, "rope_theta": 10000.0}
    config = read_config(_folder(tmp_path, rope_theta=None, rope_parameters=parameters))
    assert config.rope_theta == 10000.0
    assert config.rope_scaling is not None
    assert config.rope_scaling.factor == 8.0


def test_sequences_are_no_longer_than_a_window_which_qwen_has_only_where_it_says_so(tmp_path: Path) -> None:
    qwen = {"model_type": "qwen2", "sliding_window": 64, "tie_word_embeddings": True}
    config = read_config(_folder(tmp_path, use_sliding_window=False, **qwen))
    assert (config.qkv_bias, config.tied, config.context) == (True, True, 128)
    assert read_config(_folder(tmp_path, use_sliding_window=True, **qwen)).context == 64


def test_the_experts_of_mixtral_have_the_networks_features(tmp_path: Path) -> None:
    config = read_config(_folder(tmp_path, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2))
    assert config.experts is not None
    assert (config.experts.count, config.experts.chosen, config.experts.intermediate) == (4, 2, 176)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2", "hidden_size": None}, "model_type"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}}, "partial_rotary_factor"),
        ({"num_attention_heads": 128, "num_key_value_heads": 128}, "head_dim"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"model_type": "mixtral"}, "num_local_experts"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as raised:
        read_config(_folder(tmp_path, **changes))
    assert "config.json" in str(raised.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 200_000, b" " * (2 << 20)])
def test_what_is_no_configuration_is_an_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_folder_without_one_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="transformers"):
        read_config(tmp_path)


def test_a_file_that_is_no_json_is_no_wrong_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="it should be JSON"):
        read_config(tmp_path)
