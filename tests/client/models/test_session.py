"""Compiled models give the tokens of numpy's: one by one, in batches, at ragged lengths, in chunks."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm

from tunehub.exceptions import UsageError
from tunehub.models import compiling
from tunehub.models.compiling import CompiledLanguageModel, compile_model, load_model
from tunehub.models.config import ModelConfig
from tunehub.models.random_weights import random_array, random_tensors
from tunehub.models.session import CacheSizes, LanguageSession, greedy_tokens

from ...numpy_decoder import NumpyDecoder
from ...small_models import TINY, small
from ...sweeps import swept

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9], [2, 7], [1, 8, 2, 8, 1, 8, 2, 8, 4])
COUNT = 64
CHUNK = 8  # shorter than the longest prompt


@dataclass(frozen=True, kw_only=True)
class Both:
    """A model twice: compiled through tunehub, and in numpy."""

    compiled: CompiledLanguageModel
    numpy: NumpyDecoder

    def session(self, **sizes: int) -> LanguageSession:
        """With a cache for three sequences."""
        weights = random_tensors(self.compiled.parameters, self.compiled.quantization, tvm.cpu())
        return self.compiled.session(
            weights, tvm.cpu(), CacheSizes(**{"sequences": 3, "tokens": 512, "chunk": CHUNK, **sizes})
        )


def _both(config: ModelConfig, quantization: str, *, steps: bool = False) -> Both:
    compiled = compile_model(config, quantization, steps=steps)
    arrays = [random_array(each, compiled.quantization) for each in compiled.parameters]
    return Both(compiled=compiled, numpy=NumpyDecoder(compiled, arrays))


@pytest.fixture(scope="module", params=swept([False], [True]), ids=["cache", "steps"])
def plain(request: pytest.FixtureRequest) -> Both:
    return _both(TINY, "q0f32", steps=request.param)


def test_64_greedy_tokens_are_those_of_numpy_alone_and_in_a_batch(plain: Both) -> None:
    found = greedy_tokens(plain.session(), PROMPTS, COUNT).tolist()
    assert found == [plain.numpy.greedy_after(*each) for each in zip(PROMPTS, found, strict=True)]
    assert greedy_tokens(plain.session(), PROMPTS[:1], COUNT).tolist() == found[:1]
    assert len(set(found[0])) > COUNT // 4


def test_prompts_of_several_lengths_are_read_at_once(plain: Both) -> None:
    session = plain.session(chunk=64)
    prompts = {session.open(): each for each in PROMPTS}
    found = session.prefill_ragged(prompts).numpy()[0]
    for row, prompt in zip(found, PROMPTS, strict=True):
        np.testing.assert_allclose(row, plain.numpy.logits(prompt)[-1], rtol=0, atol=1e-5)


def test_threads_that_share_a_session_get_what_each_gets_alone(plain: Both) -> None:
    shared, alone = plain.session(sequences=8), [greedy_tokens(plain.session(), [each], 24) for each in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        for _ in range(3):
            found = threads.map(lambda prompt: greedy_tokens(shared, [prompt], 24), PROMPTS)
            assert all((one == other).all() for one, other in zip(found, alone, strict=True))


def test_tokens_that_the_model_has_not_are_refused_and_the_sequence_stays(plain: Both) -> None:
    session, words = plain.session(), plain.compiled.config.vocabulary
    sequence = session.open()
    for wrong in ([1, words], [-1], [2**40]):
        with pytest.raises(UsageError, match=f"none of the model's {words} tokens"):
            session.prefill(sequence, wrong)
        with pytest.raises(UsageError, match=f"none of the model's {words} tokens"):
            session.prefill_ragged({sequence: wrong})
    found = session.prefill(sequence, PROMPTS[1]).numpy().reshape(-1)
    np.testing.assert_allclose(found, plain.numpy.logits(PROMPTS[1])[-1], rtol=0, atol=1e-5)


def test_kernels_over_pages_are_ours_and_the_report_says_so(plain: Both) -> None:
    assert plain.compiled.report is not None
    assert any("kernels of tunehub" in note for note in plain.compiled.report.notes)


def test_pages_of_a_closed_sequence_are_used_again(plain: Both) -> None:
    session = plain.session(sequences=1, tokens=64)
    for _ in range(20):
        sequence = session.open()
        session.prefill(sequence, PROMPTS[0])
        session.close(sequence)


def test_what_does_not_fit_in_a_chunk_is_an_error(plain: Both) -> None:
    session = plain.session()
    with pytest.raises(UsageError, match="chunk"):
        session.prefill_ragged({session.open(): [1] * CHUNK, session.open(): [2]})
    with pytest.raises(UsageError, match="no token"):
        session.prefill(session.open(), [])


def test_skipped_places_count_as_tokens(plain: Both) -> None:
    session = plain.session(sequences=1, tokens=64)
    sequence = session.open()
    session.skip(sequence, 60)
    assert session.decode([sequence], session.tokens([1])).shape == (1, 1, TINY.vocabulary)
    with pytest.raises(Exception, match=r"pages|page"):
        session.skip(sequence, 64)


@pytest.mark.sweep
def test_pages_in_e4m3_give_nearly_numpys_logits() -> None:
    config = small(TINY, layers=1)
    compiled = compile_model(config, "q0f32", steps=True, cache_dtype="fp8_e4m3")
    arrays = [random_array(each) for each in compiled.parameters]
    sizes = CacheSizes(sequences=1, tokens=64, chunk=4)
    session = compiled.session(random_tensors(compiled.parameters, None, tvm.cpu()), tvm.cpu(), sizes)
    found = session.prefill(session.open(), PROMPTS[0]).numpy()[0, 0]
    wanted = NumpyDecoder(compiled, arrays).logits(PROMPTS[0])[-1]
    assert 1e-5 < np.abs(found - wanted).max() / np.abs(wanted).max() < 0.05


@pytest.mark.parametrize("quantization", swept(["q4f32_1"], ["q8f32_1", "e4m3_f32"]))
@pytest.mark.sweep
def test_quantised_models_give_numpys_logits(quantization: str) -> None:
    both = _both(small(TINY, layers=1), quantization)
    session = both.session()
    found = session.prefill(session.open(), PROMPTS[0]).numpy()[0, 0]
    wanted = both.numpy.logits(PROMPTS[0])[-1]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())


@pytest.mark.usefixtures("keeps_compiled")
def test_the_same_model_again_is_the_library_of_the_cache_and_gives_numpys_tokens(
    plain: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compile takes its time, so that of the fixture stands for all."""
    steps = plain.compiled.steps
    monkeypatch.setattr(compiling.api, "compile", lambda *_, **__: plain.compiled.made)
    first, again = (compile_model(TINY, "q0f32", steps=steps) for _ in range(2))
    assert first.made is not None and again.made is None
    assert first.library == again.library is not None
    tokens = greedy_tokens(Both(compiled=again, numpy=plain.numpy).session(), PROMPTS[:1], 4).tolist()
    assert tokens == [plain.numpy.greedy_after(PROMPTS[0], tokens[0])]
    for number, each in enumerate((first, again)):
        each.write(tmp_path / f"{number}.so")
    assert (tmp_path / "0.so").read_bytes() == (tmp_path / "1.so").read_bytes()
    assert load_model(tmp_path / "1.so")[1] == "llvm"
    monkeypatch.setattr(compiling, "write_library", lambda _, path, **__: shutil.copy(tmp_path / "0.so", path))
    assert compile_model(TINY, "q0f32", steps=not steps).made is not None
    monkeypatch.setattr(tvm.runtime, "load_module", _not_mapped)
    unmapped = compile_model(TINY, "q0f32", steps=steps)
    assert unmapped.made is not None and unmapped.report is not None
    assert not any(note.startswith("from the cache") for note in unmapped.report.notes)


