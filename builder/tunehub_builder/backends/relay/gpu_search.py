"""Searching for a GPU with TVM <= 0.19, in processes of its own, so that it does not wait for what is measured.

The searches are AutoTVM's and the auto-scheduler's. TVM's own loops hold a search up while its candidates are built and
measured, and the GPU while the search thinks.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tunehub_builder.backends.relay.autotvm_search import History, make_search
from tunehub_builder.backends.relay.autotvm_session import TaskSource, create_task
from tunehub_builder.backends.relay.gpu_session import SearchTaskSource
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.recipe import Algorithm
from tunehub_builder.tuning.runner.messages import SearchRequest
from tunehub_builder.tuning.search.warm_start import Seed

if TYPE_CHECKING:
    from tunehub.relay.types import Input, State, Task

BATCH = 32
_NICENESS = 5  # building and measuring go first
_THREADS = 4  # of xgboost
_IDLE_BATCHES = 50  # so many proposals of nothing but known configurations: the search has come to its end
PROGRAMS = {
    "evolutionary_search_population": 384,
    "evolutionary_search_num_iters": 4,
    "sample_init_min_population": 32,
}  # a program takes milliseconds to look at, and a batch of programs on a GPU half a second
_WARM_UP = 64  # trials of a process's tasks before the auto-scheduler's model is trusted
_RANDOM_SHARE, _PARENT_SHARE = 0.05, 0.2  # of a batch at random; of a population the fastest trials (as in TVM)


class AutotvmSearchSession:
    """What a worker that proposes configurations remembers; its public methods are the requests."""

    def __init__(self, algorithm: str, histories: dict[str, History]) -> None:
        """``histories``: by task, what other workloads taught; see :func:`make_search`."""
        self._algorithm, self._histories = cast(Algorithm, algorithm), histories
        self._sources: dict[str, str] = {}
        self._searches: dict[str, _ConfigSearch] = {}
        os.nice(_NICENESS)

    def warm_up(self, _target: object) -> None:
        """Import TVM."""
        from tvm import autotvm  # noqa: F401

    def task(self, key: str, source: str) -> None:
        """Remember a task: a ``TaskSource`` as JSON."""
        self._sources[key] = source

    def propose(self, request: SearchRequest) -> list[Seed]:
        """Configurations that were not tried; none are left: an empty list."""
        key = request.task
        if key not in self._searches:
            task = create_task(msgspec.json.decode(self._sources[key], type=TaskSource))
            history = self._histories.get(key, ())
            search = make_search(self._algorithm, task, request.seed, key, history, plan=BATCH)
            self._searches[key] = _ConfigSearch(task, search, model=self._algorithm == "xgb")
        found = self._searches[key].propose(request.news, request.limit)
        return [Seed(candidate=index, source=self._algorithm) for index in found]


class _ConfigSearch:
    """AutoTVM's tuner of one task and what it was told."""

    def __init__(self, task: Task, search: Any, *, model: bool) -> None:
        self._task, self._search, self._model = task, search, model
        self._trials: dict[int, Trial] = {}
        self._proposed: list[int] = []

    def propose(self, news: Sequence[Trial], limit: int) -> list[int]:
        first = not self._trials
        self._trials.update((int(trial.trace), trial) for trial in news)
        if first and self._model and news:  # of earlier runs; the other searches propose the same again
            self._learn(list(self._trials))
        else:
            self._learn(self._proposed)
        for _ in range(_IDLE_BATCHES):
            self._proposed = self._next(limit)
            fresh = [index for index in dict.fromkeys(self._proposed) if index not in self._trials]
            if fresh or not self._proposed:
                return fresh
            self._learn(self._proposed)
        return []

    def _next(self, limit: int) -> list[int]:
        if not self._search.has_next():
            return []
        return [int(config.index) for config in self._search.next_batch(limit)]

    def _learn(self, indices: Sequence[int]) -> None:
        from tvm import autotvm

        task, known = self._task, [index for index in indices if index in self._trials]
        if not known:
            return
        inputs = [autotvm.MeasureInput(task.target, task, task.config_space.get(index)) for index in known]
        trials = [self._trials[index] for index in known]
        results = [autotvm.MeasureResult(trial.run_s, 0 if trial.run_s else 1, 0.0, 0.0) for trial in trials]
        self._search.update(inputs, results)


