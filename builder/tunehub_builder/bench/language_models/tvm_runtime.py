"""A language model by TVM, through tunehub or as TVM alone compiles it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tunehub_builder.bench.language_models.case import LanguageCase, LanguageFacts, Logits, as_logits, resident_bytes

if TYPE_CHECKING:
    from tunehub.models.session import LanguageSession
    from tunehub.report.model import ReportData

_WARM_UP = 3
_FUNCTIONS = ("embed", "prefill", "decode", "batch_decode", "greedy")  # what is timed


class TvmLanguageModel:
    """See :class:`~tunehub_builder.bench.language_models.case.LanguageRuntime`. `default`: TVM without tunehub, with
    its own cache; `steps`: on tensors, None for what `compile_model` takes."""

    def __init__(self, case: LanguageCase, *, default: bool = False, steps: bool | None = None) -> None:
        self._case, self._default, self._steps = case, default, steps
        self._made: Any = None
        self._weights: list[Any] = []

    def preparation(self) -> LanguageFacts:
        """See :class:`LanguageRuntime`."""
        began = time.perf_counter()
        self._made = self._compiled()
        compiled = time.perf_counter()
        self._weights = list(self._loaded())
        self._device.sync()
        report = self._made.report
        served = {} if report is None else {name: count for name, count in report.rung_counts().items() if count}
        notes = () if report is None else (*report.notes, *_refused(report))
        load_s = time.perf_counter() - compiled
        memory = resident_bytes()
        return LanguageFacts(
            compile_s=compiled - began, load_s=load_s, resident_bytes=memory, served=served, notes=notes
        )

    def prefill_s(self, count: int) -> float:
        """See :class:`LanguageRuntime`."""
        read = self._reading(count)
        read()  # warms up
        began = time.perf_counter()
        read()
        return time.perf_counter() - began

    def decode_s(self, batch: int, context: int, steps: int) -> float:
        """See :class:`LanguageRuntime`."""
        run = self._stepping(batch, context, _WARM_UP + steps)
        run(_WARM_UP)
        began = time.perf_counter()
        run(steps)
        return (time.perf_counter() - began) / steps

    def decode_kernels(self, batch: int, context: int, steps: int = 4) -> list[tuple[str, int, float]]:
        """Of a step on a GPU: each kernel's name, how often it runs, and its seconds together, by PyTorch's profiler.
        Raises ImportError without PyTorch."""
        run = self._stepping(batch, context, _WARM_UP + steps)
        run(_WARM_UP)
        return _kernels(partial(run, steps), steps)

    def prefill_kernels(self, _batch: int, count: int) -> list[tuple[str, int, float]]:
        """As :meth:`decode_kernels`, of a prompt."""
        read = self._reading(count)
        read()
        return _kernels(read, 1)

    def _reading(self, count: int) -> Callable[[], None]:
        """What reads a prompt of so many words, and waits."""
        session, words = self._session(1, count, count), self._case.words(count)

        def read() -> None:
            sequence = session.open()
            self._device.sync()
            session.prefill(sequence, words)
            self._device.sync()
            session.close(sequence)

        return read

    def _stepping(self, batch: int, context: int, most: int) -> Callable[[int], None]:
        """What runs so many steps, one after the other, and waits; ``most`` in all."""
        session = self._session(batch, context + most, min(context, self._case.chunk))
        sequences = [session.open() for _ in range(batch)]
        for each in sequences:
            session.skip(each, context)
        tokens = session.tokens(self._case.words(batch))

        def run(steps: int) -> None:
            nonlocal tokens
            for _ in range(steps):
                tokens = session.greedy(session.decode(sequences, tokens))
            self._device.sync()

        return run

    def logits(self, lengths: Sequence[int]) -> Logits:
        """See :class:`LanguageRuntime`."""
        session = self._session(len(lengths), max(lengths) + 1, max(lengths))
        sequences = [session.open() for _ in lengths]
        found = [
            session.prefill(each, self._case.words(count, count)).numpy()
            for each, count in zip(sequences, lengths, strict=True)
        ]
        after = session.decode(sequences, session.tokens(self._case.words(len(lengths)))).numpy()
        return as_logits([*found, *after])

    @property
    def _device(self) -> Any:
        import tvm

        return tvm.cuda(0) if self._case.device == "cuda" else tvm.cpu()

    def _session(self, sequences: int, tokens: int, chunk: int) -> LanguageSession:
        from tunehub.models.session import PAGE, CacheSizes

        whole = sequences * (-(-tokens // PAGE) * PAGE)
        sizes = CacheSizes(sequences=sequences, tokens=whole, chunk=max(chunk, 1))
        session: LanguageSession = self._made.session(self._weights, self._device, sizes)
        session.context = whole  # steps are timed behind more tokens than some models attend to
        return session

    def _compiled(self) -> Any:
        import tvm

        from tunehub.graph.gathers import quiet_gathers
        from tunehub.models.compiling import CompiledLanguageModel, compile_model
        from tunehub.models.export import export
        from tunehub.models.quantization import quantization
        from tunehub.target.host import host_target

        target = host_target(self._case.device) if self._case.device == "cuda" else host_target()
        if not self._default:
            chosen: Any = {"functions": _FUNCTIONS, "most_sequences": self._case.sequences, "steps": self._steps}
            chosen["cache_dtype"] = self._case.cache_dtype
            return compile_model(self._case.config, self._case.quantization, target, **chosen)
        kind = quantization(self._case.quantization)
        exported = export(self._case.config, target, "q0f32" if kind.stored else kind.name, _FUNCTIONS)
        return CompiledLanguageModel(
            made=tvm.compile(quiet_gathers(exported.module), target),
            config=exported.config,
            quantization=exported.quantization,
            report=None,
            steps=False,
        )

    def _loaded(self) -> Iterator[Any]:
        from tunehub.models.quantising import folder_tensors
        from tunehub.models.quantization import quantization
        from tunehub.models.random_weights import random_tensors

        made = self._made
        if self._case.folder is None:
            return random_tensors(made.parameters, quantization(self._case.quantization), self._device)
        return folder_tensors(made, self._case.folder, self._device)


def _refused(report: ReportData) -> Iterator[str]:
    """Of each workload, which of its schedules did not pass, and why."""
    for workload in report.workloads:
        for each in workload.refused:
            said = each.reason if each.refusal is None else each.refusal
            yield f"refused: {each.step} of {workload.name}: {said}"


def _kernels(run: Callable[[], None], times: int) -> list[tuple[str, int, float]]:
    """Of what ``run`` does so many ``times``: each kernel's name, how often it runs, and its seconds together."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
    kernels = [(each.key, each.count // times, each.device_time_total / times / 1e6) for each in found.key_averages()]
    return sorted(kernels, key=lambda each: -each[2])
