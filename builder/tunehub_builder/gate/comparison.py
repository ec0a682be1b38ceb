"""A workload's finalists against its default: built, compared and timed, whatever generation of TVM makes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Protocol

import msgspec

from tunehub.comparison.difference import difference_reason
from tunehub.comparison.protocol import MARGIN, MeasuringPlan, fastest, in_turns, noise_reason

Answer = tuple[str, Any]  # ("ok", value) or ("error", text)
_TRY_OUT = MeasuringPlan(rounds=2, sample_s=0.0, budget_s=0.0)


class Finalist(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One candidate at the gate. ``reason`` says why it is out, ``tuning_s`` is its time while tuning, ``cold_s`` are
    samples with operands from memory."""

    source: str
    tuning_s: float
    run_s: tuple[float, ...] = ()
    cold_s: tuple[float, ...] = ()
    difference: float | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildLimits:
    """Seconds that a build may take, of one workload's finalists or of one network, and one request to run it."""

    build_s: float
    run_s: float


def plan_for(kind: str) -> MeasuringPlan:
    """How finalists for a kind of target are timed: a GPU's times are steady, and its kernels short."""
    if kind == "cuda":
        return MeasuringPlan(rounds=9, sample_s=0.002, budget_s=0.1, only_first=True)
    return MeasuringPlan(rounds=11, sample_s=0.02, budget_s=1.0, only_first=True)


class WorkerLostError(Exception):
    """The process of a comparison crashed or hung; any of its finalists may be to blame."""


