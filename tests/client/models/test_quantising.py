"""Weights that are quantised while they are read are those that numpy makes of the whole tensors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="reads safetensors")

import tvm
from safetensors.numpy import save_file

from tunehub.exceptions import ModelError
from tunehub.models import quantising
from tunehub.models.checkpoint import ModelWeights
from tunehub.models.config import Experts
from tunehub.models.export import parameters_of
from tunehub.models.quantising import GroupReader, folder_arrays, folder_tensors
from tunehub.models.quantization import quantization
from tunehub.models.random_weights import random_array
from tunehub.models.weights import arrays, quantized, shape_of, sources

from ...small_models import small

pytestmark = pytest.mark.slow

CONFIG = small(hidden=64, intermediate=96, heads=2, kv_heads=1, head_dim=32, layers=1, vocabulary=50)
EXPERTS = small(CONFIG, family="mixtral", experts=Experts(count=2, chosen=1, intermediate=96))


def _rows(count: int, dtype: str) -> npt.NDArray[Any]:
    rows = np.random.default_rng(count).standard_normal((count, 96), dtype="float32")
    rows[0], rows[1] = 0, rows[1] * 1e-9
    return rows.astype(dtype)


@pytest.mark.parametrize("name", ["q4f32_1", "q4f16_1", "q8f16_1", "q8bf16_1"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_joined_rows_have_the_words_and_scales_of_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    monkeypatch.setattr(quantising, "_GROUPS", 7)
    parts, kind = {"a": _rows(5, dtype), "b": _rows(11, dtype)}, quantization(name)
    save_file(parts, tmp_path / "model.safetensors")
    checkpoint = ModelWeights(tmp_path)
    with GroupReader(kind) as reader:
        found = reader([each for name in "ab" if (each := checkpoint.stored(name)) is not None])
    assert found is not None
    for one, other in zip(found, quantized(np.concatenate([*parts.values()]), kind), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("config", [CONFIG, EXPERTS], ids=["dense", "experts"])
def test_a_folder_has_the_parameters_of_numpy(tmp_path: Path, config: Any) -> None:
    kind = quantization("q4f16_1")
    model: Any = SimpleNamespace(parameters=parameters_of(config, kind), config=config, quantization=kind)
    plain = parameters_of(config, quantization("q0f32"))
    tensors = {name: each for parameter in plain for name, each in _parts(parameter, config)}
    save_file(tensors, tmp_path / "model.safetensors")
    whole = list(arrays(model.parameters, config, kind, tmp_path))
    for one, other in zip(folder_arrays(model, tmp_path), whole, strict=True):
        assert one.tobytes() == other.tobytes()
    for tensor, other in zip(folder_tensors(model, tmp_path, tvm.cpu()), whole, strict=True):
        assert (tensor.numpy() == other).all()


def _parts(parameter: Any, config: Any) -> Any:
    array, names = random_array(parameter), sources(parameter.name, config.family, config.experts)
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array
    ends = np.cumsum([shape_of(name, config)[0] for name in names])
    return zip(names, map(np.ascontiguousarray, np.split(rows, ends[:-1])), strict=True)


def test_rows_that_end_within_a_group_and_e4m3_are_not_read_so(tmp_path: Path) -> None:
    save_file({"a": np.ones((2, 40), "float32"), "b": np.ones((2, 32), "int8")}, tmp_path / "model.safetensors")
    odd = ModelWeights(tmp_path).stored("a")
    assert odd is not None
    assert ModelWeights(tmp_path).stored("b") is None
    for name in ("q4f32_1", "e4m3"):
        with GroupReader(quantization(name)) as reader:
            assert reader([odd]) is None


def test_a_file_that_ends_within_a_tensor_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": _rows(9, "float32")}, path)
    place = ModelWeights(tmp_path).stored("a")
    path.write_bytes(path.read_bytes()[:-100])
    assert place is not None
    with GroupReader(quantization("q4f32_1")) as reader, pytest.raises(ModelError, match="ends within a tensor"):
        reader([place])
