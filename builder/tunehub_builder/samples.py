"""What samples of a default's time and of a candidate's say: which is the faster one, and by how much. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from tunehub_registry.evidence import RecordEvidence


def interquartile_range(samples: Sequence[float]) -> float:
    """The distance between the quartiles, linearly interpolated; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low


def noise_reason(default_s: Sequence[float], run_s: Sequence[float], min_speedup: float) -> str | None:
    """Why ``run_s`` are not faster than ``default_s`` beyond doubt, or None when they are."""
    default, tuned = statistics.median(default_s), statistics.median(run_s)
    noise = max(interquartile_range(default_s), interquartile_range(run_s))
    if default / tuned <= min_speedup:
        return f"{default / tuned:.3g} times as fast as the default schedule; the least is {min_speedup:.3g}"
    if default - tuned <= noise:
        return f"the gain of {default - tuned:.3g} s is within the noise of {noise:.3g} s"
    return None


def difference_reason(difference: float, most: float) -> str | None:
    """Why outputs that differ so much from the default's, relative to its largest value, are wrong; None when not."""
    if difference <= most:
        return None
    return f"its output differs from the default's by {difference:.2g}, relative; the most is {most:.2g}"


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
        spread=interquartile_range(run_s) / tuned,
        output_max_rel_diff=difference,
        threads=threads,
        admitted=admitted,
        reason=reason,
        tuner=tuner,
        baseline=baseline,
        trials=trials,
    )