class FinalistRunner(Protocol):
    """Where the finalists of one workload are built and run, in a process of their own.

    A ``position`` is the place of a finalist among those of the last build. What measures raises WorkerLostError.
    """

    def start_build(self, numbers: Sequence[int]) -> None:
        """Begin to build the default and the finalists with these numbers."""

    def built(self) -> Answer:
        """Wait for the build: the errors or None, that of the default first."""

    def difference(self, position: int) -> Answer:
        """How far a finalist's output is from the default's, relative; None when they cannot be compared."""

    def time(self, position: int | None, runs: int) -> float:
        """Mean seconds of so many runs of a finalist; None: of the default."""

    def time_cold(self, position: int, runs: int) -> float | None:
        """The same with operands from memory; None where that cannot be timed, or is the same: they are small. Asked
        only of what is compared with what serves without a record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalistRules:
    """What a finalist must show, and how it is timed. ``tolerance`` is the most that its output may differ.

    ``preferred`` is the number of a finalist that wins unless another is ``min_gain`` times as fast. ``own`` is the
    number of what serves without a record: it never wins, and who wins must not be so much slower, also with operands
    from memory: some tiles are faster only while these are in the cache. ``cold``: all times are those with operands
    from memory, where that is another question.
    """

    plan: MeasuringPlan
    tolerance: float
    preferred: int | None = None
    min_gain: float = MARGIN
    own: int | None = None
    cold: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedFinalists:
    """How a comparison ended: ``winner`` is the number of a finalist; ``reason`` None means that it is admitted."""

    finalists: tuple[Finalist, ...]
    default_s: tuple[float, ...]
    winner: int | None
    reason: str | None


@dataclass(kw_only=True, slots=True)
class FinalistComparison:
    """A workload's finalists. ``running`` are the numbers of those that nothing speaks against yet."""

    finalists: list[Finalist]
    running: list[int]
    rules: FinalistRules

    @classmethod
    def of(cls, finalists: Sequence[Finalist], rules: FinalistRules) -> FinalistComparison:
        """A comparison of those without a reason against them."""
        running = [number for number, finalist in enumerate(finalists) if finalist.reason is None]
        return cls(finalists=list(finalists), running=running, rules=rules)

    def run(self, runner: FinalistRunner, answer: Answer) -> ComparedFinalists:
        """Measure what was built with ``answer``; a crash leads to a second try without what crashes."""
        try:
            default_s, reason = self._measure(runner, answer, self.rules.plan)
        except WorkerLostError:
            self._drop_crashing(runner)
            if not self.running:
                return self.decide()
            try:
                runner.start_build(self.running)
                default_s, reason = self._measure(runner, runner.built(), self.rules.plan)
            except WorkerLostError as lost:
                default_s, reason = (), f"its process ended twice: {lost}"
        return self.decide(default_s, reason)

    def decide(self, default_s: tuple[float, ...] = (), reason: str | None = None) -> ComparedFinalists:
        """Who wins by the times so far; ``reason`` is why nobody can."""
        timed = {number: self.finalists[number].run_s for number in self.running if self.finalists[number].run_s}
        if self.rules.own is not None:
            timed.pop(self.rules.own, None)
        winner = fastest(timed, self.rules.preferred, self.rules.min_gain) if timed else None
        if winner is not None and reason is None:
            reason = noise_reason(default_s, timed[winner]) or self._loss_reason(self.finalists[winner])
        elif reason is None:
            reason = self.finalists[0].reason or "no finalist is left"
        return ComparedFinalists(finalists=tuple(self.finalists), default_s=default_s, winner=winner, reason=reason)

    def _loss_reason(self, winner: Finalist) -> str | None:
        """Why a winner is worse than nothing, which is what serves without a record."""
        if self.rules.own is None or self.rules.own not in self.running:
            return None
        own = self.finalists[self.rules.own]
        for run_s, own_s, how in ((winner.run_s, own.run_s, ""), (winner.cold_s, own.cold_s, ", operands from memory")):
            if run_s and own_s and median(run_s) > self.rules.min_gain * median(own_s):
                return f"{median(own_s) / median(run_s):.3g} times as fast as what serves without a record{how}"
        return None

    def _drop_crashing(self, runner: FinalistRunner) -> None:
        """Try the finalists one by one and reject those that end the process."""
        for number in list(self.running):
            alone = replace(self, finalists=list(self.finalists), running=[number])
            try:
                runner.start_build(alone.running)
                alone._measure(runner, runner.built(), _TRY_OUT)
            except WorkerLostError as lost:
                self._reject(number, str(lost))

    def _measure(
        self, runner: FinalistRunner, answer: Answer, plan: MeasuringPlan
    ) -> tuple[tuple[float, ...], str | None]:
        """Compare and time the running finalists; return the default's samples, or why there are none."""
        kind, errors = answer
        if kind != "ok":
            raise WorkerLostError(errors)
        if errors[0] is not None:
            return (), f"the default does not build: {errors[0]}"
        positions = {number: position for position, number in enumerate(self.running)}
        for number, error in zip(positions, errors[1:], strict=True):
            reason = f"does not build: {error}" if error else self._output_reason(runner, number, positions[number])
            if reason:
                self._reject(number, reason)
        places = [None, *(positions[number] for number in self.running)]
        default_s, *samples = in_turns({place: partial(runner.time, place) for place in places}, plan).values()
        for number, run_s in zip(self.running, samples, strict=True):
            self._state(number, run_s=run_s)
        self._time_cold(runner, positions, self.decide(default_s).winner, plan)
        return default_s, None

    def _time_cold(
        self, runner: FinalistRunner, positions: Mapping[int, int], winner: int | None, plan: MeasuringPlan
    ) -> None:
        """Time the ``winner`` and what serves without a record with operands from memory."""
        own = self.rules.own
        if own is None or own not in self.running or winner is None:
            return
        timers = {number: partial(runner.time_cold, positions[number]) for number in (winner, own)}
        if None in [timer(1) for timer in timers.values()]:
            return

        def timed(number: int, runs: int) -> float:
            return timers[number](runs) or math.inf

        for number, cold_s in in_turns({number: partial(timed, number) for number in timers}, plan).items():
            self._state(number, cold_s=cold_s)

    def _output_reason(self, runner: FinalistRunner, number: int, position: int) -> str | None:
        """Compare one finalist's output with the default's; the difference is kept."""
        kind, value = runner.difference(position)
        if kind != "ok":
            return f"does not run: {value}"
        self._state(number, difference=value)
        return None if value is None else difference_reason(value, self.rules.tolerance)

    def _reject(self, number: int, reason: str) -> None:
        self._state(number, reason=reason)
        self.running.remove(number)

    def _state(self, number: int, **found: object) -> None:
        self.finalists[number] = msgspec.structs.replace(self.finalists[number], **found)
