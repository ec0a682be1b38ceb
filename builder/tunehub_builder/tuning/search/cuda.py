"""The search for CUDA, in processes of its own: TVM's rules and cost model, with candidates that can be launched.

Of a hundred choices of tiles that MetaSchedule makes by chance, one passes its own check for GPUs, and finding a
population takes its evolutionary search half a minute of CPU time. Most fail on the threads of a block alone. Here the
tiles are drawn so that threads, virtual threads and the sums of a thread are in bounds
(:mod:`tunehub_builder.tuning.space.cuda_tiles`), and varied within these; what is worth measuring, TVM's cost model
says. Matmuls with a long K have a sketch of their own beside TVM's designs
(:mod:`tunehub.kernels.cuda.gemm.split_k.sketch`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cuda.gemm.rule import ranked
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTile, tile_of
from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
from tunehub.kernels.cuda.gemm.tiles import reduction_block_of
from tunehub.kernels.devices.known import device_of
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.guard import check_statements
from tunehub.tir.traces import export_trace, import_trace
from tunehub_builder.tuning.intrinsics import load_cpu_intrinsics
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.runner.messages import SearchRequest
from tunehub_builder.tuning.search.knobs import KnobSearch
from tunehub_builder.tuning.search.split_k import SplitKSearch
from tunehub_builder.tuning.search.strategy import REGISTRY, trace_id
from tunehub_builder.tuning.search.tensor_core import TensorCoreSearch
from tunehub_builder.tuning.search.tiles import fitting
from tunehub_builder.tuning.search.warm_start import Seed, adapted
from tunehub_builder.tuning.space.cuda_tiles import drawn, ruled, varied

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Object, PortableTrace, Schedule, Trace

SOURCE = "evolutionary"
FIRST = 16  # candidates of a workload that nothing is known of
_OF_RULE, _RULE_STEP = 64, 8  # of the rule's best tiles, which are alike, every eighth is tried first
_NICENESS = 5  # building and measuring go first
_CHOICE = 2  # candidates that are made for each that is proposed
_ATTEMPTS = 3  # for each that is made
_PARENTS = 12  # the fastest trials, which are varied
_AT_RANDOM = 0.2  # of what is made
_SPLIT_FIRST, _SPLIT_LEAST, _SPLIT_MOST = 0.25, 0.15, 0.75  # of what is made: by split-K
_SPLIT_PARENTS = 4
_MOST_LEARNT = 256  # earlier trials that teach the model


class CudaSearch:
    """Proposes for one workload."""

    def __init__(self, mod: IRModule, target: Target, *, seed: int, threads: int) -> None:
        """``threads`` are for the cost model."""
        from tvm.s_tir import meta_schedule as ms

        load_cpu_intrinsics()
        generator = ms.space_generator.PostOrderApply(
            f_block_filter=None,
            sch_rules=ms.ScheduleRule.create("cuda"),
            postprocs=ms.Postproc.create("cuda"),
            mutator_probs={},
        )
        self._mod, self._target, self._random = mod, target, Random(seed)
        self._context = ms.TuneContext(
            mod=mod, target=target, space_generator=generator, rand_state=seed, num_threads=1
        ).clone()
        self._postprocs = list(self._context.space_generator.postprocs)
        self._designs = [schedule.trace for schedule in self._context.generate_design_space()]
        self._arguments = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
        self._model = ms.cost_model.XGBModel(num_warmup_samples=FIRST, num_tuning_cores=threads)
        self._split = SplitKSearch.of(mod, target, self._random)
        self._made: dict[str, Schedule] = {}
        self._known: set[str] = set()
        self._told = 0
        self._begun = False  # what comes first was proposed, as far as earlier runs have not tried it

    def propose(self, trials: Sequence[Trial], limit: int) -> list[Any]:
        """At most ``limit`` candidates that are not among ``trials``, which only grow; none are left: an empty list."""
        self._learn(trials[self._told :])
        self._told = len(trials)
        fastest = sorted((trial for trial in trials if trial.run_s), key=lambda trial: trial.mean_s)[:_PARENTS]
        tiles = [tile_of(trial.trace) for trial in fastest]
        parents = [import_trace(trial.trace) for trial, tile in zip(fastest, tiles, strict=True) if tile is None]
        split = [tile for tile in tiles if tile is not None]
        searched = not all(trial.source.startswith(REGISTRY) for trial in trials)
        limit = limit if searched else min(limit, FIRST)
        first = {} if self._begun else self._first(limit)
        self._begun = True
        rest = limit - len(first)
        found = self._best(first, limit)
        return found + self._best(self._make(parents, split, _CHOICE * rest if searched else rest), rest)

    def _first(self, limit: int) -> dict[str, Schedule]:
        """At most ``limit`` schedules by the client's rule and by split-K, by the text of their
        traces: the cost model is not asked, since it may not know the like of them."""
        ruled = dict(islice(self._by_rule().items(), limit))
        if self._split is None:
            return ruled
        return ruled | self._split.make((), self._known, min(limit - len(ruled), round(_SPLIT_FIRST * limit)))

    def _make(self, parents: Sequence[PortableTrace], split: Sequence[SplitTile], count: int) -> dict[str, Schedule]:
        """At most ``count`` schedules by the text of their traces. Of the fastest trials so far ``parents`` are by
        TVM's designs, ``split`` by the sketch, which makes as large a part of the schedules, within bounds."""
        made: dict[str, Schedule] = {}
        if self._split is not None:
            share = len(split) / max(1, len(split) + len(parents))
            share = min(_SPLIT_MOST, max(_SPLIT_LEAST, share))
            made |= self._split.make(split[:_SPLIT_PARENTS], self._known, round(share * count))
        for _ in range(_ATTEMPTS * count):
            if len(made) >= count or not self._designs:
                break
            trace = self._random_trace() if self._by_chance(parents) else varied(self._parent(parents), self._random)
            schedule = None if trace is None else self._schedule(trace)
            if schedule is not None:
                text = trace_id(export_trace(schedule.trace))
                if text not in self._known:
                    made.setdefault(text, schedule)
        return made

    def _by_rule(self) -> dict[str, Schedule]:
        """Untried schedules with tiles that the client's rule finds good, by the text of their traces; none for other
        kinds."""
        reducing = reduction_block_of(self._mod)
        if reducing is None or reducing.problem is None:
            return {}
        limits, device = limits_of(self._target), device_of(self._target)
        memory, threads = limits.shared_memory, limits.threads
        tiles = ranked(reducing.problem, device, shared_memory=memory, threads=threads, count=_OF_RULE)
        traces = [ruled(trace, tile) for tile in tiles[::_RULE_STEP] for trace in self._designs[:1]]
        made = [self._schedule(trace) for trace in traces if trace is not None]
        found = {trace_id(export_trace(schedule.trace)): schedule for schedule in made if schedule is not None}
        return {text: schedule for text, schedule in found.items() if text not in self._known}

    def _by_chance(self, parents: Sequence[PortableTrace]) -> bool:
        return not parents or self._random.random() < _AT_RANDOM

    def _random_trace(self) -> Trace:
        return drawn(self._random.choice(self._designs), self._random)

    def _parent(self, parents: Sequence[PortableTrace]) -> Trace:
        """One of the fastest; the first more often."""
        return parents[min(self._random.randrange(len(parents)), self._random.randrange(len(parents)))]

    def _schedule(self, trace: Trace) -> Schedule:
        """The workload as ``trace`` says, after TVM's postprocessors; None when these or the client refuse it."""
        from tvm.s_tir import Schedule

        def apply() -> Schedule:
            schedule = Schedule(self._mod, seed=1, debug_mask="none", error_render_level="none")
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            if not all(postproc.apply(schedule) for postproc in self._postprocs):
                return None
            check_statements(schedule.mod["main"], self._mod["main"], self._target)
            return schedule

        return fitting(apply)

    def _best(self, made: dict[str, Schedule], limit: int) -> list[Any]:
        """Those of ``made`` that the model finds best."""
        if not made:
            return []
        candidates = {text: self._candidate(schedule) for text, schedule in made.items()}
        scores = self._model.predict(self._context, list(candidates.values()))
        order = sorted(zip(scores, candidates, strict=True), key=lambda pair: -float(pair[0]))[:limit]
        for _, text in order:
            self._known.add(text)
            self._made[text] = candidates[text]
        return [json.loads(text) for _, text in order]

    def _learn(self, news: Iterable[Trial]) -> None:
        """Teach the model the trials that succeeded; those of earlier runs are applied again for it."""
        from tvm.s_tir import meta_schedule as ms

        candidates: list[Object] = []
        results: list[Object] = []
        for trial in news:
            text = trace_id(trial.trace)
            self._known.add(text)
            own = self._made.pop(text, None)
            if trial.run_s and (own is not None or len(candidates) < _MOST_LEARNT):
                candidates.append(own or self._candidate(self._applied(trial.trace)))
                results.append(ms.runner.RunnerResult(list(trial.run_s), None))
        if candidates:
            self._model.update(self._context, candidates, results)

    def _applied(self, trace: Trace) -> Schedule:
        from tvm.s_tir import Schedule

        schedule = Schedule(self._mod, debug_mask="none", error_render_level="none")
        import_trace(trace).apply_to_schedule(schedule, remove_postproc=False)
        return schedule

    def _candidate(self, schedule: Schedule) -> Any:
        from tvm.s_tir import meta_schedule as ms

        return ms.MeasureCandidate(schedule, self._arguments)


