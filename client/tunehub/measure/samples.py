"""What samples of two times say: which is the shorter one, and whether beyond the noise. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


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
