"""What a tuner and those who search, build and measure for it tell each other, across processes and machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tunehub_builder.tuning.journal import Trial, is_time

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOptions:
    """How a candidate is timed. Times in seconds. A first run above ``cutoff`` × the best known time ends it."""

    repeats: int = 3
    min_repeat_s: float = 0.01
    cutoff: float = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerResult:
    """What became of one candidate: times in seconds, or why there are none."""

    run_s: tuple[float, ...] = ()
    error: str | None = None

    @classmethod
    def of(cls, kind: str, value: Any) -> RunnerResult:
        """A worker's answer: "ok" with times, or "error" with a text."""
        return cls(run_s=tuple(value)) if kind == "ok" else cls(error=str(value))

    def checked(self) -> RunnerResult:
        """This result; a failure when a time is none."""
        return self if all(map(is_time, self.run_s)) else RunnerResult(error=f"the timer gave {self.run_s} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The ``number``th candidate of a batch of a workload has its result."""

    task: str
    number: int
    result: RunnerResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """Build and measure a candidate of a workload; None is its default. ``best_s``: the workload's best time so far."""

    task: str
    target: TargetLike = field(repr=False)
    candidate: Any
    best_s: float | None
    options: MeasureOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRequest:
    """Propose at most ``limit`` candidates for a workload; ``news``: its trials since the last request.

    ``known``: what records may suit it, see ``search.warm_start``; empty after the first request.
    """

    task: str
    target: TargetLike = field(repr=False)
    news: Sequence[Trial]
    limit: int
    seed: int
    known: Sequence[Any] = ()