class AutoSchedulerSearchSession:
    """What a worker that proposes programs remembers: one cost model for its tasks, as TVM has it."""

    def __init__(self, params: dict[str, int]) -> None:
        """``params``: of TVM's SketchPolicy."""
        self._params = params
        self._tasks: dict[str, Task] = {}
        self._searches: dict[str, _ProgramSearch] = {}
        self._model: Any = None
        os.nice(_NICENESS)

    def warm_up(self, _target: object) -> None:
        """Import TVM and make the model."""
        from tunehub_builder.backends.relay.cost_model import GuardedModel

        self._model = GuardedModel(num_warmup_sample=_WARM_UP, adaptive_training=True)
        self._model.xgb_params["nthread"] = _THREADS

    def task(self, key: str, source: str) -> None:
        """Make a task: a ``SearchTaskSource`` as JSON."""
        self._tasks[key] = msgspec.json.decode(source, type=SearchTaskSource).task()

    def propose(self, request: SearchRequest) -> list[Seed]:
        """Programs that were not tried; none are left: an empty list."""
        key = request.task
        if key not in self._searches:
            seed = (request.seed * 0x9E3779B1 + int(key[:8], 16)) % (1 << 30) + 1
            self._searches[key] = _ProgramSearch(self._tasks[key], self._model, self._params, seed)
        found = self._searches[key].propose(request.news, request.limit)
        return [Seed(candidate=text, source="sketch") for text in found]


class _ProgramSearch:
    """TVM's sketch search for one task, a round at a time (``sketch_policy.cc``, ContinueSearchOneRound)."""

    def __init__(self, task: Task, model: Any, params: dict[str, int], seed: int) -> None:
        from tvm import auto_scheduler

        self._task, self._model = task, model
        self._policy = auto_scheduler.SketchPolicy(task, model, params=dict(params), seed=seed, verbose=0)
        self._parents = round(_PARENT_SHARE * int(params["evolutionary_search_population"]))
        self._random = random.Random(seed)
        self._inputs: dict[str, Input] = {}  # by its text, what was proposed or tried
        self._times: dict[str, float] = {}

    def propose(self, news: Sequence[Trial], limit: int) -> list[str]:
        self._learn(news)
        population = list(self._policy.sample_initial_population())
        if not self._inputs:
            found = self._fresh(self._ranked(population), limit)
            self._inputs.update(found)
            return list(found)
        fastest = sorted(self._times, key=self._times.__getitem__)[: self._parents]
        parents = [self._inputs[text].state for text in fastest]
        found = self._fresh(self._policy.evolutionary_search([*population, *parents], limit + len(self._inputs)), limit)
        chance = round(_RANDOM_SHARE * limit)
        drawn = self._fresh(self._random.sample(population, min(chance, len(population))), chance)
        texts = list(dict.fromkeys([*list(found)[: limit - len(drawn)], *drawn, *found]))[:limit]
        self._inputs.update({text: (found | drawn)[text] for text in texts})
        return texts

    def _ranked(self, states: list[State]) -> list[State]:
        """``states``, the most promising first by what other tasks taught. A task's first batch is chosen so: evolving
        programs of which none is measured takes three times as long as to draw them, and teaches nothing."""
        scores = self._model.predict(self._task, states)
        return [states[number] for number in (-scores).argsort(kind="stable")]

    def _fresh(self, states: Iterable[State], most: int) -> dict[str, Input]:
        """Of ``states``, the best first, those that were not tried, as inputs of a measurement by their text."""
        from tvm import auto_scheduler
        from tvm.auto_scheduler import _ffi_api

        found: dict[str, Input] = {}
        for state in states:
            if len(found) >= most:
                break
            measured = auto_scheduler.MeasureInput(self._task, state)
            text = str(_ffi_api.SerializeMeasureInput(measured))
            if text not in self._inputs:
                found.setdefault(text, measured)
        return found

    def _learn(self, news: Sequence[Trial]) -> None:
        from tvm import auto_scheduler
        from tvm.auto_scheduler.measure import MAX_FLOAT

        inputs, results = [], []
        for trial in news:
            measured = self._inputs.get(trial.trace) or self._recovered(trial.trace)
            self._inputs[trial.trace] = measured
            if trial.run_s:
                self._times[trial.trace] = trial.mean_s
            inputs.append(measured)
            costs = trial.run_s or (MAX_FLOAT,)
            results.append(auto_scheduler.MeasureResult(costs, 0 if trial.run_s else 1, "", 0.0, 0.0))
        if inputs:
            self._model.update(inputs, results)

    def _recovered(self, text: str) -> Input:
        """An input of an earlier run; its state is made again from its steps."""
        from tvm import auto_scheduler
        from tvm.auto_scheduler import _ffi_api

        state = _ffi_api.DeserializeMeasureInput(text).state
        return auto_scheduler.MeasureInput(self._task, self._task.compute_dag.infer_bound_from_state(state))
