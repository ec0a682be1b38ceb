"""The auto-scheduler of TVM <= 0.19 behind the tuners' port: no templates, one budget of trials for all tasks.

Trials go to ``auto_scheduler.json`` in TVM's own format, a few at a time, so that a kill loses a batch at most.
"""

from __future__ import annotations

import ctypes
import io
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.exceptions import last_line
from tunehub_builder.backends.relay.auto_scheduler_history import (
    TaskHistory,
    known_programs,
    program_line,
    read_history,
)
from tunehub_builder.backends.relay.gpu_search import PROGRAMS, AutoSchedulerSearchSession
from tunehub_builder.backends.relay.gpu_session import HARDWARE, AutoSchedulerGpuSession, SearchTaskSource
from tunehub_builder.backends.relay.gpu_tuner import GpuTask, gpu_options, on_own_gpu, tune_tasks
from tunehub_builder.backends.relay.tuner import AUTO_SCHEDULER, RelayOptions, RelaySession
from tunehub_builder.backends.relay.work import RelayTask, SearchGraph, failure_name
from tunehub_builder.exceptions import TuningError, WorkDirectoryError
from tunehub_builder.tuning.progress import TrialCount, TrialTotals
from tunehub_registry.tuning_log import auto_scheduler_key

if TYPE_CHECKING:
    from tunehub.relay.types import Input, Result, Task
    from tunehub.target.types import Target

TRIALS_PER_TASK = 64
_BUILD_TIMEOUT_S, _RUN_TIMEOUT_S = 20, 20
_MIN_REPEAT_MS = 40
# TVM trains its model and searches anew in every round: more trials in one cost less each, but the model learns later.
_ROUND = range(8, 65)
_ROUNDS_PER_TASK = 4
# TVM's default population of 2048 is meant for tens of cores; two do not finish a round of it in 100 s.
_POPULATION = range(128, 2049)
_POPULATION_PER_CORE = 64
_SAMPLED = 8
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def make() -> AutoSchedulerTuner:
    """The tuner, for ``relay.tuner``."""
    return AutoSchedulerTuner()


@dataclass(frozen=True, kw_only=True, slots=True)
class _SearchTask:
    """A task of TVM with its keys, its name for people, and how often each network calls it."""

    task: Task
    key: str
    name: str
    counts: dict[str, int]


class _EnoughError(Exception):
    """All trials are spent. TVM itself looks at the trials of one run only."""


class AutoSchedulerTuner:
    """See ``relay.tuner.RelayTuner``. ``trials`` are for all tasks together; TVM spends them where they help most."""

    name = AUTO_SCHEDULER

    def tune(self, session: RelaySession) -> TrialTotals:
        """Tune the tasks of all networks of ``session`` for the sum of the networks' times.

        Raises TuningError for fewer trials than tasks, and for networks without tasks.
        """
        import tvm

        target = tvm.target.Target(session.target)
        tasks, notes = _sorted_out(extract(session, target))
        names = [network.name for network in session.networks]
        session.work.save_tasks(AUTO_SCHEDULER, names, [_relay_task(task) for task in tasks])
        session.work.save_graphs(graph_of(task.task) for task in tasks)
        if not tasks:
            raise TuningError(f"{', '.join(names)}: the auto-scheduler finds nothing to tune; {'; '.join(notes)}")
        trials = session.options.trials if session.options.trials is not None else TRIALS_PER_TASK * len(tasks)
        if on_own_gpu(session):
            return _tune_on_gpu(session, tasks, trials, notes)
        with tempfile.TemporaryDirectory() as folder:
            good = Path(folder) / "history.json"
            history = read_history(session.work.auto_scheduler_log, str(target), {task.key for task in tasks}, good)
            watch = _RoundCallback(session, tasks, history, trials)
            if watch.count.trials < trials:
                _tune(session, tasks, watch, good if watch.count.trials else None)
        return watch.finish(notes)


