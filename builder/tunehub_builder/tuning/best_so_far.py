"""How the best time of a workload falls from trial to trial."""

from __future__ import annotations

from dataclasses import dataclass, field

from tunehub_builder.tuning.journal import is_time


@dataclass(kw_only=True, slots=True)
class BestSoFar:
    """``trials`` so far, and the ``steps``: each trial, from 1, that was faster than all before it, with its time in
    seconds."""

    trials: int = 0
    steps: list[tuple[int, float]] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        """Take the next trial; that of a failed one is no positive, finite number."""
        self.trials += 1
        if is_time(seconds) and (not self.steps or seconds < self.steps[-1][1]):
            self.steps.append((self.trials, seconds))
