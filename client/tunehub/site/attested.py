"""What pages say of attestations: who measured a package elsewhere, with which gain, and which count. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from tunehub_registry.attestation import Measurement
from tunehub_registry.printable import plain
from tunehub_registry.trust.attestations import AttestationSummary, JudgedAttestation

MOST_ROWS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredElsewhere:
    """What a key has signed: its records' gains over TVM's default, as the geometric mean, the least and the most."""

    machine: str
    threads: int
    tvm: str
    finished: str
    measured: int
    drawn_from: int
    gain: float | None
    least: float | None
    most: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttestationRow:
    """One attestation. `measured` is None where the signature was not verified; `reason` says why it does not count."""

    key: str
    measured: MeasuredElsewhere | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AttestationsView:
    """Those that count: how many machines, and the median, the least and the most of their gains."""

    machines: int
    gain: float | None
    least: float | None
    most: float | None
    rows: tuple[AttestationRow, ...]
    more: int


def attestations_view(summary: AttestationSummary) -> AttestationsView:
    """Those that count come first."""
    judged = sorted(summary.judged, key=lambda item: not item.counts)
    gains = summary.gains
    return AttestationsView(
        machines=summary.machines,
        gain=median(gains) if gains else None,
        least=min(gains, default=None),
        most=max(gains, default=None),
        rows=tuple(map(_row, judged[:MOST_ROWS])),
        more=max(0, len(judged) - MOST_ROWS),
    )


def _row(item: JudgedAttestation) -> AttestationRow:
    measured = None if item.measurement is None else _measured(item.measurement)
    return AttestationRow(key=plain(item.keyid or ""), measured=measured, reason=plain(item.reason or ""))


def _measured(found: Measurement) -> MeasuredElsewhere:
    gains = [record.times.gain for record in found.records if record.times is not None]
    cores = f", {found.machine.num_cores} cores" if found.machine.num_cores else ""
    return MeasuredElsewhere(
        machine=plain(f"{found.machine.name}{cores}"),
        threads=found.threads,
        tvm=plain(found.tvm_version),
        finished=found.finished,
        measured=len(found.records),
        drawn_from=found.drawn_from,
        gain=found.gain,
        least=min(gains, default=None),
        most=max(gains, default=None),
    )
