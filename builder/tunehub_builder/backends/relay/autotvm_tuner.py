"""AutoTVM behind the port: task by task, propose configurations, measure them, write each trial as TVM writes it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from tunehub_builder.backends.relay.autotvm_history import best_mean, known_trials, since_best, transfer_history
from tunehub_builder.backends.relay.autotvm_search import PLAN, make_search
from tunehub_builder.backends.relay.autotvm_session import TaskSource
from tunehub_builder.backends.relay.autotvm_tasks import (
    AutotvmTask,
    as_task,
    heaviest_first,
    merged,
    network_tasks,
    record_line,
)
from tunehub_builder.backends.relay.gpu_search import AutotvmSearchSession
from tunehub_builder.backends.relay.gpu_session import AutotvmGpuSession
from tunehub_builder.backends.relay.gpu_tuner import GpuTask, RelayTrial, gpu_options, on_own_gpu, tune_tasks
from tunehub_builder.backends.relay.measure import AutotvmTrial, Measurer, make_measurer
from tunehub_builder.backends.relay.templates import create_template_task, load_template
from tunehub_builder.backends.relay.tuner import AUTOTVM, RelaySession
from tunehub_builder.backends.relay.work import UNKNOWN_ERROR, failure_number
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.journal import append_synced, is_time
from tunehub_builder.tuning.progress import TrialCount, TrialTotals
from tunehub_builder.tuning.recipe import TRIALS, Algorithm
from tunehub_builder.tuning.scheduler import loop

_IDLE_BATCHES = 50  # so many batches of nothing but known configurations: the search has come to its end
_LISTED = 3


def make() -> AutotvmTuner:
    """The tuner, for the registry of tuners."""
    return AutotvmTuner()


class AutotvmTuner:
    """See ``relay.tuner.RelayTuner``. Its trials are in ``autotvm.log``, its tasks in ``relay_tasks.jsonl``."""

    name = AUTOTVM

    def tune(self, session: RelaySession) -> TrialTotals:
        """See ``RelayTuner``."""
        tasks = _tasks(session)
        known = known_trials(session.work.autotvm_log, tasks)
        if on_own_gpu(session):
            return _tune_on_gpu(session, tasks, known)
        limits = {task.key: min(_trials(session), task.entry.space or 1) for task in tasks}
        planned = sum(max(limit, len(known[key])) for key, limit in limits.items())
        count = TrialCount(len(tasks), session.show, planned)
        for trials in known.values():
            count.known(len(trials), _failures(trials.values()))
        searches = [
            _TaskSearch(session, task, position, limits[task.key], known[task.key])
            for position, task in enumerate(tasks, 1)
        ]
        with make_measurer(session) as measurer:
            loop.run(AutotvmScheduler(searches, measurer, session.work.autotvm_log, count), count)
        return count.totals(_notes(tasks, {task.key: len(known[task.key]) for task in tasks}))


def _tune_on_gpu(
    session: RelaySession, tasks: Sequence[AutotvmTask], known: Mapping[str, Mapping[int, AutotvmTrial]]
) -> TrialTotals:
    options = session.options
    reasons = session.work.failures(AUTOTVM, {key: _failures(trials.values()) for key, trials in known.items()})
    histories = {}
    if options.algorithm == "xgb" and options.transfer_from:
        histories = {task.key: transfer_history(options.transfer_from, task) for task in tasks}
    return tune_tasks(
        session,
        AUTOTVM,
        [_gpu_task(session, task, known[task.key], reasons[task.key]) for task in tasks],
        session.work.autotvm_log,
        gpu_options(session, trials=_trials(session)),
        AutotvmGpuSession,
        partial(AutotvmSearchSession, options.algorithm, histories),
        lambda made: _notes(tasks, made),
    )


def _gpu_task(
    session: RelaySession, task: AutotvmTask, known: Mapping[int, AutotvmTrial], reasons: Mapping[str, int]
) -> GpuTask:
    def line(trial: RelayTrial) -> bytes:
        error_no = failure_number(trial.failure)
        return record_line(task.task, int(trial.trace), trial.run_s, error_no, 0.0, trial.at)

    source = TaskSource(task=task.task.name, args=task.task.args, target=session.target, modules=task.modules)
    trials = [
        RelayTrial(task=task.key, trace=index, source="log", run_s=trial.run_s, failure=trial.reason)
        for index, trial in known.items()
    ]
    text = msgspec.json.encode(source).decode()
    return GpuTask(entry=task.entry, source=text, line=line, trials=trials, failures=reasons)


class AutotvmScheduler:
    """Task after task, batch after batch. Trials are written as TVM writes them."""

    def __init__(self, searches: Iterable[_TaskSearch], measurer: Measurer, log: Path, count: TrialCount) -> None:
        self._searches, self._measurer, self._log, self._count = deque(searches), measurer, log, count
        self._batch: list[int] = []

    def hand_out(self) -> bool:
        """As the port says."""
        while self._searches:
            self._batch = self._searches[0].next_batch()
            if self._batch:
                return True
            search = self._searches.popleft()
            # What was left out, by early stopping or for want of configurations, will not be measured.
            self._count.planned -= max(0, search.limit - len(search.trials))
            self._show(search, finished=True)
        return False

    def results(self) -> list[AutotvmTrial]:
        """As the port says."""
        search = self._searches[0]
        best = best_mean(search.trials)
        results = self._measurer.measure(search.task, self._batch, best if math.isfinite(best) else None)
        return [_checked(result) for result in results]

    def write(self, trials: Sequence[AutotvmTrial]) -> None:
        """As the port says."""
        search, lines = self._searches[0], []
        for index, trial in zip(self._batch, trials, strict=True):
            search.trials[index] = trial
            line = record_line(search.task.task, index, trial.run_s, trial.error_no, trial.took_s, trial.timestamp)
            lines.append(line + b"\n")
        append_synced(self._log, b"".join(lines))

    def go_on(self, trials: Sequence[AutotvmTrial]) -> None:
        """As the port says."""
        self._show(self._searches[0])
        self._searches[0].learn_proposed()

    def _show(self, search: _TaskSearch, *, finished: bool = False) -> None:
        self._count.step(search.task, search.position, best_mean(search.trials), finished=finished)


@dataclass(kw_only=False)
class _TaskSearch:
    """The search of one task. ``trials`` are all that it has, the oldest first; new ones are added."""

    session: RelaySession
    task: AutotvmTask
    position: int
    limit: int
    trials: dict[int, AutotvmTrial]
    _search: Any = field(default=None, repr=False)
    _proposed: list[int] = field(default_factory=list, repr=False)

    def next_batch(self) -> list[int]:
        """The configurations to measure next; none at the end of the search."""
        idle = 0
        while idle < _IDLE_BATCHES and not self._ended():
            if self._search is None:
                self._search = self._started_search()
            self._proposed = self._propose()
            fresh = [index for index in dict.fromkeys(self._proposed) if index not in self.trials]
            if fresh:
                return fresh[: self.limit - len(self.trials)]
            if not self._proposed:
                break
            self.learn_proposed()
            idle += 1
        return []

    def learn_proposed(self) -> None:
        """Tell TVM's search what became of its last proposals."""
        self._learn([index for index in self._proposed if index in self.trials])

    def _ended(self) -> bool:
        patience = self.session.options.early_stopping
        return len(self.trials) >= self.limit or (patience is not None and since_best(self.trials.values()) >= patience)

    def _started_search(self) -> Any:
        options = self.session.options
        algorithm = cast(Algorithm, options.algorithm)
        model = algorithm == "xgb"
        history = transfer_history(options.transfer_from, self.task) if model else ()
        self._search = make_search(algorithm, self.task.task, options.seed, self.task.key, history)
        if model and self.trials:  # the others propose the same again, and get the known results
            self._learn(list(self.trials))
        return self._search

    def _propose(self) -> list[int]:
        if not self._search.has_next():
            return []
        left = self.limit - len(self.trials)
        return [int(config.index) for config in self._search.next_batch(min(PLAN, max(left, 1)))]

    def _learn(self, indices: Sequence[int]) -> None:
        from tvm import autotvm

        task = self.task.task
        inputs = [autotvm.MeasureInput(task.target, task, task.config_space.get(index)) for index in indices]
        results = [
            autotvm.MeasureResult(trial.run_s, trial.error_no, trial.took_s, trial.timestamp)
            for trial in (self.trials[index] for index in indices)
        ]
        self._search.update(inputs, results)


