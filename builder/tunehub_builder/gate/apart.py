"""Variants of a network timed in new processes, in turns: what memory one process gets makes it up to a tenth faster or
slower than the next one with the same code, for as long as it runs."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tunehub.comparison.protocol import MeasuringPlan, in_turns
from tunehub_builder.gate.comparison import BuildLimits
from tunehub_builder.gate.network_session import NetworkSession
from tunehub_builder.gate.network_times import NetworkJob, NotTimedError, VariantTimes, variant_timer
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker

PROCESSES = 3  # of each variant, where nothing else is said


@dataclass(frozen=True, kw_only=True, slots=True)
class Apart:
    """How variants are timed apart: workers with ``options`` and a ``session``, by a ``plan`` within ``limits``."""

    options: PoolOptions
    session: Callable[[], NetworkSession]
    plan: MeasuringPlan
    limits: BuildLimits

    def timed(self, worker: Worker, job: NetworkJob, measured: dict[str, VariantTimes]) -> dict[str, VariantTimes]:
        """``measured`` with a median of each new process in place of the samples of ``worker``, which has built the
        variants and is stopped; as it is where one of those that are compared in this way does not run."""
        if job.processes < 2 or any(name not in measured or measured[name].reason for name in job.apart):
            return measured
        with tempfile.TemporaryDirectory() as folder:
            files = {name: str(Path(folder) / f"{name}.so") for name in job.apart}
            for name, file in files.items():
                kind, told = worker.ask(("keep", name, file), self.limits.build_s)
                if kind != "ok":
                    return {**measured, name: replace(measured[name], reason=f"cannot be written ({name}): {told}")}
            worker.stop(at_once=True)
            samples: dict[str, list[float]] = {name: [] for name in files}
            for turn in range(job.processes):
                for name in list(files)[:: -1 if turn % 2 else 1]:
                    try:
                        samples[name].append(self._median(job, name, files[name]))
                    except NotTimedError as error:
                        return {**measured, name: replace(measured[name], reason=f"cannot be timed: {error}")}
        return {**measured, **{name: replace(measured[name], run_s=tuple(found)) for name, found in samples.items()}}

    def _median(self, job: NetworkJob, name: str, file: str) -> float:
        worker = Worker(self.options, self.session)
        try:
            worker.load(job.name, job.case)
            kind, told = worker.ask(("take", name, file), self.limits.build_s)
            if kind != "ok":
                raise NotTimedError(name, str(told))
            timers = ({name: variant_timer(worker, name, self.limits, patient)} for patient in (True, False))
            samples, rough = timers
            return statistics.median(in_turns(samples, self.plan, rough=rough)[name])
        finally:
            worker.stop(at_once=True)
