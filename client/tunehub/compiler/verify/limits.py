"""How long verifying may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyLimits:
    """Seconds that a request may take before it is given up: the start of a process, the plain schedule, and
    the schedule that is judged, which is then refused. ``network_s``: two whole networks."""

    start_s: float = 120.0
    reference_s: float = 120.0
    run_s: float = 120.0
    network_s: float = 900.0
