"""dask.distributed as the engine of a fleet: workers of a scheduler somewhere, or of a LocalCluster here.

A worker says what it can measure by dask's resources (``--resources "llvm-znver5=1"``). Building jobs may go to any
worker, measuring jobs to those with the resource, and each takes all of it. A job whose worker died is run again by
dask; after so many dead workers that dask gives it up, the candidate is to blame.
"""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from tunehub_builder.exceptions import TuningError
from tunehub_builder.fleet import jobs as fleet_jobs
from tunehub_builder.fleet.pool import Answer, Work
from tunehub_builder.fleet.worker import Facts
from tunehub_builder.tuning.progress import native_output_to
from tunehub_builder.tuning.runner.messages import RunnerResult
from tunehub_builder.tuning.target import HOST, find_cpu
from tunehub_registry.installing import pip_install

SCHEME, LOCAL = "dask://", "local"
_CONNECT_S, _FACTS_S = "15s", 300.0


class DaskEngine:
    """See ``fleet.pool.Engine``."""

    def __init__(self, address: str, local: Sequence[str] = (), workers: int = 1) -> None:
        """``address``: ``dask://HOST:PORT`` of a scheduler; or ``local``, which starts ``workers`` processes here that
        measure for the targets called ``local``."""
        self.is_here = address == LOCAL
        self.name = LOCAL if self.is_here else "dask"
        self._address, self._local, self._workers = address, local, workers
        # Where the machine that builds is the one that measures, all is built first.
        self._priority = -1 if self.is_here else 1
        self._numbers = itertools.count()
        self._run = uuid.uuid4().hex[:8]
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()
        self._client: Any = None

    def __enter__(self) -> DaskEngine:
        distributed = _distributed()
        address = self._address.removeprefix(SCHEME)
        if self.is_here:
            with native_output_to(Path(os.devnull)):  # what its processes say when Ctrl-C reaches them, too
                address = self._stack.enter_context(self._cluster(distributed))
        try:
            client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            remedy = "start one with `dask scheduler`, or mend --engine dask://HOST:PORT"
            raise TuningError(f"no dask scheduler answers at {address} ({error}); {remedy}") from error
        self._client = self._stack.enter_context(client)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()
        self._stack.close()

    def find(self, target_name: str) -> Facts:
        """As the port says: one of the workers with the resource is asked. ``cuda`` is the only GPU of the fleet."""
        device = self._device(target_name)
        future = self._client.submit(fleet_jobs.facts, device, resources={device: 1}, pure=False)
        try:
            found: Facts = future.result(timeout=_FACTS_S)
        except Exception as error:
            raise _as_tuning_error(error, "it was asked what it is") from error
        if not found.can_link:
            raise TuningError(f"a worker with {device} has no C compiler to link candidates with: install gcc there")
        return found

    def devices(self, target_name: str) -> int:
        """As the port says."""
        return sum(target_name in resources for resources in self._resources())

    def threads(self) -> int:
        """As the port says."""
        return sum(int(count) for count in self._client.nthreads().values())

    def start(self, work: Work, device: str | None, answer: Answer) -> None:
        """As the port says."""
        name = f"{work.task[:8]}-{self._run}-{next(self._numbers)}"
        submit = partial(self._client.submit, pure=False)
        arguments = (work.settings, work.task, work.module, work.candidate)
        built = submit(fleet_jobs.build, *arguments, key=f"tunehub-build-{name}")
        needs = None if device is None else {device: 1}
        key = f"tunehub-measure-{name}"
        future = submit(
            fleet_jobs.measure, work.settings, built, work.best_s, key=key, resources=needs, priority=self._priority
        )
        self._open[key] = future  # dask gives up what nobody holds
        future.add_done_callback(partial(self._done, key, answer))

    def _done(self, key: str, answer: Answer, future: Any) -> None:
        """In a thread of dask's client."""
        if self._open.pop(key, None) is None:  # given up
            return
        try:
            answer(future.result())
        except Exception as error:  # whatever dask makes of a job that failed or was lost
            if type(error).__name__ == "KilledWorker":
                answer(RunnerResult(error=f"its jobs were lost with every worker that had them: {error}"[:300]))
            else:
                answer(_as_tuning_error(error, "it built or measured"))

    def _resources(self) -> list[dict[str, float]]:
        """What each worker offers."""
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except Exception as error:
            raise _as_tuning_error(error, "it was asked for its workers") from error
        return [dict(worker.get("resources") or {}) for worker in workers.values()]

    def _device(self, target_name: str) -> str:
        """The resource for a target. Raises TuningError when no worker has it."""
        offered = sorted({name for resources in self._resources() for name in resources})
        wanted = f"llvm-{find_cpu(HOST).model}" if target_name == HOST else target_name
        gpus = [name for name in offered if name.startswith("cuda-")]
        if target_name == "cuda" and len(gpus) == 1:
            wanted = gpus[0]
        if wanted not in offered:
            known = ", ".join(offered) or "no resources"
            remedy = f'start one with `dask worker HOST:PORT --nthreads 1 --resources "{wanted}=1"`'
            raise TuningError(f"no dask worker offers {wanted} (they offer {known}); {remedy}")
        return wanted

    def _cluster(self, distributed: Any) -> Any:
        return distributed.LocalCluster(
            n_workers=self._workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            memory_limit=0,
            resources=dict.fromkeys(self._local, 1),
            silence_logs=logging.CRITICAL,
        )


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise TuningError(f"--engine needs dask.distributed ({error}): {pip_install('fleet')}") from error
    for name in ("distributed", "distributed.client", "tornado.application"):  # what has a handler of its own
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # workers that come and go are no errors
    return distributed


def _as_tuning_error(error: Exception, when: str) -> TuningError:
    if isinstance(error, TuningError):
        return error
    remedy = "what was measured is in the work directory; see that scheduler and workers run, and run the same again"
    reason = (str(error).strip().splitlines() or [""])[0]
    return TuningError(f"the fleet failed when {when}: {type(error).__name__}: {reason}; {remedy}")
