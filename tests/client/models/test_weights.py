"""Weights of folders as parameters: joined, quantised, and what is said of a checkpoint that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="reads safetensors")

from safetensors.numpy import save_file

from tunehub.exceptions import ModelError
from tunehub.models.checkpoint import has_weights
from tunehub.models.config import Experts, ModelConfig
from tunehub.models.export import ModelParameter, export, parameters_of
from tunehub.models.quantising import GroupReader
from tunehub.models.quantization import QUANTIZATIONS, Quantization, quantization
from tunehub.models.weights import arrays, quantized, sources

from ...numpy_decoder import dequantized_rows
from ...small_models import small

pytestmark = pytest.mark.fast

TINY = small(hidden=32, intermediate=64, heads=2, kv_heads=1, head_dim=16, layers=1, vocabulary=50)
SHAPES = {
    "model.embed_tokens.weight": (50, 32),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.self_attn.k_proj.weight": (16, 32),
    "model.layers.0.self_attn.v_proj.weight": (16, 32),
    "model.layers.0.self_attn.o_proj.weight": (32, 32),
    "model.layers.0.mlp.gate_proj.weight": (64, 32),
    "model.layers.0.mlp.up_proj.weight": (64, 32),
    "model.layers.0.mlp.down_proj.weight": (32, 64),
    "model.layers.0.input_layernorm.weight": (32,),
    "model.layers.0.post_attention_layernorm.weight": (32,),
    "model.norm.weight": (32,),
    "lm_head.weight": (50, 32),
}


def _tensors() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, dtype="float32") for name, shape in SHAPES.items()}


def _saved(folder: Path, tensors: dict[str, Any]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


@dataclass(frozen=True, kw_only=True)
class Model:
    """What of a model is exported besides its functions."""

    parameters: tuple[ModelParameter, ...]
    config: ModelConfig
    quantization: Quantization


def model_of(name: str, config: ModelConfig = TINY) -> Model:
    kind = quantization(name)
    return Model(parameters=parameters_of(config, kind), config=config, quantization=kind)


def _arrays(model: Model, folder: Path) -> Iterator[Any]:
    return arrays(model.parameters, model.config, model.quantization, folder)


@pytest.mark.slow
def test_parameters_are_known_without_an_export() -> None:
    exported = export(TINY, "llvm", "q4f16_1", functions=("embed",))
    assert parameters_of(TINY, exported.quantization) == exported.parameters


def test_projections_are_joined_row_upon_row(tmp_path: Path) -> None:
    tensors, model = _tensors(), model_of("q0f32")
    names = [each.name for each in model.parameters]
    found = dict(zip(names, _arrays(model, _saved(tmp_path, tensors)), strict=True))
    parts = [tensors[f"model.layers.0.self_attn.{each}_proj.weight"] for each in "qkv"]
    np.testing.assert_array_equal(found["model.layers.0.self_attn.qkv_proj.weight"], np.concatenate(parts))


@pytest.mark.parametrize("name", sorted(QUANTIZATIONS))
def test_parameters_have_the_shapes_and_types_of_the_module(tmp_path: Path, name: str) -> None:
    model = model_of(name)
    tensors = {each: value.astype(model.quantization.matrices) for each, value in _tensors().items()}
    for parameter, array in zip(model.parameters, _arrays(model, _saved(tmp_path, tensors)), strict=True):
        assert (array.shape, str(array.dtype)) == (parameter.shape, parameter.dtype)


@pytest.mark.parametrize("saved", ["float32", "float16"])
def test_weights_that_stay_as_they_are_stored_lose_nothing(tmp_path: Path, saved: str) -> None:
    model, wide = model_of("q0bf16_f32"), {name: value.astype("float16") for name, value in _tensors().items()}
    exact = {name: value.astype(ml_dtypes.bfloat16).astype(saved) for name, value in wide.items()}
    exact = {name: np.where(abs(value) < 1e-3, 0, value).astype(saved) for name, value in exact.items()}
    names = [each.name for each in model.parameters]
    found = dict(zip(names, _arrays(model, _saved(tmp_path, exact)), strict=True))
    assert {name: str(each.dtype) for name, each in found.items()} == {
        each.name: "float32" if "norm" in each.name else "bfloat16" for each in model.parameters
    }
    np.testing.assert_array_equal(found["lm_head.weight"].astype(saved), exact["lm_head.weight"])
    with pytest.raises(ModelError, match=rf"embed_tokens.*is in {saved} and has numbers that bfloat16 has not"):
        list(_arrays(model, _saved(tmp_path, {name: value.astype(saved) for name, value in wide.items()})))


def test_files_are_found_by_the_index(tmp_path: Path) -> None:
    tensors = _tensors()
    halves = [dict(list(tensors.items())[:6]), dict(list(tensors.items())[6:])]
    for number, half in enumerate(halves):
        save_file(half, tmp_path / f"part-{number}.safetensors")
    places = {name: f"part-{number}.safetensors" for number, half in enumerate(halves) for name in half}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert has_weights(tmp_path)
    assert len(list(_arrays(model_of("q0f32"), tmp_path))) == 9


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_are_near_and_packed_from_the_lowest_bits(bits: int) -> None:
    kind = quantization(f"q{bits}f32_1")
    weight = np.random.default_rng(1).standard_normal((3, 70), dtype="float32")
    words, scales = quantized(weight, kind)
    assert (words.shape, scales.shape) == ((3, 96 * bits // 32), (3, 3))
    back = dequantized_rows(words, scales, 70, kind)
    assert np.abs(back - weight).max() <= 0.51 * scales.max()
    first = int(words[0, 0]) & ((1 << bits) - 1)
    assert back[0, 0] == np.float32(first - kind.zero) * scales[0, 0]


def test_weights_in_e4m3_are_near_and_zeros_have_a_scale() -> None:
    kind, weight = quantization("e4m3"), np.random.default_rng(1).standard_normal((3, 70), dtype="float32")
    weight[2] = 0
    words, scales = quantized(weight, kind)
    assert (words.shape, scales.shape, scales.min() > 0) == ((3, 70), (3,), True)
    back = dequantized_rows(words, scales, 70, kind)
    near = np.abs(back - weight) <= np.maximum(np.abs(weight) / 16, 2.0**-10 * scales[:, None])
    assert near.all()


def _in_e4m3(scales: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, Any]]:
    """The checkpoint of :func:`_tensors` with some weights in e4m3, by type and values."""
    found: dict[str, tuple[str, Any]] = {name: ("F32", each) for name, each in _tensors().items()}
    for name, shape in scales.items():
        numbers = np.clip(found[f"{name}.weight"][1] * 100, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        found[f"{name}.weight"] = ("F8_E4M3", numbers)
        found[f"{name}.weight_scale"] = ("F32", np.random.default_rng(2).random(shape, dtype="float32") / 100)
    return found


def _written(folder: Path, tensors: dict[str, tuple[str, Any]]) -> Path:
    """By hand: safetensors knows no such type of numpy. With what transformers says of its files."""
    header, data = dict[str, Any](__metadata__={"format": "pt"}), b""
    for name, (kind, each) in tensors.items():
        header[name] = {"dtype": kind, "shape": each.shape, "data_offsets": (len(data), len(data) + each.nbytes)}
        data += each.tobytes()
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return folder


def test_a_checkpoint_in_e4m3_with_scales_of_rows_stays_as_it_is(tmp_path: Path) -> None:
    name, model = "model.layers.0.self_attn", model_of("e4m3")
    tensors = _in_e4m3({f"{name}.q_proj": (), f"{name}.k_proj": (16, 1), f"{name}.v_proj": (1,)})
    names = [each.name for each in model.parameters]
    found = dict(zip(names, _arrays(model, _written(tmp_path, tensors)), strict=True))
    words, scales = found[f"{name}.qkv_proj.q_weight"], found[f"{name}.qkv_proj.q_scale"]
    parts = [tensors[f"{name}.{each}_proj.weight"][1].view("uint8") for each in "qkv"]
    np.testing.assert_array_equal(words.view("uint8"), np.concatenate(parts))
    own = [
        np.resize(tensors[f"{name}.{each}_proj.weight_scale"][1], size)
        for each, size in zip("qkv", (32, 16, 16), strict=True)
    ]
    np.testing.assert_array_equal(scales, np.concatenate(own))


def test_scales_of_blocks_are_multiplied_with_weights(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj"
    tensors = _in_e4m3({name: (1, 1)})
    tensors[f"{name}.weight_scale_inv"] = ("F32", np.full((1, 1), 0.25, "float32"))
    model, numbers = model_of("q0f32"), tensors[f"{name}.weight"][1]
    names = [each.name for each in model.parameters]
    found = dict(zip(names, _arrays(model, _written(tmp_path, tensors)), strict=True))
    np.testing.assert_array_equal(found[f"{name}.weight"], numbers.astype("float32") / 4)


@pytest.mark.parametrize(("scales", "what"), [({}, "without scales"), ({"weight_scale": (3,)}, "has the shape")])
def test_weights_in_e4m3_without_scales_that_fit_are_an_error(tmp_path: Path, scales: Any, what: str) -> None:
    tensors = _in_e4m3({"lm_head": (3,)})
    if not scales:
        del tensors["lm_head.weight_scale"]
    with pytest.raises(ModelError, match=what):
        list(_arrays(model_of("q0f32"), _written(tmp_path, tensors)))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0])
def test_scales_in_e4m3_that_are_none_are_an_error(tmp_path: Path, scale: float) -> None:
    tensors = _in_e4m3({"lm_head": (1,)})
    tensors["lm_head.weight_scale"] = ("F32", np.array([scale], "float32"))
    with pytest.raises(ModelError, match="has scales that are infinite"):
        list(_arrays(model_of("e4m3"), _written(tmp_path, tensors)))


@pytest.mark.parametrize("kind", ["F8_E5M2", "F8_E8M0"])
def test_other_floats_of_8_bits_are_not_read_as_e4m3(tmp_path: Path, kind: str) -> None:
    tensors = _in_e4m3({"lm_head": (1,)})
    tensors["lm_head.weight"] = (kind, tensors["lm_head.weight"][1])
    with pytest.raises(ModelError, match="cannot be read"):
        list(_arrays(model_of("e4m3"), _written(tmp_path, tensors)))


def test_groups_of_zeros_have_a_scale() -> None:
    words, scales = quantized(np.zeros((2, 32), "float32"), quantization("q4f16_1"))
    assert np.isfinite(scales).all()
    assert not dequantized_rows(words, scales, 32, quantization("q4f16_1")).any()


def test_experts_are_named_one_after_another() -> None:
    two = Experts(count=2, chosen=1, intermediate=8)
    assert sources("model.layers.0.moe.e1_e3.weight", "mixtral", two)[:3] == [
        "model.layers.0.block_sparse_moe.experts.0.w1.weight",
        "model.layers.0.block_sparse_moe.experts.0.w3.weight",
        "model.layers.0.block_sparse_moe.experts.1.w1.weight",
    ]
    assert sources("model.layers.0.moe.gate.weight", "qwen2_moe", two) == ["model.layers.0.mlp.gate.weight"]


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    tensors = _tensors()
    del tensors["model.norm.weight"]
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        list(_arrays(model_of("q0f32"), _saved(tmp_path, tensors)))


def test_a_weight_of_another_model_is_named(tmp_path: Path) -> None:
    model = model_of("q0f32", small(TINY, vocabulary=60))
    with pytest.raises(ModelError, match=r"embed_tokens.*config\.json says \(60, 32\)"):
        list(_arrays(model, _saved(tmp_path, _tensors())))


@pytest.mark.parametrize("place", ["../part.safetensors", "/etc/passwd", "sub/x.safetensors", "part.bin"])
def test_an_index_names_only_files_beside_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": place}}))
    with pytest.raises(ModelError, match="beside the index"):
        list(_arrays(model_of("q0f32"), tmp_path))


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x10\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_file_that_is_no_safetensors_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        list(_arrays(model_of("q0f32"), tmp_path))


@pytest.mark.parametrize("name", ["q0f32", "q4f32_1"])
@pytest.mark.parametrize(
    "lying",
    [
        {"self_attn.q_proj": (16, 32), "self_attn.k_proj": (32, 32)},  # joined they have as many rows
        {"mlp.gate_proj": (96, 32), "mlp.up_proj": (32, 32)},
        {"self_attn.k_proj": (16, 64)},  # of which the reader would write more than there is room for
        {"self_attn.v_proj": (16,)},
        {"self_attn.o_proj": (32, 31)},
        {"mlp.down_proj": (32, 33)},
    ],
    ids=str,
)
def test_parts_of_a_joined_weight_have_their_own_shapes(
    tmp_path: Path, lying: dict[str, tuple[int, ...]], name: str
) -> None:
    changed = {f"model.layers.0.{leaf}.weight": np.zeros(shape, "float32") for leaf, shape in lying.items()}
    model, folder = model_of(name), _saved(tmp_path, {**_tensors(), **changed})
    with pytest.raises(ModelError, match=r"has the shape \(.*, and config\.json says"):
        list(_arrays(model, folder))
    with GroupReader(model.quantization) as reader, pytest.raises(ModelError, match="has the shape"):
        list(arrays(model.parameters, model.config, model.quantization, folder, reader))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight", "lm_head.bias",
        "model.layers.1.input_layernorm.weight",
    ],
)  # fmt: skip
def test_weights_that_nothing_would_compute_with_are_refused(tmp_path: Path, name: str) -> None:
    folder = _saved(tmp_path, {**_tensors(), name: np.zeros(32, "float32")})
    with pytest.raises(ModelError, match=f"{name}.*is no weight of what"):
        list(_arrays(model_of("q0f32"), folder))


def test_tables_of_rotary_embeddings_are_computed_anew(tmp_path: Path) -> None:
    beside = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, "float32"), "vision.bias": np.zeros(1, "f4")}
    assert list(_arrays(model_of("q0f32"), _saved(tmp_path, {**_tensors(), **beside})))


def test_logits_by_the_embedding_are_no_others(tmp_path: Path) -> None:
    tied, tensors = small(TINY, tied=True), _tensors()
    with pytest.raises(ModelError, match=r"lm_head\.weight.*is not the embedding"):
        list(_arrays(model_of("q0f32", tied), _saved(tmp_path, tensors)))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    assert list(_arrays(model_of("q0f32", tied), _saved(tmp_path, tensors)))


def test_one_file_counts_before_an_index(tmp_path: Path) -> None:
    """As in transformers: an index may be left over."""
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(SHAPES, "a.safetensors")})
    )
    save_file({name: np.zeros_like(each) for name, each in _tensors().items()}, tmp_path / "a.safetensors")
    found = list(_arrays(model_of("q0f32"), _saved(tmp_path, _tensors())))
    assert all(np.any(each) for each in found)
