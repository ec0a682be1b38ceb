"""Run the zoo on one device: each network is exported when it is not there yet, compiled, checked and measured.

Everything happens in worker processes, one for the exporter and one a runtime, so that what fails, crashes or hangs
there costs one network one of its figures.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec

from benchmarks.processes.gpu_network import alone
from benchmarks.zoo.architectures import Architecture
from benchmarks.zoo.export import ExportedNetwork, ExportSession, is_exported, read_exported
from benchmarks.zoo.results import ZooJournal, ZooResult
from benchmarks.zoo.runtimes import runtimes
from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.compiler.workers.process import WorkerProcess
from tunehub.target.host import physical_cores
from tunehub_builder.bench.comparison import NetworkComparison, RuntimeSession, measured, prepared, processes

_CUTOFF = 5.0  # TVM's default can take a minute a run: one is enough of what is so many times slower
PLANS = {
    "cpu": MeasuringPlan(rounds=5, sample_s=0.2, warm_up_s=0.2, pause_s=0.05, budget_s=6.0, cutoff=_CUTOFF),
    "cuda": MeasuringPlan(rounds=5, sample_s=0.05, warm_up_s=0.05, pause_s=0.001, budget_s=3.0),
}
Workers = Mapping[str, WorkerProcess]


@dataclass(frozen=True, kw_only=True, slots=True)
class ZooRun:
    """What to run where. ``exports``: the folder of exported networks; ``plan`` None: outputs are checked, nothing is
    timed, and TVM's default only runs where tunehub is wrong. ``jobs`` networks are compiled at once, and measured one
    after the other; after ``seconds`` none is begun. ``limit_s``: for one process to export, compile or run a network
    for a while."""

    exports: Path
    device: str = "cpu"
    plan: MeasuringPlan | None = None
    jobs: int = 1
    seconds: float = math.inf
    limit_s: float = 300.0

    def run(self, chosen: Sequence[Architecture], journal: ZooJournal) -> None:
        """The results of those that the journal lacks go there. Raises OSError."""
        known = journal.results()
        queue = _Queue([item for item in chosen if item.name not in known], self.seconds)
        with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(self.jobs) as pool:
            for job in [pool.submit(self._job, queue, lock.name, journal) for _ in range(self.jobs)]:
                job.result()

    def export(self, chosen: Sequence[Architecture]) -> dict[str, str]:
        """Only export; why some failed, by name. Raises OSError."""
        with ThreadPoolExecutor(self.jobs) as pool:
            queue = _Queue(chosen, self.seconds)
            jobs = [pool.submit(self._export_job, queue) for _ in range(self.jobs)]
            return {name: reason for job in jobs for name, reason in job.result().items()}

    def _job(self, queue: _Queue, lock: str, journal: ZooJournal) -> None:
        threads = max(1, physical_cores() // self.jobs)
        found = runtimes(self.device, lock, checking=self.plan is None)
        made = {each.name: partial(RuntimeSession, each, threads) for each in found}
        with processes({"export": ExportSession, **made}, threads=threads) as workers:
            for item in queue:
                result = self._result(item, workers, lock)
                with queue.lock:
                    journal.add(result)
                click.echo(line(result), err=True)

    def _export_job(self, queue: _Queue) -> dict[str, str]:
        failed = {}
        with processes({"export": ExportSession}, threads=1) as workers:
            for item in queue:
                reason = self._exported(item, workers["export"])
                click.echo(f"{item.name}: {reason or 'exported'}", err=True)
                failed |= {item.name: reason} if reason else {}
        return failed

    def _exported(self, item: Architecture, worker: WorkerProcess) -> str:
        """Why it cannot be exported; empty when it is there."""
        folder, with_onnx = self.exports / item.name, self.device == "cpu" and self.plan is not None
        if is_exported(folder, item.form, with_onnx=with_onnx):
            return ""
        if not worker.alive:
            worker.start()
        kind, value = worker.ask(("export", item.name, folder, with_onnx), self.limit_s)
        return "" if kind == "ok" else f"the export failed: {value}"

    def _result(self, item: Architecture, workers: Workers, lock: str) -> ZooResult:
        whole = ZooResult(name=item.name, kind=item.kind, form=item.form, library=item.library, half=item.half)
        runners = {name: worker for name, worker in workers.items() if name != "export"}
        failed = self._exported(item, workers["export"])
        if failed:
            return msgspec.structs.replace(whole, failed=failed)
        network = read_exported(self.exports / item.name)
        if self.plan is None:
            return self._checked(whole, network, runners)
        found = prepared(network, runners, self.limit_s)
        with alone(lock):
            found = measured(found, runners, self.plan, self.limit_s)
        return _facts(whole, found, network)

    def _checked(self, whole: ZooResult, network: ExportedNetwork, runners: Workers) -> ZooResult:
        """TVM's default, which is slow, runs only to say whose a wrong result is."""
        first, second = ({name: runners[name]} for name in ("tunehub", "default"))
        found = _facts(whole, prepared(network, first, self.limit_s), network)
        return found if found.is_right() else _facts(whole, prepared(network, first | second, self.limit_s), network)


class _Queue:
    """Architectures for several threads, until ``seconds`` have passed."""

    def __init__(self, items: Sequence[Architecture], seconds: float) -> None:
        self.lock = threading.Lock()
        self._items = iter(items)
        self._end = time.monotonic() + seconds

    def __iter__(self) -> Iterator[Architecture]:
        while time.monotonic() < self._end:
            with self.lock:
                item = next(self._items, None)
            if item is None:
                return
            yield item


def _facts(whole: ZooResult, found: NetworkComparison, network: ExportedNetwork) -> ZooResult:
    expected = network.expected()
    apart = {name: difference(facts.outputs, expected) for name, facts in found.facts.items()}
    report = found.facts["tunehub"].report if "tunehub" in found.facts else None
    profile = report.profile if report else None
    return msgspec.structs.replace(
        whole,
        differences={name: value if math.isfinite(value) else None for name, value in apart.items()},
        ms={name: found.ms(name) for name in found.samples_s},
        compile_s={name: facts.compile_s for name, facts in found.facts.items()},
        errors=dict(found.errors),
        others_share=profile.others_s / profile.run_s if profile else None,
        rungs={rung: count for rung, count in report.rung_counts().items() if count} if report else {},
        notes=tuple(report.notes) if report else (),
    )


def line(result: ZooResult) -> str:
    """A network as one line of progress."""
    if result.failed:
        return f"{result.name}: {result.failed}"
    right = {name: "right" if result.is_right(name) else "WRONG" for name in result.differences}
    values = {name: "not finite" if value is None else f"{value:.1e}" for name, value in result.differences.items()}
    times = {name: f", {ms:.2f} ms" for name, ms in result.ms.items()}
    parts = [f"{name} {right[name]} ({values[name]}){times.get(name, '')}" for name in right]
    parts += [f"{name} FAILED: {reason}" for name, reason in result.errors.items()]
    return f"{result.name}: " + "; ".join(parts)
