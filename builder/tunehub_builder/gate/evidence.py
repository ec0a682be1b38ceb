"""What the gate has measured as a package's evidence. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from tunehub.comparison.difference import difference_reason
from tunehub_builder.gate.disturbance import spread
from tunehub_builder.gate.networks import NetworkVerdict
from tunehub_registry.evidence import JudgedRule, NetworkEvidence, RecordEvidence


def speedup(default_s: Sequence[float], run_s: Sequence[float]) -> float | None:
    """How many times faster than the default a candidate is, by medians; None without samples of both."""
    if not default_s or not run_s:
        return None
    return statistics.median(default_s) / statistics.median(run_s)


def timed_evidence(
    exact: str,
    default_s: Sequence[float],
    run_s: Sequence[float],
    *,
    difference: float | None,
    threads: int,
    admitted: bool,
    reason: str | None,
    tuner: str | UnsetType = UNSET,
    baseline: str | UnsetType = UNSET,
    trials: int | UnsetType = UNSET,
    rule: JudgedRule | UnsetType = UNSET,
) -> RecordEvidence:
    """A line of a package's evidence about samples in seconds, of which there are some; ``difference`` is of outputs.

    Raises FieldError for an admitted record without a difference.
    """
    default, tuned = statistics.median(default_s), statistics.median(run_s)
    return RecordEvidence(
        exact=exact,
        default_s=default,
        tuned_s=tuned,
        speedup=default / tuned,
        repeats=len(run_s),
        spread=spread(run_s),
        output_max_rel_diff=difference,
        threads=threads,
        admitted=admitted,
        reason=reason,
        tuner=tuner,
        baseline=baseline,
        trials=trials,
        rule=rule,
    )


def network_evidence(verdict: NetworkVerdict) -> NetworkEvidence | None:
    """An admitted verdict on a network as a line of a package's evidence; None for another one."""
    return measured_network(verdict) if verdict.admitted else None


def measured_network(verdict: NetworkVerdict) -> NetworkEvidence | None:
    """What was measured of a network, admitted or not; None where that was not all, or where it computes something
    else."""
    right = verdict.difference is not None and difference_reason(verdict.difference, verdict.tolerance) is None
    if verdict.difference is None or not (right and verdict.default_s and verdict.tuned_s):
        return None
    return NetworkEvidence(
        network=verdict.name,
        default_s=statistics.median(verdict.default_s),
        tuned_s=statistics.median(verdict.tuned_s),
        repeats=len(verdict.tuned_s),
        threads=verdict.threads,
        output_max_rel_diff=verdict.difference,
        precision=UNSET if verdict.precision == "float32" else verdict.precision,
        accuracy=verdict.accuracy or UNSET,
        over_rules=speedup(verdict.plain_s, verdict.tuned_s) or UNSET,
        conditions=f"medians of {verdict.processes} processes each" if verdict.processes > 1 else UNSET,
    )
