"""Runs a second of a runtime in several streams: processes that share the cores and run at the same time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from tunehub_builder.bench.comparison import RuntimeSession, asked, processes
from tunehub_builder.bench.models import RuntimeRow
from tunehub_builder.bench.runtimes import Runtime
from tunehub_builder.networks import Network

SECONDS = 2.0
_WARM_UP_S = 0.3


class StreamSession(RuntimeSession):
    """In a worker process: one stream of a runtime, on cores of its own where there are enough."""

    def __init__(self, runtime: Runtime, threads: int, stream: int) -> None:
        super().__init__(runtime, threads)
        os.environ["TVM_BIND_THREADS"] = "0"  # TVM would bind the threads of every stream to the same cores
        cores = sorted(os.sched_getaffinity(0))
        own = cores[stream * threads : (stream + 1) * threads]
        if len(own) == threads:
            os.sched_setaffinity(0, own)

    def runs_within(self, seconds: float) -> tuple[int, float]:
        """How many runs ended in so many seconds, and the seconds that they took."""
        runs, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds or not runs:
            self.measurement(1)
            runs += 1
        return runs, taken


def runs_per_second(
    network: Network, runtime: Runtime, *, streams: int, threads: int, seconds: float = SECONDS
) -> float:
    """Of ``runtime``, in ``streams`` processes that share ``threads`` threads. Raises RuntimeError where one fails, and
    OSError where none can be started."""
    each = max(1, threads // streams)
    sessions = {f"stream {at}": partial(StreamSession, runtime, each, at) for at in range(streams)}
    with processes(sessions, threads=each) as workers, ThreadPoolExecutor(streams) as pool:
        for worker in workers.values():
            worker.start()
            asked(worker, "preparation", network)
        for wanted in (_WARM_UP_S, seconds):
            found = list(pool.map(lambda worker: asked(worker, "runs_within", wanted), workers.values()))  # noqa: B023
    return float(sum(runs / taken for runs, taken in found))


def with_throughput(
    rows: Sequence[RuntimeRow], network: Network, runtimes: Mapping[str, Runtime], *, streams: int, threads: int
) -> list[RuntimeRow]:
    """`rows` with the throughput of the runtimes of their names, one after the other; those that failed have none."""
    return [_with_throughput(row, network, runtimes[row.name], streams=streams, threads=threads) for row in rows]


def _with_throughput(row: RuntimeRow, network: Network, runtime: Runtime, *, streams: int, threads: int) -> RuntimeRow:
    if row.median_s is None:
        return row
    try:
        found = runs_per_second(network, runtime, streams=streams, threads=threads)
    except (RuntimeError, OSError) as error:
        return replace(row, error=row.error or f"in {streams} streams: {error}")
    return replace(row, per_s=found * (row.batch or 1))
