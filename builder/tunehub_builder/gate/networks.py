"""The gate's second half: whole networks with a set of records, against TVM's default and against other sets.

A record that wins alone can lose in a network: it meets other layouts around it, other caches, and other records. The
default and every variant run in one process, in turns; which of two is faster, new processes of each say. What the
variants are is the business of a :class:`NetworkBackend`, one for each generation of TVM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from tunehub.comparison.protocol import MeasuringPlan, noise_reason
from tunehub_builder.gate.apart import Apart
from tunehub_builder.gate.comparison import BuildLimits
from tunehub_builder.gate.journal import judge_due
from tunehub_builder.gate.network_session import DEFAULT, NetworkSession
from tunehub_builder.gate.network_times import NOT_MEASURED, TOLERANCE, NetworkJob, VariantTimes, measure_variants
from tunehub_builder.gate.places import judge_at_once
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker
from tunehub_registry.evidence import Accuracy
from tunehub_registry.machine_profile import MachineProfile, encode_profile


class NetworkVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one network with one set of records: a line of a journal.

    ``variant`` is empty where a network has one set only. ``digest`` names the records, ``keys`` are their workloads
    where that matters. ``default_s``, ``plain_s`` (without records) and ``tuned_s`` are samples in seconds.
    ``tolerance`` is the most that ``difference`` may be. ``rungs``: the workloads that each rung served. ``precision``:
    ``bf16`` or ``int8``. ``accuracy``: beside another runtime, where there is one. ``processes``: of more than one
    ``plain_s`` and ``tuned_s`` are the medians.
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
    processes: int = 1

    @property
    def subject(self) -> tuple[str, str]:
        """The network and the variant."""
        return self.network, self.variant

    @property
    def name(self) -> str:
        """``resnet-18 (graph)``, or the network's name alone."""
        return f"{self.network} ({self.variant})" if self.variant else self.network


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
                    apart = Apart(options=options, session=session, plan=backend.plan, limits=backend.limits)
                    measured = apart.timed(worker, job, measured)
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
