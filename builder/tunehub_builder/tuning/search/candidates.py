"""Where candidates come from: expert sketches first, then MetaSchedule's evolutionary search.

Both are sources of traces in the portable form of :mod:`tunehub.relax.traces`; what they propose next depends on the
trials that they are told about, so that a resumed run goes on where the journal ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tunehub.relax.traces import export_trace, import_trace
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.space import register_tiles as sketch

REGISTRY = "registry"  # so the sources of trials begin that records of a package or the user's own led to
_BEST_TO_VARY = 2
_NEIGHBOURS = 1.0  # factors of two between register tiles


class CandidateSource(Protocol):
    """A tuner's search for one task. Its ``name`` is the source of the trials that it leads to."""

    name: str

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """Return at most ``limit`` candidates that are not among ``trials``; an empty list ends the search."""
        ...


def trace_id(trace: Any) -> str:
    """A text that is equal for equal traces."""
    return json.dumps(trace, sort_keys=True, separators=(",", ":"))


class SketchSearch:
    """All register tiles of the task's sketches, then variations of the best ones.

    After trials that came from a registry, those around the fastest are first: neighbours of its register tile, then
    variations, then the other tiles from near to far.
    """

    name = "sketch"

    def __init__(self, mod: Any, vector: int) -> None:
        self._mod = mod
        self._vector = vector
        self._loops = sketch.loops_of(mod)
        self._knobs: dict[str, sketch.RegisterTile] = {}
        self._tiles: list[str] | None = None

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """The register tiles and variations in their order, until none is new."""
        if self._loops is None:
            return []
        measured = {trace_id(trial.trace): trial for trial in trials}
        if self._tiles is None:
            self._tiles = list(self._traces(sketch.register_tiles(self._loops, self._vector)))
        fresh = [text for text in self._tiles if text not in measured]
        center = center_of(trials)
        if center is not None:
            far = {text: sketch.apart(self._knobs[text].register_tile, center) for text in fresh}
            fresh.sort(key=far.__getitem__)
            near = [text for text in fresh if far[text] <= _NEIGHBOURS]
            fresh = near or self._variations(measured) or fresh
        return [json.loads(text) for text in (fresh or self._variations(measured))[:limit]]

    def _variations(self, measured: Mapping[str, Trial]) -> list[str]:
        """Those of the fastest sketches that were not measured yet."""
        mine = sorted((text for text in self._knobs if text in measured), key=lambda text: measured[text].mean_s)
        best = [self._knobs[text] for text in mine[:_BEST_TO_VARY] if measured[text].run_s]
        loops = self._loops_or_fail()
        varied = self._traces(changed for knobs in best for changed in sketch.variations(loops, knobs))
        return [text for text in varied if text not in measured]

    def _traces(self, choices: Iterable[sketch.RegisterTile]) -> Iterator[str]:
        """The traces of the choices that TVM accepts, in order and once each."""
        from tvm.s_tir import meta_schedule as ms

        seen: set[str] = set()
        for knobs in choices:
            try:
                schedule = sketch.apply(self._mod, self._loops_or_fail(), knobs)
                if not ms.postproc.RewriteLayout().apply(schedule):
                    continue
            except Exception:  # a sketch that does not fit this function is no candidate
                continue
            text = trace_id(export_trace(schedule.trace))
            self._knobs.setdefault(text, knobs)
            if text not in seen:
                seen.add(text)
                yield text

    def _loops_or_fail(self) -> sketch.Loops:
        assert self._loops is not None
        return self._loops


def center_of(trials: Sequence[Trial]) -> tuple[int, int, int] | None:
    """The register tile of the fastest trial that has one; None when no trial came from a registry."""
    if not any(trial.source.startswith(REGISTRY) for trial in trials):
        return None
    tiled = [(trial.mean_s, tile) for trial in trials if trial.run_s and (tile := sketch.register_tile(trial.trace))]
    return min(tiled)[1] if tiled else None


class EvolutionarySearch:
    """MetaSchedule's evolutionary search over TVM's own schedule rules, with the XGBoost cost model."""

    name = "evolutionary"

    def __init__(self, mod: Any, target: Any, *, seed: int, threads: int, batch: int = 16) -> None:
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


def load_cpu_intrinsics() -> None:
    """Register the tensor intrinsics of x86 only; the package of all of them takes 7 to 13 s to import.

    The package's ``__init__`` imports every architecture, so its submodules are loaded under a bare package module. It
    stays: TVM's TuneContext imports the package for its effect (``s_tir/meta_schedule/tune_context.py``), and whoever
    needs another architecture imports its submodule by name.
    """
    import importlib
    import sys
    import types
    from pathlib import Path

    import tvm

    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
    sys.modules[name] = package
    try:
        for module in ("dot_product_common", "x86"):
            importlib.import_module(f"{name}.{module}")
    except BaseException:
        del sys.modules[name]
        raise