def _not_mapped(_path: str) -> None:
    raise RuntimeError("failed to map segment from shared object: Operation not permitted")


@pytest.mark.sweep
@pytest.mark.usefixtures("keeps_compiled")
def test_a_kept_library_that_cannot_be_loaded_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(TINY, layers=1)
    assert compile_model(config, "q0f32", functions=("greedy",)).made is not None
    assert compile_model(config, "q0f32", functions=("greedy",)).made is None
    monkeypatch.setattr(tvm.runtime, "load_module", _not_mapped)
    again = compile_model(config, "q0f32", functions=("greedy",))
    assert again.made is not None and again.report is not None
    assert not any(note.startswith("from the cache") for note in again.report.notes)


def test_sequences_that_are_not_open_or_twice_in_a_step_are_refused_and_the_others_stay(plain: Both) -> None:
    """TVM's cache appends two tokens of one sequence at one place, and reads beyond its own for none."""
    session = plain.session()
    sequence, closed = session.open(), session.open()
    session.close(closed)
    session.prefill(sequence, PROMPTS[1])
    one = session.tokens([1])
    for wrong in ([sequence, sequence], [], [closed], [-1], [sequence, closed]):
        with pytest.raises(UsageError, match="no sequences that are open"):
            session.decode(wrong, session.tokens([1] * len(wrong)))
    with pytest.raises(UsageError, match="no sequences that are open"):
        session.close(closed)
    with pytest.raises(UsageError, match="tokens of 1 sequences"):
        session.decode([sequence], session.tokens([1, 2]))
    found = session.decode([sequence], one).numpy().reshape(-1)
    np.testing.assert_allclose(found, plain.numpy.logits([*PROMPTS[1], 1])[-1], rtol=0, atol=1e-5)


def test_a_sequence_is_no_longer_than_the_models_context(plain: Both) -> None:
    """Behind it a model that sees a window only attends to other tokens."""
    most = plain.compiled.config.context
    session = plain.session(tokens=2 * most, chunk=most)
    sequence = session.open()
    session.skip(sequence, most - 1)
    session.prefill(sequence, [1])
    for call in (lambda: session.prefill(sequence, [2]), lambda: session.decode([sequence], session.tokens([2]))):
        with pytest.raises(UsageError, match="more than the model's context"):
            call()


@pytest.mark.parametrize("sizes", [{"sequences": 0}, {"tokens": -1}, {"chunk": 0}, {"page": 0}, {"page": 7}], ids=str)
def test_a_cache_of_no_size_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="no size of a cache"):
        CacheSizes(**{"sequences": 1, "tokens": 16, **sizes})
