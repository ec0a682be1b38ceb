"""The gate's second half: whole networks with a set of records, against TVM's default and against other sets.

A record that wins alone can lose in a network: it meets other layouts around it, other caches, and other records. The
default and every variant run in one process, in turns. What the variants are is the business of a
:class:`NetworkBackend`, one for each generation of TVM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from tunehub.comparison.difference import difference_reason, tolerance
from tunehub.comparison.protocol import MeasuringPlan, in_turns, noise_reason
from tunehub_builder.gate.comparison import BuildLimits
from tunehub_builder.gate.journal import judge_due
from tunehub_builder.gate.network_session import DEFAULT, NetworkSession
from tunehub_builder.gate.places import judge_at_once
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker
from tunehub_registry.evidence import Accuracy
from tunehub_registry.machine_profile import MachineProfile, encode_profile

TOLERANCE = tolerance()


class NetworkVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one network with one set of records: a line of a journal.

    ``variant`` is empty where a network has one set only. ``digest`` names the records, ``keys`` are their workloads
    where that matters. ``default_s``, ``plain_s`` (without records) and ``tuned_s`` are samples in seconds.
    ``tolerance`` is the most that ``difference`` may be. ``rungs``: the workloads that each rung served. ``precision``:
    ``bf16`` or ``int8``. ``accuracy``: beside another runtime, where there is one.
    """

    network: str
    variant: str = ""
    digest: str
    threads: int
    admitted: bool
    reason: str | None = None
    default_s: tuple[float, ...] = ()
    plain_s: tuple[float, ...] = ()
    tuned_s: tuple[float, ...] = ()
    difference: float | None = None
    tolerance: float = TOLERANCE
    keys: tuple[str, ...] = ()
    rungs: dict[str, int] = {}
    precision: str = "float32"
    accuracy: Accuracy | None = None

    @property
    def subject(self) -> tuple[str, str]:
        """The network and the variant."""
        return self.network, self.variant

    @property
    def name(self) -> str:
        """``resnet-18 (graph)``, or the network's name alone."""
        return f"{self.network} ({self.variant})" if self.variant else self.network


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkVariant:
    """One way to compile a network: its name, what else a session's ``build`` takes, and how far outputs may differ."""

    name: str
    arguments: tuple[Any, ...] = ()
    tolerance: float = TOLERANCE


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantTimes:
    """What is known about one variant after measuring; ``reason`` says why it is not measured to the end. ``told`` is
    what the build returned, ``accuracy`` what the session said of it."""

    run_s: tuple[float, ...] = ()
    difference: float | None = None
    reason: str | None = None
    told: Any = None
    accuracy: Accuracy | None = None


NOT_MEASURED = VariantTimes(reason="was not measured")


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkJob:
    """A network to measure: ``case`` is what a session opens. Without any of ``needed`` the others say nothing.
    ``compared``: of these variants the session is asked for their accuracy on so many inputs."""

    name: str
    case: str
    variants: Sequence[NetworkVariant]
    needed: frozenset[str] = field(default=frozenset({DEFAULT}))
    compared: Mapping[str, int] = field(default_factory=dict)


_Case = TypeVar("_Case", contravariant=True)


class NetworkBackend(Protocol[_Case]):
    """Networks and their sets of records, for one generation of TVM."""

    @property
    def plan(self) -> MeasuringPlan: ...

    @property
    def limits(self) -> BuildLimits: ...

    @property
    def sessions(self) -> Sequence[Callable[[], NetworkSession]]:
        """What makes a worker's session on each device; it can be pickled."""

    def wanted(self, case: _Case) -> Mapping[Hashable, str]:
        """The keys of the network's verdicts with the digests of the records that they must be about."""

    def opened(self, case: _Case) -> AbstractContextManager[NetworkJob]:
        """The network as workers take it. Raises NetworkError."""

    def verdicts(self, case: _Case, measured: Mapping[str, VariantTimes], threads: int) -> Sequence[NetworkVerdict]:
        """What the measurements mean. Pure."""


def check_networks(
    backend: NetworkBackend[_Case],
    journal: LineJournal[NetworkVerdict],
    cases: Sequence[_Case],
    options: PoolOptions,
    show: Callable[[NetworkVerdict, int, int], None],
) -> list[NetworkVerdict]:
    """Judge the networks of which a verdict is due, with all their sets anew; return the verdicts on all of them.

    ``show``: see :func:`judge_due`. Raises WorkDirectoryError, NetworkError and TuningError.
    """
    judge = partial(judge_networks, backend, options=options)
    return judge_due(journal, cases, backend.wanted, options.threads, judge, show)


