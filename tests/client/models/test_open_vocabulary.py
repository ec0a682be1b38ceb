"""Modules in the form of MLC-LLM's own models, whose number of words is open, give numpy's logits: with TVM's cache,
and as steps on tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm

import tunehub
from tunehub.graph.steps.writing import with_steps
from tunehub.models.export import export
from tunehub.models.random_weights import random_array
from tunehub.models.session import CacheSession, CacheSizes
from tunehub.models.step_session import StepSession

from ...numpy_decoder import NumpyDecoder
from ...small_models import TINY, small, with_open_vocabulary
from ...sweeps import swept

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

CONFIG = small(TINY, layers=1)
SIZES = CacheSizes(sequences=2, tokens=64, chunk=4)  # shorter than a prompt
PROMPTS = ([3, 1, 4, 1, 5], [9, 2])


@pytest.mark.parametrize("quantization", swept(["q4f32_1"], ["q0f32"]))
def test_both_kinds_of_session_give_numpys_logits(quantization: str) -> None:
    target = tunehub.host_target()
    closed = export(CONFIG, target, quantization)
    arrays = [random_array(each, closed.quantization) for each in closed.parameters]
    opened = with_open_vocabulary(CONFIG, quantization, target, ("embed", "prefill", "batch_decode"))
    with tunehub.context(target):
        executable = tvm.compile(with_steps(opened, 2), target)
    weights: list[Any] = [tvm.runtime.tensor(each) for each in arrays]
    numpy = NumpyDecoder(closed, arrays)
    wanted = [numpy.logits([*prompt, 7])[-1] for prompt in PROMPTS]
    for session in (
        CacheSession(executable, weights, tvm.cpu(), SIZES),
        StepSession(executable, weights, tvm.cpu(), SIZES, CONFIG, "float32"),
    ):
        sequences = [session.open() for _ in PROMPTS]
        for each, prompt in zip(sequences, PROMPTS, strict=True):
            session.prefill(each, prompt)
        found = session.decode(sequences, session.tokens([7, 7])).numpy()[:, 0]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())
