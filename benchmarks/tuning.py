"""Tuning throughput: the same candidates through TVM's stock builder and runner, and through our workers."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.table import Row
from tunehub_builder import networks
from tunehub_builder.comparison import physical_cores, use_threads

_CANDIDATES = 32


def run() -> list[Row]:
    """Build and measure the candidates of one convolution both ways, ours before and after the stock builder."""
    threads = physical_cores()
    use_threads(threads)

    import tunehub
    from tunehub_builder.tuning.search import EvolutionarySearch
    from tunehub_builder.tuning.tasks import extract_tasks

    target = tunehub.host_target()
    tasks = extract_tasks([("squeezenet", networks.get("squeezenet").relax_module())], target)
    task = next(task for task in tasks if "conv2d" in task.name and task.count > 1)
    search = EvolutionarySearch(task.mod, target, seed=0, threads=threads, batch=_CANDIDATES)
    traces = search.propose([], _CANDIDATES)

    first_s, _ = _ours(task, target, traces, threads)
    stock_s, stock_failed = _stock(task, target, traces)
    second_s, failed = _ours(task, target, traces, threads)
    ours_s = (first_s + second_s) / 2
    return [
        Row(name="candidates", value=len(traces), unit="count"),
        Row(name="trials_per_hour", value=3600 * len(traces) / ours_s, unit="per hour"),
        Row(name="stock_trials_per_hour", value=3600 * len(traces) / stock_s, unit="per hour"),
        Row(name="trials_per_hour_vs_stock", value=stock_s / ours_s, unit="times", note="same candidates, one run"),
        Row(name="lost_builds", value=failed, unit="count"),
        Row(name="stock_lost_builds", value=stock_failed, unit="count"),
    ]


def _ours(task: Any, target: Any, traces: list[Any], threads: int) -> tuple[float, int]:
    """Seconds, start of the workers included, and the number of candidates without a time."""
    import tvm

    from tunehub_builder.tuning.pool import PoolOptions, WorkerPool

    config = str(target)
    began = time.perf_counter()
    with WorkerPool(PoolOptions(workers=os.cpu_count() or 1, threads=threads), config) as pool:
        pool.add_task(task.exact, tvm.ir.save_json(task.mod))
        outcomes = pool.run(task.exact, traces, None)
    return time.perf_counter() - began, sum(not outcome.run_s for outcome in outcomes)


def _stock(task: Any, target: Any, traces: list[Any]) -> tuple[float, int]:
    """The same with ``LocalBuilder`` and ``LocalRunner`` at their defaults, but for the runner's repeats: ours."""
    from tvm.s_tir import meta_schedule as ms

    from tunehub.relax_schedule import apply_exact
    from tunehub.relax_traces import import_trace
    from tunehub_builder.tuning.worker import MeasureOptions

    options = MeasureOptions()
    evaluator = ms.runner.EvaluatorConfig(
        number=1, repeat=options.repeats, min_repeat_ms=int(options.min_repeat_s * 1e3), enable_cpu_cache_flush=False
    )
    modules = [apply_exact(task.mod, import_trace(trace)).mod for trace in traces]
    arguments = ms.arg_info.ArgInfo.from_prim_func(task.mod["main"])
    failed = 0
    began = time.perf_counter()
    built = ms.builder.LocalBuilder().build([ms.builder.BuilderInput(mod, target) for mod in modules])
    failed += sum(result.artifact_path is None for result in built)
    inputs = [
        ms.runner.RunnerInput(result.artifact_path, "cpu", arguments)
        for result in built
        if result.artifact_path is not None
    ]
    runner = ms.runner.LocalRunner(evaluator_config=evaluator, timeout_sec=30)
    results = [future.result() for future in runner.run(inputs)]
    elapsed = time.perf_counter() - began
    return elapsed, failed + sum(not result.run_secs for result in results)
