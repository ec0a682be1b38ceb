"""The worker processes for a work directory: they build and measure what its tuner proposes."""

from __future__ import annotations

from functools import partial

from tunehub_builder.sitting import TEMPLATE
from tunehub_builder.tuning.pool import PoolOptions, WorkerPool, warm_up
from tunehub_builder.tuning.worker import MeasureOptions
from tunehub_builder.work_directory import Run, WorkDirectory

# A space of knobs has few choices that are far apart; those that are close race at the gate.
_OF_KNOBS = MeasureOptions(repeats=3, min_repeat_s=0.005, cutoff=2.0)


def worker_pool(directory: WorkDirectory, run: Run, *, workers: int, threads: int) -> WorkerPool:
    """Workers for what was or is tuned in ``directory``. ``threads`` measure; see :class:`PoolOptions`."""
    options = PoolOptions(workers=workers, threads=threads, log=str(directory.log))
    if run.target.get("kind") == "cuda":
        from tunehub_builder.tuning.cuda_worker import CudaSession, gpu_lock

        pool = WorkerPool(options, run.target, make_session=partial(CudaSession, gpu_lock(directory.path)))
        warm_up(pool.workers, run.target)
        return pool
    if run.tuner != TEMPLATE:
        return WorkerPool(options, run.target)
    from tunehub_builder.tuning.knob_worker import KnobSession

    return WorkerPool(options, run.target, _OF_KNOBS, KnobSession)
