"""End-to-end times of whole networks as evidence: the JSON of ``tunehub demo``, measured with a package's records."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tunehub_builder.exceptions import PackingError
from tunehub_registry.evidence import NetworkEvidence

_REMEDY = "write it with `tunehub demo --json`, TUNEHUB_REGISTRY naming a registry that has the package"


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    default_ms: float
    tunehub_ms: float
    onnxruntime_ms: float
    max_rel_diff: float


class _Comparisons(msgspec.Struct, frozen=True, kw_only=True):
    networks: tuple[_Row, ...]
    threads: int
    repeats: int


def read_network_evidence(path: Path) -> tuple[NetworkEvidence, ...]:
    """The comparisons in ``path``, one a network. Raises PackingError for a file that is not the demo's JSON."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Comparisons)
    except OSError as error:
        raise PackingError(f"{path}: {error.strerror}; {_REMEDY}") from error
    except msgspec.DecodeError as error:
        raise PackingError(f"{path}: {error}; {_REMEDY}") from error
    return tuple(_evidence(row, found) for row in sorted(found.networks, key=lambda row: row.name))


def _evidence(row: _Row, found: _Comparisons) -> NetworkEvidence:
    return NetworkEvidence(
        network=row.name,
        default_s=row.default_ms / 1e3,
        tuned_s=row.tunehub_ms / 1e3,
        onnxruntime_s=row.onnxruntime_ms / 1e3,
        repeats=found.repeats,
        threads=found.threads,
        output_max_rel_diff=row.max_rel_diff,
    )
