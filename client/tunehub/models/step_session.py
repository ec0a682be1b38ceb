"""A compiled language model whose steps take pages and what is planned for them as tensors
(:mod:`tunehub.graph.steps.writing`): on a GPU a step of one token a sequence is one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tvm
import tvm_ffi

from tunehub.models.cache_pages import CachePages, Plan, StepTensors
from tunehub.models.device_tensors import zeros
from tunehub.models.session import CompiledFunctions, alone

if TYPE_CHECKING:
    from tunehub.graph.types import Executable
    from tunehub.models.config import ModelConfig
    from tunehub.models.session import CacheSizes
    from tunehub.models.types import Device, DeviceTensor


class StepSession(CompiledFunctions):
    """See :class:`~tunehub.models.session.LanguageSession`. The next step overwrites logits of as many tokens."""

    def __init__(
        self,
        executable: Executable,
        weights: Iterable[DeviceTensor],
        device: Device,
        sizes: CacheSizes,
        config: ModelConfig,
        dtype: str,
    ) -> None:
        """`dtype`: of keys and values. The cache is made here, of zeros."""
        super().__init__(executable, weights, device, sizes)
        pages = -(-sizes.tokens // sizes.page) + sizes.sequences
        shape = (pages, 2, config.kv_heads, sizes.page, config.head_dim)
        self._pages = tvm_ffi.convert([zeros(shape, dtype, device) for _ in range(config.layers)])
        self._plans, self._count = CachePages(pages), pages
        self._planned: dict[int, tuple[DeviceTensor, StepTensors]] = {}

    @alone
    def open(self) -> int:
        """See :class:`~tunehub.models.session.LanguageSession`."""
        sequence = self._new()
        self._plans.add(sequence)
        return sequence

    @alone
    def close(self, sequence: int) -> None:
        """See :class:`~tunehub.models.session.LanguageSession`."""
        self._forget(sequence)
        self._plans.remove(sequence)

    @alone
    def skip(self, sequence: int, count: int) -> None:
        """See :class:`~tunehub.models.session.LanguageSession`."""
        self._planned_step([sequence], [count])

    @alone
    def prefill(self, sequence: int, tokens: Sequence[int]) -> DeviceTensor:
        """See :class:`~tunehub.models.session.LanguageSession`."""
        logits = None
        for part in self._chunks(tokens):
            name = "prefill_step" if self._plans.length(sequence) else "prefill_first_step"
            logits = self._step(name, [sequence], [len(part)], self._on_device(part))
        return logits

    @alone
    def prefill_ragged(self, prompts: Mapping[int, Sequence[int]]) -> DeviceTensor:
        """See :class:`~tunehub.models.session.LanguageSession`."""
        lengths = self._counts(prompts)
        name = "batch_prefill_step" if any(map(self._plans.length, prompts)) else "batch_prefill_first_step"
        tokens = self._on_device([token for each in prompts.values() for token in each])
        last = self._on_device(np.cumsum(lengths) - 1)
        return self._step(name, list(prompts), lengths, tokens, last)

    @alone
    def decode(self, sequences: Sequence[int], tokens: DeviceTensor) -> DeviceTensor:
        """See :class:`~tunehub.models.session.LanguageSession`."""
        self._check_step(sequences, tokens)
        name = "decode_step" if len(sequences) == 1 and self._has("decode_step") else "batch_decode_step"
        return self._step(name, sequences, [1] * len(sequences), tokens)

    def _step(
        self, name: str, sequences: Sequence[int], counts: Sequence[int], tokens: DeviceTensor, *inputs: DeviceTensor
    ) -> DeviceTensor:
        """Call a function whose tensors keep their places from step to step."""
        plan = self._planned_step(sequences, counts)
        own, planned = self._tensors(sum(counts), len(sequences), decode="decode" in name)
        planned.write(plan)
        own.copyfrom(tokens)
        return self._function(name)(own, *inputs, *planned.arguments, self._pages, self._weights)

    def _planned_step(self, sequences: Sequence[int], counts: Sequence[int]) -> Plan:
        grown = self._grown(sequences, counts)
        plan = self._plans.plan(sequences, counts)
        self._lengths |= grown
        return plan

    def _tensors(self, tokens: int, sequences: int, *, decode: bool) -> tuple[DeviceTensor, StepTensors]:
        if decode and sequences in self._planned:
            return self._planned[sequences]
        own = tvm.runtime.empty((tokens,), "int32", self.device)
        made = own, StepTensors(tokens, sequences, self._count, self.device, decode=decode)
        if decode:
            self._planned[sequences] = made
        return made
