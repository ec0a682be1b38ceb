"""Attestations for tests: what two machines could have measured of one package."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from securesystemslib.signer import Signer

from tunehub_registry.attestation import Attestation, ComparedTimes, Measurement, PackageSubject, SampledRecord
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.attestations import sign_attestation
from tunehub_registry.trust.keys import create_key, load_signer

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)
SUBJECT = PackageSubject.of("llvm-znver4", "0.3.0", "ab" * 32)
KEY = "{:032x}"
MACHINE = TargetDescriptor(kind="llvm", model="znver4", arch="x86_64", features=("avx2", "avx512f"), num_cores=8)


def some_times(gain: float = 2.0) -> ComparedTimes:
    return ComparedTimes(
        default_s=gain * 1e-3, default_spread_s=2e-5, tuned_s=1e-3, tuned_spread_s=1e-5, repeats=11,
        output_max_rel_diff=1e-7,
    )  # fmt: skip


def a_record(number: int = 0, **changes: Any) -> SampledRecord:
    found = changes or {"times": some_times()}
    return SampledRecord(exact=KEY.format(number), tuner="template", op=f"conv2d_{number}", **found)


def a_measurement(**changes: Any) -> Measurement:
    records = changes.get("records", (a_record(0), a_record(1)))
    given: dict[str, Any] = {
        "format_version": "1.1", "machine": MACHINE, "tvm_version": "0.27.0", "threads": 8,
        "started": "2026-11-22T10:00:00Z",
        "finished": "2026-11-22T10:05:00Z", "seed": 1, "drawn_from": len(records), "records": records,
    }  # fmt: skip
    return Measurement(**{**given, **changes})


def an_attestation(measurement: Measurement | None = None, subject: PackageSubject = SUBJECT) -> Attestation:
    return Attestation(subject=(subject,), predicate=measurement or a_measurement())


def a_signer(folder: Path, name: str) -> Signer:
    path = folder / name
    create_key(path, None)
    return load_signer(str(path))


def signed(signer: Signer, gain: float = 2.0, *, subject: PackageSubject = SUBJECT, **changes: Any) -> bytes:
    """An envelope by this key, whose machine had this gain."""
    records = (a_record(0, times=some_times(gain)),)
    measurement = a_measurement(**{"records": records, **changes})
    return sign_attestation(an_attestation(measurement, subject), signer)