class SearchSession:
    """What a worker that proposes remembers: the search of each workload and its trials so far."""

    def __init__(self, threads: int) -> None:
        """``threads`` are for the cost models; the process gives way to those that build."""
        self._threads = threads
        self._modules: dict[str, IRModule] = {}
        self._searches: dict[str, tuple[CudaSearch | TensorCoreSearch, list[Trial]]] = {}
        os.nice(_NICENESS)

    def warm_up(self, _target: object) -> None:
        """Import TVM and what the search needs."""
        from tvm.s_tir import meta_schedule  # noqa: F401

        load_cpu_intrinsics()

    def task(self, task: str, module: str) -> None:
        """Remember the workload ``task``, an IRModule as TVM's JSON."""
        import tvm

        self._modules[task] = tvm.ir.load_json(module)

    def propose(self, request: SearchRequest) -> list[Seed]:
        """Candidates; none are left: an empty list.

        What the known records make of the workload comes before all searches, in a batch of its own.
        """
        import tvm

        task, target = request.task, tvm.target.Target(request.target)
        if task not in self._searches:
            self._searches[task] = (self._search(task, target, request.seed), [])
        search, trials = self._searches[task]
        trials += request.news
        seeds = adapted(task, self._modules[task], target, request.known, knobs=False) if request.known else []
        tried = {trace_id(trial.trace) for trial in trials} if seeds else set()
        fresh = [seed for seed in seeds if trace_id(seed.candidate) not in tried][: request.limit]
        return fresh or [Seed(candidate=trace, source=SOURCE) for trace in search.propose(trials, request.limit)]

    def forget(self, task: str) -> None:
        """Free what the search of a workload holds."""
        self._searches.pop(task, None)

    def _search(self, task: str, target: Target, seed: int) -> CudaSearch | TensorCoreSearch:
        """Matmuls in half precision are for tensor cores, which have a space of their own."""
        mod = self._modules[task]
        matmul = matmul_of(mod)
        if matmul is not None:
            return TensorCoreSearch(mod, target, matmul, seed=seed)
        return CudaSearch(mod, target, seed=seed, threads=self._threads)


class KnobSearchSession(SearchSession):
    """As the base, for the tuner ``template``: a workload's search is among its tiles' knobs."""

    def __init__(self, threads: int) -> None:
        """As the base says."""
        super().__init__(threads)
        self._knobs: dict[str, tuple[KnobSearch, list[Trial]]] = {}

    def propose(self, request: SearchRequest) -> list[Seed]:
        """As the base says."""
        import tvm

        if request.task not in self._knobs:
            search = KnobSearch(self._modules[request.task], tvm.target.Target(request.target))
            self._knobs[request.task] = (search, [])
        search, trials = self._knobs[request.task]
        trials += request.news
        return [Seed(candidate=choice, source=search.name) for choice in search.propose(trials, request.limit)]
