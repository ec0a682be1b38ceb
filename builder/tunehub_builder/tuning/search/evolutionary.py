"""MetaSchedule's evolutionary search, as a source of candidates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunehub.tir.traces import export_trace, import_trace
from tunehub_builder.tuning.intrinsics import load_cpu_intrinsics
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.search.strategy import trace_id

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule


class EvolutionarySearch:
    """MetaSchedule's evolutionary search over TVM's own schedule rules, with the XGBoost cost model."""

    name = "evolutionary"

    def __init__(self, mod: IRModule, target: Target, *, seed: int, threads: int, batch: int = 16) -> None:
        self._mod, self._target, self._seed, self._threads, self._batch = mod, target, seed, threads, batch
        self._context: Any = None
        self._pending: list[tuple[Any, str]] = []
        self._told = 0

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """The next generation of the search; earlier trials of any source are its measured population."""
        if self._context is None:
            self._start(trials)
        else:
            self._tell(trials)
        candidates = self._context.generate_measure_candidates()
        if candidates is None:
            return []
        self._pending = [(candidate, trace_id(export_trace(candidate.sch.trace))) for candidate in candidates]
        known = {trace_id(trial.trace) for trial in trials}
        return [json.loads(text) for _, text in self._pending if text not in known][:limit]

    def _start(self, trials: Sequence[Trial]) -> None:
        from tvm.s_tir import meta_schedule as ms

        load_cpu_intrinsics()
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=128, init_min_unmeasured=self._batch, genetic_num_iters=2
        )
        self._context = ms.TuneContext(
            mod=self._mod,
            target=self._target,
            space_generator="post-order-apply",
            search_strategy=strategy,
            task_name="tunehub",
            rand_state=self._seed,
            num_threads=self._threads,
        ).clone()
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._mod)
        self._model = ms.cost_model.XGBModel(num_warmup_samples=self._batch)
        for trial in trials:
            if trial.run_s:
                self._commit(import_trace(trial.trace), trial.run_s)
        self._context.pre_tuning(
            max_trials=1 << 20,
            num_trials_per_iter=self._batch,
            design_spaces=self._context.generate_design_space(),
            database=self._database,
            cost_model=self._model,
        )

    def _tell(self, trials: Sequence[Trial]) -> None:
        from tvm.s_tir import meta_schedule as ms

        by_trace = {trace_id(trial.trace): trial for trial in trials}
        candidates = [candidate for candidate, _ in self._pending]
        results = []
        for candidate, text in self._pending:
            trial = by_trace.get(text)
            if trial is not None and trial.run_s:
                results.append(ms.runner.RunnerResult(list(trial.run_s), None))
                self._commit(candidate.sch.trace, trial.run_s)
            else:
                results.append(ms.runner.RunnerResult(None, "not measured" if trial is None else trial.error))
        self._context.notify_runner_results(candidates, results)
        self._model.update(self._context, candidates, results)

    def _commit(self, trace: Any, run_s: Sequence[float]) -> None:
        from tvm.s_tir import meta_schedule as ms

        args = ms.arg_info.ArgInfo.from_prim_func(self._mod["main"])
        record = ms.database.TuningRecord(trace, self._workload, list(run_s), self._target, args)
        self._database.commit_tuning_record(record)
