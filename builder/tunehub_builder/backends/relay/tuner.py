"""The port of the tuners for TVM <= 0.19: what a tuner is given, what it gives back, and which ones there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.progress import Progress
from tunehub_builder.tuning.runner.rpc_board import Board

AUTOTVM, AUTO_SCHEDULER, GRAPH_TUNER = "autotvm", "auto_scheduler", "graph_tuner"
# Name of a tuner -> where the function that makes it is. Each is imported when it is asked for.
TUNERS: Mapping[str, str] = {
    AUTOTVM: "tunehub_builder.backends.relay.autotvm_tuner:make",
    AUTO_SCHEDULER: "tunehub_builder.backends.relay.auto_scheduler_tuner:make",
    GRAPH_TUNER: "tunehub_builder.backends.relay.graph_tuner:make",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayOptions:
    """What the user asked for. Each tuner reads what concerns it.

    ``trials``: most trials of a task (AutoTVM), of all tasks together (auto-scheduler); None: the tuner's own default.
    ``early_stopping``: a task ends after so many trials without a better one. ``template``: ``module:function`` with
    ``template_args``, tuned besides the networks. ``rpc``: measure there, not here. ``cache_flush``: empty the CPU's
    caches before every run that is timed. ``local_runner``: measure with TVM's own LocalRunner.
    """

    trials: int | None = None
    algorithm: str = "xgb"
    early_stopping: int | None = None
    transfer_from: tuple[Path, ...] = ()
    template: str | None = None
    template_args: tuple[Any, ...] = ()
    graph_algorithm: str = "auto"
    rpc: Board | None = None
    cache_flush: bool = False
    local_runner: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySession:
    """All that a tuner needs for one run. The caller holds the work directory locked and has healed its logs.

    ``target``: as ``tvm.target.Target`` reads it. ``threads`` measure, ``workers`` build.
    """

    target: str
    networks: tuple[RelayNetwork, ...]
    work: RelayWork
    options: RelayOptions
    threads: int
    workers: int
    show: Callable[[Progress], None] = lambda progress: None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialTotals:
    """What a tuner did. ``trials`` and ``failures`` (by reason) are those of the tuned tasks in the work directory,
    earlier runs included; ``notes`` are lines for the user, such as where few trials were spent."""

    tasks: int
    trials: int
    measured_now: int
    failures: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class RelayTuner(Protocol):
    """A tuner. Whatever ends it, what was measured is in the work directory and is not measured again."""

    name: str

    def tune(self, session: RelaySession) -> TrialTotals:
        """Tune, calling ``session.show`` after every batch and at the end of every task.

        Raises TuningError for what cannot be tuned, NetworkError for a model that TVM cannot read, WorkDirectoryError
        when the disk refuses.
        """
        ...


def get_tuner(name: str) -> RelayTuner:
    """The tuner called ``name``. Raises TuningError, which lists the names."""
    place = TUNERS.get(name)
    if place is None:
        raise TuningError(f"unknown tuner {name!r}: TVM <= 0.19 has {', '.join(TUNERS)}")
    module, _, factory = place.partition(":")
    tuner: RelayTuner = getattr(import_module(module), factory)()
    return tuner


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


class TrialCount:
    """Counts trials over the tasks of a run, and makes the steps of progress out of them.

    ``planned`` is for all tasks and includes the trials that are known from earlier runs.
    """

    def __init__(self, tasks: int, planned: int, show: Callable[[Progress], None]) -> None:
        self.tasks = tasks
        self.planned = planned
        self.trials = 0
        self.measured_now = 0
        self.failures: Counter[str] = Counter()
        self._show = show
        self._start = monotonic()

    def known(self, trials: int, failures: Mapping[str, int]) -> None:
        """Add trials of earlier runs; ``failures`` among them by reason."""
        self.trials += trials
        self.failures.update(failures)

    def measured(self, reason: str | None) -> None:
        """Add a trial of this run; ``reason`` says why it failed, None that it did not."""
        self.trials += 1
        self.measured_now += 1
        if reason is not None:
            self.failures[reason] += 1

    def step(self, name: str, position: int, best_s: float = math.inf, *, finished: bool = False) -> None:
        """Show a step of the task called ``name``, number ``position`` from 1; see :class:`Progress`."""
        self._show(
            Progress(
                task=_Named(name),
                position=position,
                tasks=self.tasks,
                done=self.trials,
                planned=max(self.trials, self.planned),
                failed=sum(self.failures.values()),
                measured_now=self.measured_now,
                elapsed_s=monotonic() - self._start,
                best_s=best_s,
                finished=finished,
                failures=dict(self.failures),
            )
        )

    def totals(self, notes: tuple[str, ...] = ()) -> TrialTotals:
        """The end of it."""
        return TrialTotals(
            tasks=self.tasks,
            trials=self.trials,
            measured_now=self.measured_now,
            failures=dict(self.failures),
            notes=notes,
        )
