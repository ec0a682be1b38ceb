"""What `q0f32` is for a folder: weights stay in 16 bits where all matrices are stored so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="writes safetensors")

from safetensors.numpy import save_file

from tunehub.models import stored

from ...small_models import TINY, small

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM loads vectors of all types."""
    monkeypatch.setattr(stored, "vector_types", lambda: ("float32", "float16", "bfloat16"))


def saved(folder: Path, *types: str) -> None:
    """A file for each type, whose matrix has it, and a norm in float32."""
    places = {f"matrix{at}": f"part-{at}.safetensors" for at in range(len(types))}
    for kind, (name, file) in zip(types, places.items(), strict=True):
        save_file({name: np.zeros((2, 2), kind), f"{name}.norm": np.zeros(2, "float32")}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize(
    ("types", "form"),
    [
        (["bfloat16", "bfloat16"], "q0bf16_f32"),
        (["float16"], "q0f16_f32"),
        (["float32"], "q0f32"),
        (["bfloat16", "float32"], "q0f32"),
        (["bfloat16", "float16"], "q0f32"),
    ],
)
def test_weights_stay_as_all_matrices_of_a_folder_are(tmp_path: Path, types: list[str], form: str) -> None:
    saved(tmp_path, *types)
    assert stored.as_stored("q0f32", tmp_path, TINY, "llvm") == form


@pytest.mark.parametrize(
    ("said", "form"),
    [
        ({"torch_dtype": "bfloat16"}, "q0bf16_f32"),
        ({"dtype": "float16", "torch_dtype": "float32"}, "q0f16_f32"),
        ({"torch_dtype": "float32"}, "q0f32"),
        ({"torch_dtype": ["bfloat16"]}, "q0f32"),
        ({}, "q0f32"),
    ],
)
def test_without_weights_the_configuration_says_it(tmp_path: Path, said: dict[str, Any], form: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert stored.as_stored("q0f32", tmp_path, TINY, "llvm") == form


def test_what_was_asked_for_by_name_and_what_kernels_do_not_widen_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "bfloat16")
    assert stored.as_stored("q4f32_1", tmp_path, TINY, "llvm") == "q4f32_1"
    assert stored.as_stored("q0f32", tmp_path, TINY, "cuda") == "q0f32"
    assert stored.as_stored("q0f32", tmp_path, small(TINY, intermediate=100), "llvm") == "q0f32"
    monkeypatch.setattr(stored, "vector_types", lambda: ("float32", "float16"))  # TVM 0.26
    assert stored.as_stored("q0f32", tmp_path, TINY, "llvm") == "q0f32"
