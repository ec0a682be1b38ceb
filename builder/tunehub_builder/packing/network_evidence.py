"""End-to-end times of whole networks as evidence, measured with a package's records.

On CPUs they are the JSON of ``tunehub demo``, on GPUs that of ``benchmarks gpu`` with PyTorch's times of the same run;
of language models lines of ``benchmarks language_models``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tunehub_builder.exceptions import PackingError
from tunehub_builder.packing.language_evidence import LanguageFigure, language_evidence
from tunehub_registry.evidence import NetworkEvidence
from tunehub_registry.exceptions import FieldError

_REMEDY = (
    "write it with `tunehub demo --json`, TUNEHUB_REGISTRY naming a registry that has the package; "
    "on a GPU with `python -m benchmarks gpu`; of language models with `python -m benchmarks language_models --out "
    "FILE.jsonl`, on a GPU --against default,torch"
)


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was given up, or not run, has no time. ``precision`` is that of a network which is not in float32;
    ``over_rules``: how many times as fast it is as by rules alone."""

    name: str
    default_ms: float | None
    tunehub_ms: float
    onnxruntime_ms: float | None = None
    openvino_ms: float | None = None
    max_rel_diff: float
    precision: str | None = None
    over_rules: float | None = None


class _Comparisons(msgspec.Struct, frozen=True, kw_only=True):
    networks: tuple[_Row, ...]
    threads: int
    repeats: int
    measured_with: str | None = None


class _GpuTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds. A way that failed has none; without the first two a row is no evidence."""

    default: float | None = None
    tunehub: float | None = None
    tunehub_graphs: float | None = None
    torch: float | None = None
    torch_graphs: float | None = None


class _GpuRow(msgspec.Struct, frozen=True, kw_only=True):
    network: str
    ms: _GpuTimes = _GpuTimes()
    difference: dict[str, float] = {}
    rounds: int | None = None


class _GpuResult(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    gpu_driver: str
    gpu_max_sm_clock_mhz: int | None = None
    gpu_max_memory_clock_mhz: int | None = None
    date: str
    records: str | None = None
    torch: str | None = None
    tvm: str | None = None
    networks: tuple[_GpuRow, ...]


_LINES = msgspec.json.Decoder(LanguageFigure)


def read_network_evidence(path: Path) -> tuple[NetworkEvidence, ...]:
    """The comparisons in ``path``, one a network; on a GPU those of networks that ran, with and without records.

    Raises PackingError for a file that is neither the demo's JSON nor what a benchmark writes.
    """
    try:
        content = _content(path.read_bytes())
        if isinstance(content, list):
            return tuple(language_evidence(content))
        if isinstance(content, dict) and "gpu" in content:
            return _of_gpu(msgspec.convert(content, _GpuResult))
        found = msgspec.convert(content, _Comparisons)
        return tuple(_evidence(row, found) for row in sorted(found.networks, key=lambda row: row.name))
    except OSError as error:
        raise PackingError(f"{path}: {error.strerror}; {_REMEDY}") from error
    except (msgspec.DecodeError, FieldError) as error:
        raise PackingError(f"{path}: {error}; {_REMEDY}") from error


def _content(data: bytes) -> Any:
    """What ``data`` says: JSON, or lines of it."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        lines = _LINES.decode_lines(data)
        if not lines:
            raise
        return lines


def _evidence(row: _Row, found: _Comparisons) -> NetworkEvidence:
    return NetworkEvidence(
        network=row.name,
        default_s=None if row.default_ms is None else row.default_ms / 1e3,
        tuned_s=row.tunehub_ms / 1e3,
        onnxruntime_s=None if row.onnxruntime_ms is None else row.onnxruntime_ms / 1e3,
        openvino_s=_seconds(row.openvino_ms),
        repeats=found.repeats,
        threads=found.threads,
        output_max_rel_diff=row.max_rel_diff,
        conditions=found.measured_with or UNSET,
        precision=row.precision or UNSET,
        over_rules=row.over_rules or UNSET,
    )


def _of_gpu(found: _GpuResult) -> tuple[NetworkEvidence, ...]:
    rows = sorted(found.networks, key=lambda row: row.network)
    return tuple(filter(None, (_evidence_of_gpu(row, found) for row in rows)))


def _evidence_of_gpu(row: _GpuRow, found: _GpuResult) -> NetworkEvidence | None:
    ms = row.ms
    if ms.default is None or ms.tunehub is None:
        return None
    if not row.rounds or not row.difference:
        raise FieldError("networks", f"{row.network} does not say how often it was measured, or how outputs differ")
    clocks = (found.gpu_max_sm_clock_mhz, found.gpu_max_memory_clock_mhz)
    return NetworkEvidence(
        network=row.network,
        default_s=ms.default / 1e3,
        tuned_s=ms.tunehub / 1e3,
        repeats=row.rounds,
        threads=1,
        output_max_rel_diff=max(row.difference.values()),
        tuned_graphs_s=_seconds(ms.tunehub_graphs),
        torch_s=_seconds(ms.torch),
        torch_graphs_s=_seconds(ms.torch_graphs),
        device=found.gpu,
        driver=found.gpu_driver,
        max_clocks_mhz=UNSET if None in clocks else clocks,  # type: ignore[arg-type]
        conditions=_conditions(found),
    )


def _conditions(found: _GpuResult) -> str:
    versions = [f"{name} {version}" for name, version in (("TVM", found.tvm), ("PyTorch", found.torch)) if version]
    return "; ".join(filter(None, (found.date, ", ".join(versions), found.records)))


def _seconds(ms: float | None) -> float | UnsetType:
    return UNSET if ms is None else ms / 1e3
