"""The race of a workload's finalists against its default: what the publish gates of both generations of TVM share.

How finalists are built, compared and timed is the business of a :class:`Bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from tunehub.measure.difference import difference_reason
from tunehub.measure.protocol import fastest, noise_reason
from tunehub_builder.tuning.runner.pool import Worker

Answer = tuple[str, Any]  # ("ok", value) or ("error", text)


class Finalist(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One candidate at the gate. ``reason`` says why it is out of the race, ``tuning_s`` is its time while tuning."""

    source: str
    tuning_s: float
    run_s: tuple[float, ...] = ()
    difference: float | None = None
    reason: str | None = None


class WorkerLostError(Exception):
    """The process of a race crashed or hung; any of its finalists may be to blame."""


class Bench(Protocol):
    """Where the finalists of one workload are measured, in a process of their own.

    A ``position`` is the place of a finalist among those of the last build. :meth:`difference` and :meth:`sample` raise
    WorkerLostError.
    """

    def start_build(self, numbers: Sequence[int]) -> None:
        """Begin to build the default and the finalists with these numbers."""

    def built(self) -> Answer:
        """Wait for the build: the errors or None, that of the default first."""

    def difference(self, position: int) -> Answer:
        """How far a finalist's output is from the default's, relative; None when they cannot be compared."""

    def sample(self, positions: Sequence[int], rounds: int | None) -> list[tuple[float, ...]]:
        """Seconds of the default, then of each of these finalists; ``rounds`` None: as many as usual."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a finalist must show. ``tolerance`` is the most that its output may differ; ``default`` is for messages.

    ``min_gain``: how many times as fast as a preferred finalist another must be to win.
    """

    tolerance: float
    min_speedup: float
    default: str = "the default"
    min_gain: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """How a race ended: ``winner`` is the number of a finalist; ``reason`` None means that it is admitted."""

    finalists: tuple[Finalist, ...]
    default_s: tuple[float, ...]
    winner: int | None
    reason: str | None


@dataclass(kw_only=True, slots=True)
class Race:
    """A workload's finalists. ``running`` are the numbers of those that are still in the race.

    The one with the number ``preferred`` wins unless another is faster beyond the noise.
    """

    finalists: list[Finalist]
    running: list[int]
    rules: Rules
    preferred: int | None = None

    @classmethod
    def of(cls, finalists: Sequence[Finalist], rules: Rules, preferred: int | None = None) -> Race:
        """A race of the finalists that nothing speaks against yet."""
        running = [number for number, finalist in enumerate(finalists) if finalist.reason is None]
        return cls(finalists=list(finalists), running=running, rules=rules, preferred=preferred)

    def reject(self, number: int, reason: str) -> None:
        """Take a finalist out of the race."""
        self._state(number, reason=reason)
        self.running.remove(number)

    def run(self, bench: Bench, answer: Answer) -> Decision:
        """Measure what was built with ``answer``; a crash leads to a second try without what crashes."""
        try:
            default_s, reason = self._measure(bench, answer)
        except WorkerLostError:
            self._drop_crashing(bench)
            try:
                bench.start_build(self.running)
                default_s, reason = self._measure(bench, bench.built())
            except WorkerLostError as lost:
                default_s, reason = (), f"its process ended twice: {lost}"
        return self.decide(default_s, reason)

    def decide(self, default_s: tuple[float, ...] = (), reason: str | None = None) -> Decision:
        """Who wins by the times so far; ``reason`` is why nobody can."""
        winner = self._winner()
        if winner is not None and reason is None:
            reason = noise_reason(default_s, self.finalists[winner].run_s, self.rules.min_speedup)
        elif reason is None:
            reason = self.finalists[0].reason or "no finalist is left"
        return Decision(finalists=tuple(self.finalists), default_s=default_s, winner=winner, reason=reason)

    def _winner(self) -> int | None:
        """The fastest by medians, or the preferred one when that is as fast within the noise."""
        timed = {number: self.finalists[number].run_s for number in self.running if self.finalists[number].run_s}
        return fastest(timed, self.preferred, self.rules.min_gain) if timed else None

    def _drop_crashing(self, bench: Bench) -> None:
        """Try the finalists one by one and reject those that end the process."""
        for number in list(self.running):
            alone = replace(self, finalists=list(self.finalists), running=[number])
            try:
                bench.start_build(alone.running)
                alone._measure(bench, bench.built(), rounds=1)
            except WorkerLostError as lost:
                self.reject(number, str(lost))

    def _measure(self, bench: Bench, answer: Answer, rounds: int | None = None) -> tuple[tuple[float, ...], str | None]:
        """Compare and time the running finalists; return the default's samples, or why there are none."""
        kind, errors = answer
        if kind != "ok":
            raise WorkerLostError(errors)
        if errors[0] is not None:
            return (), f"{self.rules.default} does not build: {errors[0]}"
        numbers = list(self.running)
        for position, (number, error) in enumerate(zip(numbers, errors[1:], strict=True)):
            reason = f"does not build: {error}" if error else self._output_reason(bench, number, position)
            if reason:
                self.reject(number, reason)
        alive = {position: number for position, number in enumerate(numbers) if number in self.running}
        default_s, *samples = bench.sample(list(alive), rounds)
        for number, run_s in zip(alive.values(), samples, strict=True):
            self._state(number, run_s=run_s)
        return default_s, None

    def _output_reason(self, bench: Bench, number: int, position: int) -> str | None:
        """Compare one finalist's output with the default's; the difference is kept."""
        kind, value = bench.difference(position)
        if kind != "ok":
            return f"does not run: {value}"
        self._state(number, difference=value)
        return None if value is None else difference_reason(value, self.rules.tolerance)

    def _state(self, number: int, **found: Any) -> None:
        self.finalists[number] = msgspec.structs.replace(self.finalists[number], **found)


def ask_worker(worker: Worker, request: tuple[Any, ...], limit_s: float) -> Answer:
    """As the worker's own ``ask``. Raises WorkerLostError when the process is gone afterwards."""
    kind, value = worker.ask(request, limit_s)
    if not worker.alive:
        raise WorkerLostError(value)
    return kind, value
