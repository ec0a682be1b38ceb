"""Files of a language model for other runtimes: they compute what numpy does of the same checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="the extra llm")
pytest.importorskip("onnxruntime")

from tests.numpy_decoder import NumpyDecoder
from tests.small_models import TINY, small

from tunehub.models.config import ModelConfig
from tunehub.models.export import parameters_of
from tunehub.models.quantization import quantization
from tunehub.models.weights import arrays
from tunehub_builder.bench.language_models.case import LanguageCase
from tunehub_builder.bench.language_models.checkpoint import weights_of, write_random
from tunehub_builder.bench.language_models.onnx_decoder import WeightFile, past_names, write_decoder
from tunehub_builder.bench.language_models.runtimes import made

pytestmark = pytest.mark.slow

CONFIGS = {
    "llama": small(TINY, layers=1),
    "biases and tied embeddings": small(TINY, layers=1, family="qwen2", qkv_bias=True, tied=True),
}
WORDS = [3, 1, 4, 1, 5, 9, 2, 6]


def numpys(config: ModelConfig, folder: Path) -> NumpyDecoder:
    kind = quantization("q0f32")
    parameters = parameters_of(config, kind)
    model: Any = SimpleNamespace(config=config, parameters=parameters, quantization=kind)
    return NumpyDecoder(model, list(arrays(parameters, config, kind, folder)))


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> ModelConfig:
    write_random(request.param, tmp_path)
    return request.param  # type: ignore[no-any-return]


def test_each_form_of_onnx_gives_numpys_logits(config: ModelConfig, tmp_path: Path) -> None:
    import onnxruntime

    file, sessions = WeightFile(tmp_path), {}
    for form in ("prompt", "step", "open"):
        path = tmp_path / f"{form}.onnx"
        write_decoder(config, weights_of(tmp_path), file, path, form)  # type: ignore[arg-type]
        sessions[form] = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {"ids": np.array([WORDS[:5]]), "positions": np.arange(5)}
    prompt, *past = sessions["prompt"].run(None, feeds)
    named = dict(zip(past_names(config), past, strict=True))
    step = sessions["step"].run(None, {"ids": np.array([WORDS[5:6]]), "positions": np.array([5]), **named})[0]
    rest = sessions["open"].run(None, {"ids": np.array([WORDS[5:]]), "positions": np.arange(5, 8), **named})[0]
    wanted = numpys(config, tmp_path).logits(WORDS)[[4, 5, 7]]
    np.testing.assert_allclose(np.stack([prompt, step, rest])[:, 0, 0], wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("name", "module", "kind", "most"),
    [
        ("onnxruntime", "onnxruntime", "q0f32", 1e-5),
        ("onnxruntime", "onnx_ir", "q8f32_1", 0.03),
        pytest.param("tunehub", "tvm", "q0bf16_f32", 1e-5, marks=pytest.mark.sweep),
        ("onnxruntime_dynamic", "onnxruntime", "q8f32_1", 0.05),
        pytest.param("tunehub_onnx", "tvm", "q0bf16", 0.03, marks=pytest.mark.sweep),
        ("tunehub_onnx_dynamic", "onnxruntime", "q8f32_1", 0.05),
        ("openvino", "openvino", "q0f32", 1e-5),
        ("llama.cpp", "llama_cpp", "q0f32", 1e-2),  # its cache is float16
        ("llama.cpp", "llama_cpp", "q8f32_1", 0.03),
    ],
)
@pytest.mark.few(7)
def test_a_peer_is_as_exact_as_its_weights(
    config: ModelConfig, tmp_path: Path, name: str, module: str, kind: str, most: float
) -> None:
    pytest.importorskip(module)
    sizes = {"sequences": 2, "tokens": 32, "prompt": 8}
    case = LanguageCase(config=config, quantization=kind, device="cpu", folder=tmp_path, work=tmp_path, **sizes)
    peer = made(name, case, 1)
    assert peer.preparation().load_s > 0
    found = peer.logits([5, 3])
    numpy, further = numpys(config, tmp_path), case.words(2)
    prompts = [case.words(count, count) for count in (5, 3)]
    after = [[*prompt, word] for prompt, word in zip(prompts, further, strict=True)]
    wanted = np.stack([numpy.logits(each)[-1] for each in (*prompts, *after)])
    assert np.abs(found - wanted).max() <= most * np.abs(wanted).max()
    assert peer.prefill_s(8) > 0 and peer.decode_s(2, 8, 2) > 0
