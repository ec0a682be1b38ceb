"""The worker processes for a work directory: they build and measure what its tuner proposes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tunehub.registries.key_scheme import TEMPLATE
from tunehub_builder.tuning.runner.messages import MeasureOptions
from tunehub_builder.tuning.runner.pool import PoolOptions, WorkerPool, warm_up
from tunehub_builder.tuning.runner.worker import TraceSession
from tunehub_builder.tuning.work_directory import RunFile, WorkDirectory

if TYPE_CHECKING:
    from tunehub_builder.fleet.pool import Fleet, FleetPool

# A space of knobs has few choices that are far apart; those that are close are compared at the gate.
_OF_KNOBS = MeasureOptions(repeats=3, min_repeat_s=0.005, cutoff=2.0)


def worker_pool(directory: WorkDirectory, run: RunFile, *, workers: int, threads: int) -> WorkerPool:
    """Workers for what was or is tuned in ``directory``. ``threads`` measure; see :class:`PoolOptions`."""
    options = PoolOptions(workers=workers, threads=threads, log=str(directory.log))
    if run.target.get("kind") == "cuda":
        from tunehub_builder.tuning.runner.cuda_worker import CudaKnobSession, CudaSession, gpu_lock

        kind = CudaKnobSession if run.tuner == TEMPLATE else CudaSession
        pool = WorkerPool(options, run.target, make_session=partial(kind, gpu_lock(directory.path)))
        warm_up(pool.workers, run.target)
        return pool
    if run.tuner != TEMPLATE:
        return WorkerPool(options, run.target)
    from tunehub_builder.tuning.runner.knob_worker import KnobSession

    return WorkerPool(options, run.target, _OF_KNOBS, KnobSession)


def fleet_pool(directory: WorkDirectory, run: RunFile, fleet: Fleet, *, threads: int) -> FleetPool:
    """The same work on a fleet, whose devices measure with ``threads``."""
    from tunehub_builder.fleet.jobs import JobSettings
    from tunehub_builder.fleet.pool import FleetPool
    from tunehub_builder.fleet.worker import cuda_session
    from tunehub_builder.tuning.runner.knob_worker import KnobSession
    from tunehub_builder.tuning.scheduler.cuda import OF_GPU

    make_session: Callable[[], TraceSession] = TraceSession
    measure = MeasureOptions()
    if run.target.get("kind") == "cuda":
        make_session, measure = cuda_session, OF_GPU
    elif run.tuner == TEMPLATE:
        make_session, measure = KnobSession, _OF_KNOBS
    settings = JobSettings(
        target=run.target,
        versions=(run.tvm_version, run.tvm_ffi_version),
        make_session=make_session,
        options=PoolOptions(workers=1, threads=threads, log=str(directory.log) if fleet.engine.is_here else None),
        measure=measure,
        board=fleet.board,
    )
    return FleetPool(fleet, settings, run.target_name)