def _tasks(session: RelaySession) -> list[AutotvmTask]:
    """The tasks of all networks and of the template, heaviest first; ``relay_tasks.jsonl`` gets them."""
    import tvm

    target = tvm.target.Target(session.target)
    found = [task for network in session.networks for task in network_tasks(network, target)]
    sources = [network.name for network in session.networks]
    options = session.options
    if options.template is not None:
        template = load_template(options.template)
        made = create_template_task(options.template, template, options.template_args, target)
        task = as_task(made, {options.template: 1}, (template.module,))
        if task is None:
            raise TuningError(f"the template {options.template} defines no knob: there is nothing to tune")
        found.append(task)
    tasks = heaviest_first(merged(found))
    if not tasks:
        raise TuningError(f"AutoTVM has no template for any operator of {', '.join(sources)} on {session.target}")
    session.work.save_tasks(AUTOTVM, sources, [task.entry for task in tasks])
    return tasks


def _trials(session: RelaySession) -> int:
    return TRIALS if session.options.trials is None else session.options.trials


def _checked(result: AutotvmTrial) -> AutotvmTrial:
    """A time that is none is a failure."""
    if result.error_no == 0 and not (result.run_s and all(map(is_time, result.run_s))):
        return AutotvmTrial(error_no=UNKNOWN_ERROR, took_s=result.took_s, timestamp=result.timestamp)
    return result


def _failures(trials: Any) -> Counter[str]:
    return Counter(trial.reason for trial in trials if trial.reason is not None)


def usual_trials(space: int) -> int:
    """How many trials of a task with ``space`` configurations people usually spend: 1000 for 10^7, fewer for fewer.

    TVM's tutorials advise 1000 and more for its large GPU spaces, and all of a space that is smaller.
    """
    return min(space, round(150 * math.log10(max(space, 2))))


def _notes(tasks: Sequence[AutotvmTask], trials: Mapping[str, int]) -> tuple[str, ...]:
    """One line that says where the trials were few for the size of the space."""
    few = [task for task in tasks if trials[task.key] < usual_trials(task.entry.space or 1) // 2]
    if not few:
        return ()
    worst = sorted(few, key=lambda task: -(task.entry.space or 1) / max(1, trials[task.key]))[:_LISTED]
    listed = "; ".join(
        f"{task.name}: {trials[task.key]} of {task.entry.space:.3g} configurations, "
        f"{usual_trials(task.entry.space or 1)} are usual"
        for task in worst
    )
    return (f"few trials for {len(few)} of {len(tasks)} tasks ({listed}); give more with --trials",)
