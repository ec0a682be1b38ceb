"""The tuning curves of a package, small beside its records."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from tunehub_builder.tuning.best_so_far import BestSoFar
from tunehub_registry.tuning_curves import TuningCurve

STEPS = 16  # of a curve: what a picture shows, in some 60 bytes of a package


def tuning_curve(exact: str, tuner: str, best: BestSoFar) -> TuningCurve | None:
    """The curve of the record ``exact``; None where no trial was measured.

    Times have three digits. The first and the last step stay, and of those between the ones that gained most.
    """
    steps = _rounded(best.steps)
    return TuningCurve(exact=exact, tuner=tuner, trials=best.trials, steps=_largest(steps)) if steps else None


def _rounded(steps: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    kept: list[tuple[int, float]] = []
    for trial, seconds in steps:
        shorter = float(f"{seconds:.3g}")
        if not kept or shorter < kept[-1][1]:
            kept.append((trial, shorter))
    return kept


def _largest(steps: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    if len(steps) <= STEPS:
        return tuple(steps)
    gains = [before[1] / after[1] for before, after in pairwise(steps)]
    between = heapq.nlargest(STEPS - 2, range(1, len(steps) - 1), key=lambda index: gains[index - 1])
    return tuple(steps[index] for index in sorted({0, *between, len(steps) - 1}))
