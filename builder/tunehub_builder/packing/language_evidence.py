"""Times of prompts and steps of language models as evidence: lines of ``benchmarks language_models --out``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

import msgspec
from msgspec import UNSET

from tunehub_registry.evidence import NetworkEvidence

_OURS, _DEFAULT, _TORCH = "tunehub", "default", "torch"
_ON_CPU = {"onnxruntime_s": ("onnxruntime", "onnxruntime_dynamic"), "openvino_s": ("openvino",),
           "llama_cpp_s": ("llama.cpp",), "torch_s": ("torch",)}  # fmt: skip


class MeasuringGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU, when and with what it was measured: the first line of a run."""

    gpu: str
    gpu_driver: str
    gpu_max_sm_clock_mhz: int | None = None
    gpu_max_memory_clock_mhz: int | None = None
    date: str
    tvm: str
    torch: str | None = None


class MeasuringCpu(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU, of how many threads, when and with what: ``peers`` are versions of other runtimes."""

    cpu: str
    threads: int
    date: str
    tvm: str
    peers: Mapping[str, str] = {}


class LanguageFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one runtime; or the ``machine``; or how far logits are ``apart``, by runtime. ``layers``: of a model
    that was cut short."""

    model: str
    quantization: str
    layers: int | None = None
    runtime: str = ""
    kind: str = ""
    batch: int = 0
    length: int = 0
    samples_s: tuple[float, ...] = ()
    machine: dict[str, Any] | None = None
    apart: Mapping[str, float] = {}


def language_evidence(lines: Sequence[LanguageFigure]) -> Iterator[NetworkEvidence]:
    """Evidence of each prompt and step that was measured with TVM's default beside, or with another runtime; none of
    models cut short. Raises ValidationError for a machine that is described otherwise."""

    def name(line: LanguageFigure) -> str:
        return f"{line.model}_{line.quantization}"

    for network, some in groupby(sorted(lines, key=name), name):
        own = [line for line in some if line.layers is None]
        machine = next((line.machine for line in own if line.machine is not None), None)
        apart = next((line.apart for line in own if line.apart), None)
        if machine is not None and apart is not None:
            yield from _of_network(network, own, machine, apart)


def _of_network(
    network: str, lines: Sequence[LanguageFigure], machine: Mapping[str, Any], apart: Mapping[str, float]
) -> Iterator[NetworkEvidence]:
    figures: dict[tuple[str, int, int], dict[str, Sequence[float]]] = {}
    for line in lines:
        if line.samples_s:
            figures.setdefault((line.kind, line.batch, line.length), {})[line.runtime] = line.samples_s
    for (kind, batch, length), samples in figures.items():
        is_step, seconds = kind == "decode", {runtime: median(each) for runtime, each in samples.items()}
        beside = _on_cpu(machine, apart, seconds) if "cpu" in machine else _on_gpu(machine, apart, seconds, is_step)
        if _OURS in samples and beside is not None:
            yield NetworkEvidence(
                network=f"{network} ({f'step of {batch} after' if is_step else 'prompt of'} {length} tokens)",
                tuned_s=seconds[_OURS],
                repeats=len(samples[_OURS]),
                precision=lines[0].quantization,
                part="step" if is_step else "prompt",
                **beside,
            )


def _on_gpu(
    described: Mapping[str, Any], apart: Mapping[str, float], seconds: Mapping[str, float], is_step: bool
) -> dict[str, Any] | None:
    machine = msgspec.convert(described, MeasuringGpu)
    if not {_DEFAULT, _TORCH} & {*seconds} or _OURS not in apart:
        return None
    clocks = (machine.gpu_max_sm_clock_mhz, machine.gpu_max_memory_clock_mhz)
    torch = f", PyTorch {machine.torch}" if machine.torch else ""
    return {
        "default_s": seconds.get(_DEFAULT),
        "threads": 1,
        "output_max_rel_diff": apart[_OURS],
        "torch_graphs_s" if is_step else "torch_s": seconds.get(_TORCH, UNSET),
        "device": machine.gpu,
        "driver": machine.gpu_driver,
        "max_clocks_mhz": UNSET if None in clocks else clocks,
        "conditions": f"{machine.date}; TVM {machine.tvm}{torch}; random weights, logits beside those of float32",
    }


def _on_cpu(
    described: Mapping[str, Any], apart: Mapping[str, float], seconds: Mapping[str, float]
) -> dict[str, Any] | None:
    """Beside the faster of two forms of a runtime. Logits are beside those of float32, else of the nearest runtime."""
    machine = msgspec.convert(described, MeasuringCpu)
    forms = {field: [name for name in names if name in seconds] for field, names in _ON_CPU.items()}
    chosen = {field: min(names, key=seconds.__getitem__) for field, names in forms.items() if names}
    if not chosen and _DEFAULT not in seconds:
        return None
    nearest = _OURS if _OURS in apart else min(apart, key=apart.__getitem__)
    others = [f"{name} {machine.peers.get(name, '')}".strip() for name in chosen.values()]
    beside = f"logits beside those of {'float32' if nearest == _OURS else nearest}"
    return {
        "default_s": seconds.get(_DEFAULT),
        **{field: seconds[name] for field, name in chosen.items()},
        "threads": machine.threads,
        "output_max_rel_diff": apart[nearest],
        "device": machine.cpu,
        "conditions": f"{machine.date}; {', '.join([f'TVM {machine.tvm}', *others])}; random weights, {beside}",
    }
