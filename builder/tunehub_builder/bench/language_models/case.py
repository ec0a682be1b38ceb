"""A language model that is measured, and what each runtime's process answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tunehub.models.config import ModelConfig

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageCase:
    """`folder`: where weights are, None for random ones; `sequences` and `tokens`: the most that a cache has at once;
    `prompt`: the longest that is read, `chunk`: of it at once; `device`: cuda or cpu; `cache_dtype`:
    of keys and values, for `compile_model`; `work`: where runtimes write the
    files that they need."""

    config: ModelConfig
    quantization: str
    device: str
    sequences: int
    tokens: int
    prompt: int
    chunk: int = 8192
    cache_dtype: str = "auto"
    folder: Path | None = None
    work: Path | None = None

    def words(self, count: int, seed: int = 0) -> list[int]:
        """A prompt of so many words."""
        return [int(each) for each in np.random.default_rng(seed).integers(0, self.config.vocabulary, count)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageFacts:
    """What a runtime says before it is timed: seconds, the process's memory with the model, for people what serves."""

    compile_s: float
    load_s: float
    resident_bytes: int = 0
    served: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class LanguageRuntime(Protocol):
    """In a worker process: a model with one runtime. Its methods are the requests."""

    def preparation(self) -> LanguageFacts:
        """Compile and load. Raises what fails."""

    def prefill_s(self, count: int) -> float:
        """Seconds of a prompt of so many words, alone."""

    def decode_s(self, batch: int, context: int, steps: int) -> float:
        """Seconds of one step of so many sequences that have so many words already; the mean of `steps`."""

    def logits(self, lengths: Sequence[int]) -> Logits:
        """Of the word after prompts of these lengths, one by one, and then after a further word each, as one batch:
        `[2 * sequences, words]`."""


def step_bytes(case: LanguageCase, batch: int, context: int) -> int:
    """What a step reads of weights and of the cache at least."""
    from tunehub.models.quantization import quantization

    config, kind = case.config, quantization(case.quantization)
    heads = config.heads * config.head_dim
    layer = kind.bytes(config.qkv, config.hidden) + kind.bytes(config.hidden, heads)
    if config.experts is None:
        layer += kind.bytes(3 * config.intermediate, config.hidden)
    else:
        used = min(config.experts.count, batch * config.experts.chosen)
        layer += kind.bytes(3 * (used * config.experts.intermediate + config.experts.shared), config.hidden)
    width = 1 if case.cache_dtype != "auto" else 4 if kind.dtype == "float32" else 2
    cached = 2 * config.kv_heads * config.head_dim * width * context * batch
    return config.layers * (layer + cached) + kind.bytes(config.vocabulary, config.hidden)


def as_logits(rows: Sequence[Any]) -> Logits:
    """Rows of words as one array."""
    return np.stack([np.asarray(each, "float32").reshape(-1) for each in rows])


def resident_bytes() -> int:
    """Of this process's memory; 0 where the system does not say it."""
    try:
        text = Path("/proc/self/statm").read_text()
    except OSError:
        return 0
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
