"""A language model by llama.cpp, on CPUs, with a GGUF file of the same weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tunehub.models.quantization import quantization
from tunehub_builder.bench.language_models.case import LanguageCase, LanguageFacts, Logits, as_logits, resident_bytes
from tunehub_builder.bench.language_models.checkpoint import weights_of
from tunehub_builder.bench.language_models.gguf_file import KINDS, write_gguf

_WARM_UP = 3


class LlamaCppModel:
    """See :class:`~tunehub_builder.bench.language_models.case.LanguageRuntime`. Weights are F32, F16, BF16, Q8_0 or
    Q4_0; words are not sampled."""

    def __init__(self, case: LanguageCase, threads: int) -> None:
        self._case, self._threads = case, threads
        self._model: Any = None
        self._context: Any = None
        self._batch: Any = None
        self._log: Any = None
        self._filled: tuple[int, int] = (0, 0)

    def preparation(self) -> LanguageFacts:
        """See :class:`LanguageRuntime`."""
        import llama_cpp

        path = self._file()
        self._log = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        began = time.perf_counter()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp did not load {path.name}")
        case, chosen = self._case, llama_cpp.llama_context_default_params()
        chosen.n_ctx = case.sequences * (case.tokens + 64)
        chosen.n_batch = chosen.n_ubatch = 512
        chosen.n_seq_max, chosen.kv_unified = case.sequences, False
        chosen.n_threads = chosen.n_threads_batch = self._threads
        self._context = llama_cpp.llama_init_from_model(self._model, chosen)
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        info = llama_cpp.llama_print_system_info().decode().strip()
        self._decode([(0, 0, self._case.words(1)[0])])
        load_s = time.perf_counter() - began
        return LanguageFacts(compile_s=0.0, load_s=load_s, resident_bytes=resident_bytes(), notes=(info,))

    def prefill_s(self, count: int) -> float:
        """See :class:`LanguageRuntime`."""
        words = self._case.words(count)
        for _ in range(2):  # the first one warms up
            self._clear()
            began = time.perf_counter()
            self._prompt(0, words)
            taken = time.perf_counter() - began
        return taken

    def decode_s(self, batch: int, context: int, steps: int) -> float:
        """See :class:`LanguageRuntime`."""
        if self._filled != (batch, context):
            self._clear()
            for sequence in range(batch):
                self._prompt(sequence, self._case.words(context, sequence))
            self._filled = (batch, context)
        self._forget(batch, context)
        words = self._case.words(batch)
        for step in range(_WARM_UP + steps):
            if step == _WARM_UP:
                began = time.perf_counter()
            self._decode([(sequence, context + step, word) for sequence, word in enumerate(words)])
        return (time.perf_counter() - began) / steps

    def logits(self, lengths: Sequence[int]) -> Logits:
        """See :class:`LanguageRuntime`."""
        self._clear()
        words = self._case.words(len(lengths))
        before = []
        for sequence, count in enumerate(lengths):
            before.append(self._prompt(sequence, self._case.words(count, count)))
        after = self._decode([(each, lengths[each], word) for each, word in enumerate(words)])
        return as_logits([*before, *after])

    def _prompt(self, sequence: int, words: Sequence[int]) -> Any:
        """Read words; logits of the last one."""
        for begin in range(0, len(words), 512):
            part = words[begin : begin + 512]
            places = [(sequence, begin + at, word) for at, word in enumerate(part)]
            found = self._decode(places, last_only=True)
        return found[-1]

    def _decode(self, places: Sequence[tuple[int, int, int]], *, last_only: bool = False) -> list[Any]:
        """Logits of each of (sequence, position, word), or of the last alone."""
        import llama_cpp

        batch = self._batch
        batch.n_tokens = len(places)
        for at, (sequence, position, word) in enumerate(places):
            batch.token[at], batch.pos[at] = word, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
            batch.logits[at] = not last_only or at == len(places) - 1
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama.cpp's decode answers {code}")
        size = self._case.config.vocabulary
        chosen = [len(places) - 1] if last_only else range(len(places))
        pointers = [llama_cpp.llama_get_logits_ith(self._context, at) for at in chosen]
        return [np.ctypeslib.as_array(each, shape=(size,)).copy() for each in pointers]

    def _clear(self) -> None:
        import llama_cpp

        self._filled = (0, 0)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _forget(self, sequences: int, context: int) -> None:
        """What was written behind the context."""
        import llama_cpp

        for each in range(sequences):
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), each, context, -1)

    def _file(self) -> Path:
        """The model's, written once."""
        case, kind = self._case, quantization(self._case.quantization)
        assert case.folder is not None and case.work is not None
        named = {4: "Q4_0", 8: "Q8_0"}.get(kind.bits) or KINDS[kind.dtype]
        path = case.work / f"{named}.gguf"
        if not path.exists():
            part = path.with_suffix(".part")
            write_gguf(case.config, weights_of(case.folder), part, named)
            part.rename(path)
        return path
