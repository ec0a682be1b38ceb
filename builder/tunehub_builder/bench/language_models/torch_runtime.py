"""A language model by PyTorch: on a GPU a step is one CUDA graph, on CPUs operator by operator; or compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from tunehub_builder.bench.language_models.case import LanguageCase, LanguageFacts, Logits, as_logits
from tunehub_builder.bench.language_models.torch_decoder import TorchDecoder

_WARM_UP = 3


class TorchLanguageModel:
    """See :class:`~tunehub_builder.bench.language_models.case.LanguageRuntime`. `compiled`: by `torch.compile`, on GPUs
    in its mode `reduce-overhead`, whose graph reads weights and the cache where they are. Quantised weights are plain
    ones here, of the values that they stand for."""

    def __init__(self, case: LanguageCase, *, compiled: bool = False, threads: int = 0) -> None:
        self._case, self._compiled, self._threads = case, compiled, threads
        self._decoder: Any = None

    def preparation(self) -> LanguageFacts:
        """See :class:`LanguageRuntime`."""
        import torch

        if self._threads:
            torch.set_num_threads(self._threads)
        began = time.perf_counter()
        self._decoder = TorchDecoder(self._case.config, dict(_weights(self._case)))
        self._sync()
        return LanguageFacts(compile_s=0.0, load_s=time.perf_counter() - began)

    def prefill_s(self, count: int) -> float:
        """See :class:`LanguageRuntime`."""
        import torch

        words = torch.tensor([self._case.words(count)], device=self._case.device)
        with torch.inference_mode():
            for _ in range(2):  # the first one warms up
                self._sync()
                began = time.perf_counter()
                self._decoder.prompt(words)
                self._sync()
                taken = time.perf_counter() - began
        return taken

    def decode_s(self, batch: int, context: int, steps: int) -> float:
        """See :class:`LanguageRuntime`."""
        import torch

        with torch.inference_mode():
            run = self._step(batch, context, steps)
            self._sync()
            began = time.perf_counter()
            for _ in range(steps):
                run()
            self._sync()
        return (time.perf_counter() - began) / steps

    def logits(self, lengths: Sequence[int]) -> Logits:
        """See :class:`LanguageRuntime`; each prompt and its further word at once, without a cache."""
        return self._logits(self._decoder, lengths)

    def wide_logits(self, lengths: Sequence[int]) -> Logits:
        """The same of the same weights, computed in float32."""
        return self._logits(TorchDecoder(self._case.config, WidenedWeights(self._decoder.weights)), lengths)

    def _logits(self, decoder: TorchDecoder, lengths: Sequence[int]) -> Logits:
        import torch

        before: list[Any] = []
        after: list[Any] = []
        further = self._case.words(len(lengths))
        with torch.inference_mode():
            for count, word in zip(lengths, further, strict=True):
                words = self._case.words(count, count)
                for found, each in ((before, words), (after, [*words, word])):
                    found.append(decoder.prompt(torch.tensor([each], device=self._case.device)).cpu().numpy())
        return as_logits([*before, *after])

    def _step(self, batch: int, context: int, steps: int) -> Callable[[], Any]:
        """What runs a step again and again, at one place."""
        import torch

        place = self._case.device
        keys, values = self._decoder.cache(batch, context + steps + _WARM_UP)
        words = torch.tensor(self._case.words(batch), device=place).reshape(batch, 1)
        position = torch.tensor([context], device=place)
        mask = (torch.arange(keys.shape[3], device=place) <= position)[None, None, None]
        given = (words, position, mask, keys, values)
        if not self._compiled:
            return (_warm if place == "cpu" else _captured)(lambda: self._decoder.step(*given))
        run = partial(self._compiled_step, *given)
        return _warm(run) if place == "cpu" else _in_own_graph(run, [*self._decoder.weights.values(), *given])

    @cached_property
    def _compiled_step(self) -> Any:
        """One for all sizes: those of another object would count as compiled anew, of which PyTorch allows a few."""
        import torch

        graphs = {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}  # the first is `reduce-overhead`
        options = None if self._case.device == "cpu" else graphs
        return torch.compile(self._decoder.step, fullgraph=True, dynamic=False, options=options)

    def _sync(self) -> None:
        import torch

        if self._case.device == "cuda":
            torch.cuda.synchronize()


class WidenedWeights(Mapping[str, Any]):
    """Weights in float32, each made when it is read."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Any:
        return self._weights[name].float()

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _warm(run: Callable[[], Any]) -> Callable[[], Any]:
    for _ in range(_WARM_UP):
        run()
    return run