def _tune_on_gpu(session: RelaySession, tasks: Sequence[_SearchTask], trials: int, notes: Sequence[str]) -> TrialTotals:
    known = known_programs(session.work.auto_scheduler_log, str(tasks[0].task.target), {task.key for task in tasks})
    counted = {key: Counter(trial.failure for trial in trials if trial.failure) for key, trials in known.items()}
    reasons = session.work.failures(AUTO_SCHEDULER, counted)
    return tune_tasks(
        session,
        AUTO_SCHEDULER,
        [
            GpuTask(
                entry=_relay_task(task),
                source=_source(task.task),
                line=program_line,
                trials=known[task.key],
                failures=reasons[task.key],
            )
            for task in tasks
        ],
        session.work.auto_scheduler_log,
        gpu_options(session, trials=trials, total=trials),
        AutoSchedulerGpuSession,
        partial(AutoSchedulerSearchSession, PROGRAMS),
        lambda made: [*notes, *(f"{task.name}: not a trial yet" for task in tasks if not made[task.key])],
    )


def graph_of(task: Task) -> SearchGraph:
    """What TVM's ``task`` computes, for other processes."""
    from tvm.auto_scheduler.workload_registry import serialize_workload_registry_entry

    key = str(task.workload_key)
    tensors = str(serialize_workload_registry_entry(key)[1])
    return SearchGraph(key=auto_scheduler_key(key), workload_key=key, tensors=tensors)


def _source(task: Task) -> str:
    """TVM's ``task`` for another process."""
    from tvm.auto_scheduler.workload_registry import serialize_workload_registry_entry

    name, tensors = serialize_workload_registry_entry(str(task.workload_key))
    hardware = task.hardware_params
    source = SearchTaskSource(
        workload_key=str(task.workload_key),
        name=str(name),
        tensors=str(tensors),
        target=str(task.target),
        hardware=tuple(int(getattr(hardware, field)) for field in HARDWARE),
        layout_rewrite=int(task.layout_rewrite_option),
    )
    return msgspec.json.encode(source).decode()


def extract(session: RelaySession, target: Target) -> list[_SearchTask]:
    """The tasks of all networks, each once, with how often each network calls it."""
    from tvm import auto_scheduler

    from tunehub.relay.coverage import gpu_hardware

    found: dict[str, _SearchTask] = {}
    for network in session.networks:
        module, params = network.module()
        with redirect_stdout(io.StringIO()):
            tasks, weights = auto_scheduler.extract_tasks(
                module["main"], params, target, hardware_params=gpu_hardware(target)
            )
        for task, weight in zip(tasks, weights, strict=True):
            key = auto_scheduler_key(str(task.workload_key))
            known = found.get(key)
            counts = {**(known.counts if known else {}), network.name: int(weight)}
            found[key] = _SearchTask(task=known.task if known else task, key=key, name=_name(task), counts=counts)
    return list(found.values())


def layout_problem(task: Task) -> str | None:
    """Why no record of ``task`` could be used, or None.

    On CPUs TVM changes the layout of weights after a record (``compute_dag.cc``, RewriteLayout). It takes the names of
    axes apart at their digits: the axes i0 and i1 of TVM 0.19's dense do not survive that. Every trial fails then, and
    a record that was measured without the change aborts ``relay.build``.
    """
    import tvm
    from tvm import auto_scheduler

    operators = [op for op in task.compute_dag.ops if getattr(op, "attrs", None)]
    if not int(task.layout_rewrite_option) or not any("layout_free_placeholders" in op.attrs for op in operators):
        return None
    params = {"evolutionary_search_population": _SAMPLED, "sample_init_min_population": 1}
    policy = auto_scheduler.SketchPolicy(task, auto_scheduler.RandomModel(), params=params, verbose=0)
    problem = None
    for state in list(policy.sample_initial_population())[:_SAMPLED]:
        try:
            task.compute_dag.rewrite_layout_from_state(state)
            return None
        except tvm.error.TVMError as error:
            problem = last_line(error)
    return problem


def _sorted_out(tasks: Sequence[_SearchTask]) -> tuple[list[_SearchTask], list[str]]:
    """The tasks that can be tuned, and a note on each other one."""
    good: list[_SearchTask] = []
    notes: list[str] = []
    for task in tasks:
        problem = layout_problem(task.task)
        if problem is None:
            good.append(task)
        else:
            notes.append(
                f"{task.name}: not tuned; this TVM cannot change the layout of its weights ({problem}), "
                "so that records of it would abort relay.build; its default schedule is used"
            )
    return good, notes