def judge_networks(
    backend: NetworkBackend[_Case], cases: Iterable[_Case], options: PoolOptions
) -> Iterator[Sequence[NetworkVerdict]]:
    """Yield the verdicts on each network, measured in a process of its own, on all devices at once.

    Raises TuningError, NetworkError.
    """

    def judge(cases: Iterator[_Case], session: Callable[[], NetworkSession]) -> Iterator[Sequence[NetworkVerdict]]:
        for case in cases:
            with backend.opened(case) as job:
                worker = Worker(options, session)
                try:
                    measured = measure_variants(worker, job, backend.plan, backend.limits)
                finally:
                    worker.stop(at_once=True)
            yield backend.verdicts(case, measured, options.threads)

    return judge_at_once(cases, backend.sessions, judge)


def reason_against(measured: Mapping[str, VariantTimes], variant: str) -> str | None:
    """Why a variant may not be published, by itself: it does not work, or is not faster than the default."""
    default, times = measured.get(DEFAULT, NOT_MEASURED), measured.get(variant, NOT_MEASURED)
    return default.reason or times.reason or noise_reason(default.run_s, times.run_s)


def digest_of(data: bytes, profile: MachineProfile | None = None) -> str:
    """A short name of some records, and of the profile of the machine that goes along with them."""
    return hashlib.sha256(data + (b"" if profile is None else encode_profile(profile))).hexdigest()[:16]


def measure_variants(
    worker: Worker, job: NetworkJob, plan: MeasuringPlan, limits: BuildLimits
) -> dict[str, VariantTimes]:
    """Build, compare and time all variants; those that end the process are left out of the next attempt."""
    failed: dict[str, VariantTimes] = {}
    while True:
        left = [variant for variant in job.variants if variant.name not in failed]
        found, complete = _attempt(worker, job, left, plan, limits)
        failed |= {name: times for name, times in found.items() if times.reason is not None}
        if complete or job.needed & failed.keys() or len(failed) >= len(job.variants) - 1:
            return _with_accuracy(worker, job, {**found, **failed}, limits)


def _with_accuracy(
    worker: Worker, job: NetworkJob, measured: dict[str, VariantTimes], limits: BuildLimits
) -> dict[str, VariantTimes]:
    """``measured`` with the accuracy of what can be published; after all times, since another runtime takes threads."""
    for name, inputs in job.compared.items():
        if not worker.alive or measured.get(name, NOT_MEASURED).reason is not None:
            continue
        kind, found = worker.ask(("accuracy", name, inputs), limits.run_s)
        changes = {"accuracy": found} if kind == "ok" else {"reason": f"cannot be compared ({name}): {found}"}
        measured[name] = replace(measured[name], **changes)
    return measured


def _attempt(
    worker: Worker, job: NetworkJob, variants: Sequence[NetworkVariant], plan: MeasuringPlan, limits: BuildLimits
) -> tuple[dict[str, VariantTimes], bool]:
    """What was found, and whether that is all; not when a variant has ended the process or cannot be timed."""
    worker.load(job.name, job.case)
    found: dict[str, VariantTimes] = {}
    for variant in variants:
        found[variant.name] = _built(worker, variant, limits)
        if not worker.alive or (variant.name in job.needed and found[variant.name].reason is not None):
            return found, False
    running = [name for name, times in found.items() if times.reason is None]
    samples, rough = ({name: _timer(worker, name, limits, patient) for name in running} for patient in (True, False))
    try:
        timed = in_turns(samples, plan, rough=rough)
    except _NotTimedError as error:
        return {**found, error.variant: VariantTimes(reason=f"cannot be timed: {error}")}, False
    return {**found, **{name: replace(found[name], run_s=run_s) for name, run_s in timed.items()}}, True


def _built(worker: Worker, variant: NetworkVariant, limits: BuildLimits) -> VariantTimes:
    """Build one variant and compare its outputs with the default's."""
    kind, told = worker.ask(("build", variant.name, *variant.arguments), limits.build_s)
    if kind != "ok":
        return VariantTimes(reason=f"does not build ({variant.name}): {told}")
    kind, value = worker.ask(("difference", variant.name), limits.run_s)
    if kind != "ok":
        return VariantTimes(reason=f"does not run ({variant.name}): {value}", told=told)
    return VariantTimes(difference=value, reason=difference_reason(value, variant.tolerance), told=told)


def _timer(worker: Worker, variant: str, limits: BuildLimits, patient: bool) -> Callable[[int], float]:
    def timed(runs: int) -> float:
        kind, value = worker.ask(("time", variant, runs, patient), limits.run_s)
        if kind != "ok" or not value > 0:
            raise _NotTimedError(variant, str(value))
        return float(value)

    return timed


class _NotTimedError(Exception):
    def __init__(self, variant: str, reason: str) -> None:
        super().__init__(reason)
        self.variant = variant
