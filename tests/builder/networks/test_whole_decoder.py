"""A whole decoder in ONNX whose keys and values grow by `Concat`: one function serves prompts and steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="the extra llm")

import onnx
import tvm
from tests.cpu_features import host
from tests.numpy_decoder import NumpyDecoder
from tests.small_models import TINY, small

import tunehub
from tunehub.graph.shapes.bounds import within_bounds
from tunehub.models.export import parameters_of
from tunehub.models.quantization import quantization
from tunehub.models.weights import arrays
from tunehub.tir.nodes import integer, shape_of_type
from tunehub_builder.bench.language_models.checkpoint import weights_of, write_random
from tunehub_builder.bench.language_models.onnx_decoder import WeightFile, past_names, write_decoder
from tunehub_builder.networks.onnx_import import to_relax

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

CONFIG = small(TINY, layers=2)
PROMPT, COUNT = [3, 1, 4, 1, 5], 12


def test_greedy_tokens_are_numpys_and_attention_is_a_kernel_of_ours(tmp_path: Path) -> None:
    write_random(CONFIG, tmp_path)
    write_decoder(CONFIG, weights_of(tmp_path), WeightFile(tmp_path), tmp_path / "open.onnx", "open")
    module = to_relax(onnx.load(tmp_path / "open.onnx"), "open.onnx")
    with tunehub.context(host(2)) as hub:
        machine = tvm.relax.VirtualMachine(tvm.compile(module, host(2)), tvm.cpu())
    left = [each.name for each in hub.report().workloads]
    assert not any(part in name for name in left for part in ("softmax", "broadcast_to"))

    past = [np.zeros((1, CONFIG.kv_heads, 0, CONFIG.head_dim), "float32") for _ in past_names(CONFIG)]
    words, found = PROMPT, list[int]()
    while len(found) < COUNT:
        seen = len(PROMPT) + len(found) - len(words) if found else 0
        feeds = [np.array([words]), np.arange(seen, seen + len(words)), *past]
        logits, *past = (each.numpy() for each in machine["main"](*map(tvm.runtime.tensor, feeds)))
        words = [int(logits[0, -1].argmax())]
        found += words
    kind = quantization("q0f32")
    parameters = parameters_of(CONFIG, kind)
    model: Any = SimpleNamespace(config=CONFIG, parameters=parameters, quantization=kind)
    numpy = NumpyDecoder(model, list(arrays(parameters, CONFIG, kind, tmp_path)))
    assert found == numpy.greedy_after(PROMPT, found)


def test_the_last_of_some_tokens_is_one_row(tmp_path: Path) -> None:
    write_random(CONFIG, tmp_path)
    write_decoder(CONFIG, weights_of(tmp_path), WeightFile(tmp_path), tmp_path / "prompt.onnx", "prompt")
    module = to_relax(onnx.load(tmp_path / "prompt.onnx"), "prompt.onnx")
    logits = module["main"].body.body
    assert "min" in str(shape_of_type(logits.ty.fields[0]))
    bounded = within_bounds(module)["main"].body.body
    assert integer(shape_of_type(bounded.ty.fields[0])[1]) == 1  # type: ignore[index]