def _in_own_graph(run: Callable[[], Any], tensors: Iterable[Any]) -> Callable[[], Any]:
    """What ``torch.compile`` made of a step, replayed as its own CUDA graph. ``tensors``: what it reads and writes, and
    stays: else it would copy all weights at every step, and a cache that is written would forbid a graph."""
    import torch

    for each in tensors:
        torch._dynamo.mark_static_address(each)

    def replay() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return run()

    return _warm(replay)


def _captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """It as one CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _warm(run)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    replay()
    return replay


def _weights(case: LanguageCase) -> Iterator[tuple[str, Any]]:
    """The module's parameters as tensors on the device; words and scales as the floats that they stand for."""
    import torch

    from tunehub.models.export import parameters_of
    from tunehub.models.quantization import quantization

    kind, words = quantization(case.quantization), None
    parameters = parameters_of(case.config, kind)
    for parameter, tensor in zip(parameters, _tensors(case, parameters), strict=True):
        base, _, part = parameter.name.rpartition(".")
        if part == "q_weight":
            words = tensor
        elif part == "q_scale":
            yield f"{base}.weight", _dequantized(words, tensor, kind)
        else:
            yield parameter.name, tensor.to(getattr(torch, kind.dtype)) if kind.stored else tensor


def _tensors(case: LanguageCase, parameters: Sequence[Any]) -> Iterator[Any]:
    import numpy as np

    from tunehub.models.quantization import quantization
    from tunehub.models.random_weights import pool_of
    from tunehub.models.weights import arrays

    kind, pools = quantization(case.quantization), dict[int, Any]()
    if case.folder is not None:
        yield from (_on_device(each, case.device) for each in arrays(parameters, case.config, kind, case.folder))
        return
    for parameter in parameters:
        pool, begin = pool_of(parameter, kind)
        if id(pool) not in pools:
            pools[id(pool)] = _on_device(pool, case.device)
        size = int(np.prod(parameter.shape))
        rolled = pools[id(pool)].roll(-begin)
        yield rolled.repeat(-(-size // len(pool)))[:size].reshape(parameter.shape)


def _on_device(array: Any, device: str) -> Any:
    """A tensor of an array; PyTorch reads no bfloat16 of numpy, and computes little with unsigned words."""
    import numpy as np
    import torch

    array = np.ascontiguousarray(array)
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16).to(device)
    if str(array.dtype) == "float8_e4m3fn":
        return torch.from_numpy(array.view("uint8")).view(torch.float8_e4m3fn).to(device)
    return torch.from_numpy(array.view("int32") if array.dtype == "uint32" else array).to(device)


def _dequantized(words: Any, scales: Any, kind: Any) -> Any:
    import torch

    from tunehub.models.quantization import GROUP

    if kind.e4m3:
        return (words.float() * scales[:, None]).to(getattr(torch, kind.dtype))
    shifts = torch.arange(kind.per_word, device=words.device, dtype=torch.int32) * kind.bits
    found = []
    for some, scale in zip(
        words.split(4096), scales.split(4096), strict=True
    ):  # whole they would be four times as large
        values = (some[..., None] >> shifts) & ((1 << kind.bits) - 1)
        groups = values.reshape(*scale.shape, GROUP).to(scale.dtype) - kind.zero
        found.append((groups * scale[..., None]).reshape(*some.shape[:-1], -1))
    return torch.cat(found)