def _tune(session: RelaySession, tasks: Sequence[_SearchTask], watch: _RoundCallback, history: Path | None) -> None:
    from tvm import auto_scheduler

    options = session.options
    left = watch.trials - watch.count.trials
    if watch.trials < len(tasks):
        raise TuningError(f"--trials {watch.trials} is fewer than the {len(tasks)} tasks; give at least one for each")
    _seed(options.seed)
    with _runner(options) as runner, _kept_pools():
        scheduler = auto_scheduler.TaskScheduler(
            [task.task for task in tasks],
            [sum(task.counts.values()) for task in tasks],
            load_log_file=str(history) if history else None,
            callbacks=[watch],
        )
        tuning = auto_scheduler.TuningOptions(
            num_measure_trials=max(left, len(tasks)),  # TVM wants one for each; the watch ends it earlier
            num_measures_per_round=_clamped(left // (_ROUNDS_PER_TASK * len(tasks)), _ROUND),
            builder=auto_scheduler.LocalBuilder(timeout=_BUILD_TIMEOUT_S, n_parallel=session.workers),
            runner=runner,
            measure_callbacks=[auto_scheduler.RecordToFile(str(session.work.auto_scheduler_log)), watch.measured()],
            verbose=0,
        )
        policies = _policies(tasks, tuning.num_measures_per_round, session.workers, history)
        with suppress(_EnoughError):
            scheduler.tune(tuning, search_policy=policies, per_task_early_stopping=options.early_stopping)


def _policies(tasks: Sequence[_SearchTask], round_size: int, cores: int, history: Path | None) -> list[Any]:
    """TVM's sketch search for each task, with one cost model for all (task_scheduler.py, make_search_policies)."""
    from tvm import auto_scheduler

    from tunehub_builder.backends.relay.cost_model import GuardedModel

    model = GuardedModel(num_warmup_sample=len(tasks) * round_size, adaptive_training=True)
    if history is not None:
        model.update_from_file(str(history))
    known = [auto_scheduler.PreloadMeasuredStates(str(history))] if history is not None else None
    params = search_params(cores)
    return [
        auto_scheduler.SketchPolicy(task.task, model, params=params, verbose=0, init_search_callbacks=known)
        for task in tasks
    ]


def search_params(cores: int) -> dict[str, int]:
    """The parameters of TVM's evolutionary search for a machine with so many cores."""
    population = _clamped(_POPULATION_PER_CORE * cores, _POPULATION)
    few = population < 512
    return {
        "evolutionary_search_population": population,
        "evolutionary_search_num_iters": 2 if few else 4,
        "sample_init_min_population": 16 if few else 50,
    }


class _RoundCallback:
    """Counts and shows trials. TVM calls ``pre_tune`` and ``post_tune`` around each round of a task."""

    def __init__(
        self, session: RelaySession, tasks: Sequence[_SearchTask], history: dict[str, TaskHistory], trials: int
    ) -> None:
        self.trials = trials
        self.count = TrialCount(len(tasks), session.show, trials)
        for known in history.values():
            self.count.known(known.trials, known.failures)
        self._log = session.work.auto_scheduler_log
        self._tasks = tasks
        self._history = history
        self._size = 0
        self._before = 0

    def pre_tune(self, scheduler: Any, index: int) -> None:
        """TVM is about to tune a task for a round. Raises _EnoughError when no trial is left."""
        left = self.trials - self.count.trials
        if left <= 0:
            raise _EnoughError
        scheduler.num_measures_per_round = min(scheduler.num_measures_per_round, left)
        self._size, self._before = self._written(), self.count.measured_now

    def post_tune(self, _scheduler: object, index: int) -> None:
        """TVM has tuned a task for a round. Raises WorkDirectoryError: TVM says nothing when it cannot write."""
        if self.count.measured_now > self._before and self._written() <= self._size:
            raise WorkDirectoryError(self._log, "TVM could not append its trials", "free some space on the disk")

    def measured(self) -> object:
        """TVM's callback after each batch of trials."""
        from tvm.auto_scheduler.measure import PythonBasedMeasureCallback

        watch = self
        positions = {str(task.task.workload_key): number for number, task in enumerate(self._tasks, 1)}

        class TrialCallback(PythonBasedMeasureCallback):  # type: ignore[misc]
            def callback(self, _policy: object, inputs: Sequence[Input], results: Sequence[Result]) -> None:
                for measured, result in zip(inputs, results, strict=True):
                    watch.add(positions[str(measured.task.workload_key)], result)

        return TrialCallback()

    def add(self, position: int, result: Result) -> None:
        """Count one trial of the task at ``position``, and show it."""
        task = self._tasks[position - 1]
        known = self._history[task.key]
        costs = [float(cost) for cost in result.costs]
        known.add(int(result.error_no), sum(costs) / len(costs) if costs else 0.0)
        self.count.measured(failure_name(int(result.error_no)))
        self.count.step(task, position, known.best_s)

    def finish(self, notes: Sequence[str]) -> TrialTotals:
        """Show every task as finished; say which ones have no successful trial."""
        failed = []
        for position, task in enumerate(self._tasks, 1):
            known = self._history[task.key]
            self.count.step(task, position, known.best_s, finished=True)
            if known.trials and known.trials == sum(known.failures.values()):
                failed.append(f"{task.name}: all {known.trials} trials failed ({_listed(known.failures)})")
        return self.count.totals((*notes, *failed))

    def _written(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0


@contextmanager
def _runner(options: RelayOptions) -> Iterator[Any]:
    """A device behind a tracker, or a tracker and a server of our own on this machine, ended afterwards."""
    from tvm import auto_scheduler

    times = {"timeout": _RUN_TIMEOUT_S, "number": 3, "repeat": 1, "min_repeat_ms": _MIN_REPEAT_MS}
    if options.cache_flush:  # TVM empties the caches before a sample, so that a sample must be a single run
        times = {**times, "number": 1, "repeat": 10, "min_repeat_ms": 0}
    flush = {"enable_cpu_cache_flush": options.cache_flush}
    with redirect_stdout(io.StringIO()):  # TVM greets the device
        if options.rpc is not None:
            rpc = options.rpc
            place: Any = auto_scheduler.RPCRunner(rpc.key, rpc.host, rpc.port, **times, **flush)
        else:
            place = auto_scheduler.LocalRPCMeasureContext(**times, **flush)
    try:
        if options.rpc is None:
            _tie(place.tracker, place.server)
        yield place if options.rpc is not None else place.runner
    finally:
        del place  # TVM's context ends its processes then


def _tie(*services: Any) -> None:
    """Let TVM's tracker and server end with this process: when it is killed they would stay for ever."""
    for service in services:
        worker = getattr(service, "proc", None)
        if worker is not None:
            worker.send(die_with, (os.getpid(),))
            worker.recv()


def die_with(parent: int) -> None:
    """In a process of TVM: end when the process ``parent``, which started this one, ends. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _kept_pools() -> Iterator[None]:
    """Let TVM's builder and runner keep their processes: they start new ones for every few trials, a second each."""
    from tvm.auto_scheduler import measure

    original = getattr(measure, "PopenPoolExecutor", None)
    pools: dict[Any, Any] = {}

    def kept(*arguments: Any, **options: Any) -> Any:
        key = (arguments, tuple(sorted(options)))
        if key not in pools:
            pools[key] = original(*arguments, **options)  # type: ignore[misc]
        return pools[key]

    if original is None:  # before TVM 0.8 had them
        yield
        return
    measure.PopenPoolExecutor = kept
    try:
        yield
    finally:
        measure.PopenPoolExecutor = original
        pools.clear()


def _seed(seed: int) -> None:
    """TVM takes the seeds of its search from these two."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)


def _relay_task(task: _SearchTask) -> RelayTask:
    workload = str(task.task.workload_key)
    return RelayTask(
        tuner=AUTO_SCHEDULER,
        name=task.name,
        key=task.key,
        operator=task.key,
        workload=msgspec.json.decode(workload),
        counts=task.counts,
        flop=float(task.task.compute_dag.flop_ct),
    )


def _name(task: Task) -> str:
    """The fused operators without TVM's prefixes, and the shapes: ``conv2d_add_relu 1x56x56x64 3x3x64x64 …``."""
    function = str(task.desc).split(",")[0].removeprefix("vm_mod_").removeprefix("fused_").replace("nn_", "")
    _, *shapes = msgspec.json.decode(str(task.workload_key))
    texts = ["x".join(map(str, shape)) for shape in shapes if isinstance(shape, list)]
    return " ".join([function or "task", *texts])[:240]


def _listed(failures: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in failures.most_common())


def _clamped(value: int, bounds: range) -> int:
    return max(bounds[0], min(bounds[-1], value))
