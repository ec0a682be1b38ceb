"""`tunehub compile`, `bench` and `generate` of a folder with a language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="the extra llm")
pytest.importorskip("tokenizers", reason="the extra llm")

import numpy as np
import tokenizers
from safetensors.numpy import load_file, save_file

from tunehub.cli.language_models import LanguageRequest, _case, compiled_folder
from tunehub.models import compiling, stored
from tunehub.models.config import read_config
from tunehub.models.export import parameters_of
from tunehub.models.quantization import quantization
from tunehub.models.random_weights import random_array
from tunehub.models.weights import sources

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]

WORDS = ["<unk>", *(f"word{number}" for number in range(59))]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 128,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with random weights and a tokenizer of sixty words."""
    made = tmp_path / "small"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    _save_weights(made)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(made / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    return Path("small")


def _save_weights(folder: Path) -> None:
    tensors = {}
    for parameter in parameters_of(read_config(folder), quantization("q0f32")):
        names, array = sources(parameter.name, "llama"), random_array(parameter)
        splits = {3: [64, 96], 2: [96], 1: []}[len(names)]
        tensors.update(zip(names, map(np.ascontiguousarray, np.split(array, splits)), strict=True))
    save_file(tensors, folder / "model.safetensors")


def test_a_folder_becomes_a_library_that_writes(run: Any, folder: Path) -> None:
    given = ("--quantization", "q4f32_1", "-o", "small.so", "--weights", "small.safetensors")
    made = run("compile", folder, *given, "--json")
    assert made.code == 0, made.err
    assert made.json["quantization"] == "q4f32_1"
    assert made.json["weight_bytes"] > 0
    call = ("generate", folder, "word1 word2", "--library", "small.so", "--tokens", 5)
    found = run(*call)
    assert found.code == 0, found.err
    words = found.out.split()
    assert len(words) == 5 and set(words) <= set(WORDS)
    assert run(*call).out == found.out
    assert run(*call, "--weights", "small.safetensors").out == found.out
    drawn = [run(*call, "--temperature", 5, "--seed", seed).out for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("kind", "form"), [("bfloat16", "q0bf16_f32"), ("float32", "q0f32")])
def test_float32_keeps_weights_as_the_folder_has_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, form: str
) -> None:
    monkeypatch.setattr(compiling, "compile_model", lambda _config, name, *_given, **_named: name)
    monkeypatch.setattr(stored, "vector_types", lambda: ("float32", "float16", "bfloat16"))
    path = folder / "model.safetensors"
    save_file({name: each.astype(kind) for name, each in load_file(path).items()}, path)
    assert compiled_folder(folder, quantization=None, target="llvm-x86-64-v3", most_sequences=1) == (form, "llvm")
    sizes = {"prompt": 8, "generate": 2, "batches": (1,), "against": None, "threads": 1, "repeat": 1}
    assert _case(folder, LanguageRequest(quantization="q0f32", device="cpu", **sizes)).quantization == form
    assert _case(folder, LanguageRequest(quantization="q0bf16", device="cpu", **sizes)).quantization == "q0bf16"


@pytest.mark.sweep
def test_runtimes_are_timed_and_drawn(run: Any, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("onnx")  # the builder's
    sizes = ("--prompt", 8, "--generate", 2, "--batch", "1,2", "--repeat", 1, "--threads", 1)
    made = run("bench", folder, *sizes, "--against", "default", "--plot", "bench.svg", "--json")
    assert made.code == 0, made.err
    assert {(row["runtime"], row["kind"], row["batch"]) for row in made.json["rows"]} == {
        (name, *shape) for name in ("tunehub", "default") for shape in (("prefill", 1), ("decode", 1), ("decode", 2))
    }
    assert all(row["tokens_per_s"] > 0 for row in made.json["rows"])
    assert made.json["apart"]["tunehub"] < 1e-4
    assert "step of 2" in Path("bench.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compile", "small", "--quantization", "q3f16_0"), "q4f16_1"),
        (("compile", "small", "--kv-cache-dtype", "fp8_e4m3"), "GPUs alone"),
        (("compile", "small", "--dim", "batch=1"), "--dim"),
        (("compile", "small.onnx", "--quantization", "q0f32"), "folder"),
        (("compile", "small.onnx", "--weights", "small.safetensors"), "folder"),
        (("bench", "small", "--batch", "1,x"), "--batch"),
        (("bench", "small", "--against", "llama"), "no runtime of language models"),
        (("generate", "small", "word1", "--tokens", "5", "--library", "none.so"), "none.so"),
        (("generate", "small", "word1", "--tokens", "128"), "--tokens 128"),
    ],
)
def test_what_is_wrong_is_named(run: Any, folder: Path, arguments: tuple[str, ...], said: str) -> None:
    Path("small.onnx").touch()
    found = run(*arguments)
    assert found.code != 0
    assert said in found.err


@pytest.mark.parametrize("damage", ["unknown", "panic"])
def test_a_tokenizer_that_fails_is_an_error_in_a_line(run: Any, folder: Path, damage: str) -> None:
    path, text = folder / "tokenizer.json", "word1"
    written = json.loads(path.read_text())
    if damage == "unknown":
        written["model"]["unk_token"], text = "nowhere", "else"
    else:  # of Rust, which no Exception is
        pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        single = [{"SpecialToken": {"id": "nowhere", "type_id": 0}}, pair[0]]
        kind = {"type": "TemplateProcessing", "special_tokens": {}}
        written["post_processor"] = {**kind, "single": single, "pair": pair}
    path.write_text(json.dumps(written))
    found = run("generate", folder, text, "--tokens", 2)
    assert found.code != 0
    assert "tokenizer.json" in found.err


def test_a_folder_without_a_tokenizer_says_so(run: Any, folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in run("generate", folder, "word1").err
    (folder / "tokenizer.json").write_text("{}")
    assert "cannot be used" in run("generate", folder, "word1").err
