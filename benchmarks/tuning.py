"""Tuning throughput: the same candidates through TVM's stock builder and runner, and through our workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.shared.table import Row
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.networks import Network

if TYPE_CHECKING:
    from tunehub.target.types import Target

_OUR_BATCH = 16
_STOCK_BATCH = 64


def run(
    network: Network | None = None,
    batch: int = _OUR_BATCH,
    stock_batch: int | None = _STOCK_BATCH,
    batches: int = 2,
    initializer: Callable[[], None] | None = None,
) -> list[Row]:
    """Build and measure the candidates of one convolution both ways, in ``batches`` of our tuner's size and in one of
    TVM's (None: not of TVM's). The convolution is the first of ``network``, by default of squeezenet.
    ``initializer``: what TVM's builders do first in each of their processes.
    """
    import tunehub
    from tunehub_builder.tuning.search.evolutionary import EvolutionarySearch
    from tunehub_builder.tuning.tasks import extract_tasks

    network, threads, target = network or networks.get("squeezenet"), physical_cores(), tunehub.host_target()
    found = extract_tasks([(network.name, network.relax_module())], target)
    convolutions = [task for task in found if "conv2d" in task.name]
    task = _without_packing(max(convolutions, key=lambda task: task.count > 1))
    most = max(batches * batch, stock_batch or 0)
    traces = EvolutionarySearch(task.mod, target, seed=0, threads=threads, batch=most).propose([], most)
    small = [traces[i : i + batch] for i in range(0, min(batches * batch, len(traces)), batch)]

    ours_s, failed = _ours(task, target, small, threads)
    stock_s, stock_failed = _stock(task, target, small, initializer)
    count = sum(map(len, small))
    rows = [
        Row(name="trials_per_hour", value=3600 * count / ours_s, unit="per hour"),
        Row(name="stock_trials_per_hour", value=3600 * count / stock_s, unit="per hour"),
        Row(
            name="trials_per_hour_vs_stock",
            value=stock_s / ours_s,
            unit="times",
            note=f"same candidates, {len(small)} batches of {batch} (our tuner's)",
        ),
    ]
    if stock_batch is not None:
        ours_s, lost = _ours(task, target, [traces], threads)
        stock_s, stock_lost = _stock(task, target, [traces], initializer)
        failed, stock_failed = failed + lost, stock_failed + stock_lost
        note = f"one batch of {len(traces)} (TVM's default)"
        rows.append(
            Row(name=f"trials_per_hour_vs_stock_{stock_batch}", value=stock_s / ours_s, unit="times", note=note)
        )
    return [
        *rows,
        Row(name="lost_builds", value=failed, unit="count"),
        Row(name="stock_lost_builds", value=stock_failed, unit="count"),
    ]


def _without_packing(task: Any) -> Any:
    """TVM's stock runner cannot run a candidate that packs its weights: it passes them in the layout they had."""
    import tvm

    function = task.mod["main"].without_attr("layout_free_buffers")
    return replace(task, mod=tvm.IRModule({"main": function}))


def _ours(task: Any, target: Target, batches: list[list[Any]], threads: int) -> tuple[float, int]:
    """Seconds, and the number of candidates without a time. The workers start before: once in a tuning run, not once
    in a batch."""
    import tvm

    from tunehub_builder.tuning.runner.pool import PoolOptions, WorkerPool

    workers = len(os.sched_getaffinity(0))
    with WorkerPool(PoolOptions(workers=workers, threads=threads), str(target)) as pool:
        pool.add_task(task.exact, tvm.ir.save_json(task.mod))
        pool.run(task.exact, batches[0][:workers], None)
        began = time.perf_counter()
        outcomes = [outcome for batch in batches for outcome in pool.run(task.exact, batch, None)]
        elapsed = time.perf_counter() - began
    return elapsed, sum(not outcome.run_s for outcome in outcomes)


def _stock(
    task: Any, target: Target, batches: list[list[Any]], initializer: Callable[[], None] | None
) -> tuple[float, int]:
    """The same with ``LocalBuilder`` and ``LocalRunner`` at their defaults, but for the runner's repeats: ours."""
    from tvm.s_tir import meta_schedule as ms

    from tunehub.compiler.schedule.apply import apply_exact
    from tunehub.tir.traces import import_trace
    from tunehub_builder.tuning.runner.messages import MeasureOptions

    options = MeasureOptions()
    evaluator = ms.runner.EvaluatorConfig(
        number=1, repeat=options.repeats, min_repeat_ms=int(options.min_repeat_s * 1e3), enable_cpu_cache_flush=False
    )
    arguments = ms.arg_info.ArgInfo.from_prim_func(task.mod["main"])
    modules = [[apply_exact(task.mod, import_trace(trace)).mod for trace in batch] for batch in batches]
    builder = ms.builder.LocalBuilder(initializer=initializer)
    runner = ms.runner.LocalRunner(evaluator_config=evaluator, timeout_sec=30)
    failed = 0
    began = time.perf_counter()
    for batch in modules:
        built = builder.build([ms.builder.BuilderInput(mod, target) for mod in batch])
        paths = [result.artifact_path for result in built if result.artifact_path is not None]
        futures = runner.run([ms.runner.RunnerInput(path, "cpu", arguments) for path in paths])
        failed += len(batch) - sum(bool(future.result().run_secs) for future in futures)
    return time.perf_counter() - began, failed
