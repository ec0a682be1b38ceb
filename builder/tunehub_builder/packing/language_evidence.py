"""Times of prompts and steps of language models as evidence: lines of ``benchmarks language_models --out``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

import msgspec
from msgspec import UNSET

from tunehub_registry.evidence import NetworkEvidence

_OURS, _DEFAULT, _TORCH = "tunehub", "default", "torch"


class MeasuringGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU, when and with what it was measured: the first line of a run."""

    gpu: str
    gpu_driver: str
    gpu_max_sm_clock_mhz: int | None = None
    gpu_max_memory_clock_mhz: int | None = None
    date: str
    tvm: str
    torch: str | None = None


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
    machine: MeasuringGpu | None = None
    apart: Mapping[str, float] = {}


def language_evidence(lines: Sequence[LanguageFigure]) -> Iterator[NetworkEvidence]:
    """Evidence of each prompt and step that was measured with TVM's default beside; none of models cut short."""

    def name(line: LanguageFigure) -> str:
        return f"{line.model}_{line.quantization}"

    for network, some in groupby(sorted(lines, key=name), name):
        own = [line for line in some if line.layers is None]
        machine = next((line.machine for line in own if line.machine is not None), None)
        apart = next((line.apart[_OURS] for line in own if _OURS in line.apart), None)
        if machine is not None and apart is not None:
            yield from _of_network(network, own, machine, apart)


def _of_network(
    network: str, lines: Iterable[LanguageFigure], machine: MeasuringGpu, apart: float
) -> Iterator[NetworkEvidence]:
    figures: dict[tuple[str, int, int], dict[str, Sequence[float]]] = {}
    for line in lines:
        if line.samples_s:
            figures.setdefault((line.kind, line.batch, line.length), {})[line.runtime] = line.samples_s
    clocks = (machine.gpu_max_sm_clock_mhz, machine.gpu_max_memory_clock_mhz)
    for (kind, batch, length), samples in figures.items():
        if not {_OURS, _DEFAULT} <= samples.keys():
            continue
        is_step = kind == "decode"
        torch: Any = median(samples[_TORCH]) if _TORCH in samples else UNSET
        yield NetworkEvidence(
            network=f"{network} ({f'step of {batch} after' if is_step else 'prompt of'} {length} tokens)",
            default_s=median(samples[_DEFAULT]),
            tuned_s=median(samples[_OURS]),
            repeats=len(samples[_OURS]),
            threads=1,
            output_max_rel_diff=apart,
            torch_s=UNSET if is_step else torch,
            torch_graphs_s=torch if is_step else UNSET,
            device=machine.gpu,
            driver=machine.gpu_driver,
            max_clocks_mhz=UNSET if None in clocks else clocks,  # type: ignore[arg-type]
            conditions=_conditions(machine),
        )


def _conditions(machine: MeasuringGpu) -> str:
    torch = f", PyTorch {machine.torch}" if machine.torch else ""
    return f"{machine.date}; TVM {machine.tvm}{torch}; random weights, logits beside those of float32"
