"""The port of the tuners for TVM <= 0.19: what a tuner is given, what it gives back, and which ones there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.progress import Progress, TrialTotals
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
    caches before every run that is timed. ``local_runner``: measure with TVM's own LocalRunner. ``minutes``: when a run
    on a GPU of this machine ends.
    """

    trials: int | None = None
    minutes: float | None = None
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
