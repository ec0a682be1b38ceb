"""Latency of a network with each of several runtimes, side by side: each in a process of its own, all in turns.

In one process runtimes disturb each other, since each has threads of its own that spin for a while when idle. While one
process measures, the others wait for their parent's next request.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import MeasuringPlan, Timer, in_turns, wall_timer
from tunehub.compiler.workers.process import Answer, NewInterpreter, WorkerProcess
from tunehub_builder.bench.runtimes import Arrays, Runtime
from tunehub_builder.networks import Network

if TYPE_CHECKING:
    from tunehub.report.report import Report

PLAN = MeasuringPlan(rounds=7, sample_s=0.25, warm_up_s=0.25, pause_s=0.05, budget_s=12.0)
_LIMIT_S = 1800.0  # for a request: compiling, or running for a while
_NAN = float("nan")


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeFacts:
    """What a runtime's process says of a network before it is timed. Seconds; ``report`` is tunehub's.

    ``first_s``: of the first run, which gave the ``outputs``. ``library_bytes``: of the exported library, if known.
    """

    compile_s: float = _NAN
    first_s: float = _NAN
    outputs: Arrays = field(default_factory=list)
    report: Report | None = None
    library_bytes: int | None = None


class RuntimeSession:
    """In a worker process: one runtime, and the network that it prepared last. Public methods are the requests,
    and name them in errors."""

    def __init__(self, runtime: Runtime, threads: int) -> None:
        self._runtime = runtime
        self._threads = threads
        self._timer: Timer | None = None
        self._run: Callable[[], Arrays] | None = None

    def preparation(self, network: Network) -> RuntimeFacts:
        """Compile or load ``network`` and run it once. Raises what the runtime raises."""
        return self.first_run(self.compilation(network))

    def compilation(self, network: Network) -> RuntimeFacts:
        """Compile or load ``network``: the first half of :meth:`preparation`."""
        self._timer = self._run = None
        gc.collect()
        prepared = self._runtime.prepare(network, self._threads)
        self._timer, self._run = prepared.timer or wall_timer(prepared.run), prepared.run
        return RuntimeFacts(compile_s=prepared.compile_s, report=prepared.report, library_bytes=prepared.library_bytes)

    def first_run(self, facts: RuntimeFacts) -> RuntimeFacts:
        """``facts`` of what was compiled last, with those of a run: the second half of :meth:`preparation`."""
        assert self._run is not None, "compilation comes first"
        began = time.perf_counter()
        outputs = self._run()
        return replace(facts, first_s=time.perf_counter() - began, outputs=outputs)

    def latencies(self, runs: int) -> list[float]:
        """Seconds of each of so many runs, one after the other."""
        return [self.measurement(1) for _ in range(runs)]

    def measurement(self, runs: int) -> float:
        """Mean seconds of so many runs, one after the other."""
        assert self._timer is not None, "preparation comes first"
        return self._timer(runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkComparison:
    """A network by runtime: ``facts``, and ``samples_s``, seconds of one run; ``errors``: why a runtime has no times.

    What is not known of a runtime is NaN.
    """

    name: str
    facts: Mapping[str, RuntimeFacts]
    samples_s: Mapping[str, Sequence[float]]
    errors: Mapping[str, str]

    def ms(self, runtime: str) -> float:
        """The median in milliseconds."""
        return 1e3 * median(self.samples_s[runtime]) if self.samples_s.get(runtime) else _NAN

    def ratio(self, runtime: str, other: str) -> float:
        """The time with ``runtime`` over that with ``other``."""
        return self.ms(runtime) / self.ms(other)

    def compile_s(self, runtime: str) -> float:
        """Seconds that compiling or loading took."""
        return self.facts[runtime].compile_s if runtime in self.facts else _NAN

    def max_rel_diff(self, runtime: str) -> float:
        """The largest difference of its outputs from those of any other, relative to the largest value of an output."""
        others = [facts.outputs for name, facts in self.facts.items() if name != runtime and facts.outputs]
        if runtime not in self.facts or not others:
            return _NAN
        return max(difference(self.facts[runtime].outputs, other) for other in others)


@contextmanager
def processes(
    sessions: Mapping[str, Callable[[], Any]], *, threads: int, pythons: Mapping[str, str] | None = None
) -> Iterator[Mapping[str, WorkerProcess]]:
    """A process for each session by its name, with ``threads`` threads for TVM's pool; ``pythons``: interpreters of
    other environments, by name. They end with the context.

    Raises OSError when one cannot be started.
    """
    with ExitStack() as stack:
        workers = {}
        for name, make_session in sessions.items():
            python = (pythons or {}).get(name)
            launcher = NewInterpreter(python=python) if python else None
            workers[name] = WorkerProcess(make_session, threads=threads, launcher=launcher)
            stack.callback(workers[name].stop, at_once=True)
        yield workers


def runtime_processes(
    runtimes: Sequence[Runtime], *, threads: int
) -> AbstractContextManager[Mapping[str, WorkerProcess]]:
    """As :func:`processes`, for :func:`compare`."""
    return processes({each.name: partial(RuntimeSession, each, threads) for each in runtimes}, threads=threads)


def compare(
    network: Network, workers: Mapping[str, WorkerProcess], plan: MeasuringPlan = PLAN, limit_s: float = _LIMIT_S
) -> NetworkComparison:
    """Prepare and measure ``network`` in each process. One that fails or passes ``limit_s`` costs only its own times:
    it has an error, and a new process for the next network."""
    return measured(prepared(network, workers, limit_s), workers, plan, limit_s)


def prepared(network: Network, workers: Mapping[str, WorkerProcess], limit_s: float = _LIMIT_S) -> NetworkComparison:
    """The first half of :func:`compare`: no samples yet."""
    answers = {}
    for name, worker in workers.items():
        if not worker.alive:
            worker.start()
        answers[name] = worker.ask(("preparation", network), limit_s)
    return _answered(network, answers)


def prepared_at_once(
    network: Network, workers: Mapping[str, WorkerProcess], once: str, once_s: float, limit_s: float = _LIMIT_S
) -> NetworkComparison:
    """As :func:`prepared`, but all compile at the same time, and the runtime ``once`` has its first run when nothing
    else is at work: it is its only sample. It has no more than ``once_s`` seconds for it, and no sample if that is too
    short."""
    for name, worker in workers.items():
        if not worker.alive:
            worker.start()
        worker.send(("compilation" if name == once else "preparation", network))
    answers = {name: worker.receive(limit_s, "preparation") for name, worker in workers.items()}
    ready = _answered(network, answers)
    if once not in ready.facts:
        return ready
    kind, value = workers[once].ask(("first_run", ready.facts[once]), once_s)
    if kind == "ok":
        return replace(ready, facts={**ready.facts, once: value}, samples_s={once: (value.first_s,)})
    if not workers[once].alive and "limit" in str(value):
        return ready
    return replace(ready, errors={**ready.errors, once: value})


def _answered(network: Network, answers: Mapping[str, Answer]) -> NetworkComparison:
    facts = {name: value for name, (kind, value) in answers.items() if kind == "ok"}
    errors = {name: str(value) for name, (kind, value) in answers.items() if kind != "ok"}
    return NetworkComparison(name=network.name, facts=facts, samples_s={}, errors=errors)


def measured(
    ready: NetworkComparison,
    workers: Mapping[str, WorkerProcess],
    plan: MeasuringPlan = PLAN,
    limit_s: float = _LIMIT_S,
) -> NetworkComparison:
    """The second half of :func:`compare`. A first run beyond the plan's cutoff is all that a runtime gets; one that has
    samples, or had no first run, gets no more."""
    limit = plan.cutoff * min((facts.first_s for facts in ready.facts.values()), default=0.0)
    slow = {name: (facts.first_s,) for name, facts in ready.facts.items() if facts.first_s > limit}
    done = {**slow, **ready.samples_s}
    turns = {name: None for name, facts in ready.facts.items() if name not in done and facts.outputs}
    found = _in_turns(ready, turns, workers, plan, limit_s)
    return replace(found, samples_s={**found.samples_s, **done})


def measured_each(
    ready: NetworkComparison,
    workers: Mapping[str, WorkerProcess],
    plan: MeasuringPlan = PLAN,
    limit_s: float = _LIMIT_S,
) -> NetworkComparison:
    """As :func:`measured`, but its samples are the seconds of every run that is not there to warm up."""
    return _in_turns(ready, {name: [] for name in ready.facts}, workers, plan, limit_s)


def _in_turns(
    ready: NetworkComparison,
    kept: Mapping[str, list[float] | None],
    workers: Mapping[str, WorkerProcess],
    plan: MeasuringPlan,
    limit_s: float,
) -> NetworkComparison:
    """``ready`` with samples of the runtimes of ``kept``: means, or the seconds of each run where these are kept."""
    errors = dict(ready.errors)
    rough = {name: _timer(name, workers[name], errors, limit_s) for name in kept}
    timers = {name: _timer(name, workers[name], errors, limit_s, runs) for name, runs in kept.items()}
    means = in_turns(timers, plan, rough=rough)
    samples = {name: tuple(kept[name] or ()) or means[name] for name in means if name not in errors}
    return replace(ready, samples_s=samples, errors=errors)


def asked(worker: WorkerProcess, *request: object) -> Any:
    """The answer to a request. Raises RuntimeError when there is none."""
    kind, value = worker.ask(request, _LIMIT_S)
    if kind != "ok":
        raise RuntimeError(value)
    return value


def _timer(
    name: str, worker: WorkerProcess, errors: dict[str, str], limit_s: float, kept: list[float] | None = None
) -> Timer:
    """Times of a process. One that failed, which ``errors`` then says, is infinitely slow: that ends its turns.
    ``kept`` gets the seconds of each run."""

    def timed(runs: int) -> float:
        if name in errors:
            return math.inf
        kind, value = worker.ask(("measurement" if kept is None else "latencies", runs), limit_s)
        if kind != "ok":
            errors[name] = value
            return math.inf
        if kept is None:
            return float(value)
        kept.extend(value)
        return sum(value) / len(value)

    return timed
