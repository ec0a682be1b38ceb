"""A package's networks beside what rules have today: end to end with its records and without any, both by the machine
profile that it brings along."""

from __future__ import annotations

import tempfile
from collections.abc import Container, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from tunehub_builder import networks
from tunehub_builder.backends.relax.network_gate import RelaxNetworks, network_cases
from tunehub_builder.backends.relax.network_worker import RelaxNetworkCase
from tunehub_builder.gate.check import records_of
from tunehub_builder.gate.disturbance import UNJUDGED, is_disturbed, unjudged_of, until_undisturbed
from tunehub_builder.gate.evidence import measured_network
from tunehub_builder.gate.judged import network_of
from tunehub_builder.gate.networks import NetworkVerdict, judge_networks
from tunehub_builder.gate.packages import opened
from tunehub_builder.gate.report import shown_on
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import PoolOptions
from tunehub_registry.evidence import NetworkEvidence, evidence_in
from tunehub_registry.package import Package

JudgedNetwork = tuple[NetworkVerdict, NetworkEvidence | None]


def judged_networks(
    path: Path,
    names: Sequence[str],
    models: Sequence[Path],
    done: Container[str],
    resources: Resources,
    stream: TextIO,
    *,
    processes: int,
) -> Iterator[JudgedNetwork]:
    """The networks called ``names`` and those in the files ``models``; without either, those that the package has
    end-to-end times of and that are known by name; but not those ``done``. In so many ``processes`` with the records
    and by rules each. The evidence on each with its verdict: none where other programs disturbed it, or where it does
    not compute the same. What is disturbed comes again behind all others.

    Raises as :func:`tunehub_builder.gate.check.check_package`.
    """
    show = shown_on(stream)
    with tempfile.TemporaryDirectory() as folder:
        with opened(path) as package:
            file = records_of(package, Path(folder))
            wanted = names if names or models else _timed(package)
            cases = network_cases(package.manifest.networks, wanted, models, file) if wanted or models else []
            cases = [case for case in cases if case.name not in done]
        options = PoolOptions(workers=1, threads=resources.threads, log=str(Path(folder) / "native.log"))
        backend = RelaxNetworks.of(file, processes)

        def judge(some: Sequence[RelaxNetworkCase]) -> Iterator[JudgedNetwork]:
            return (network_again(verdict) for (verdict,) in judge_networks(backend, some, options))

        def unjudged(found: JudgedNetwork) -> Iterator[Hashable]:
            return unjudged_of([found[0]])

        for found, position, count in until_undisturbed(cases, backend.wanted, judge, unjudged):
            show(found[0], position, count)
            yield found


def network_again(verdict: NetworkVerdict) -> JudgedNetwork:
    """What a gate's verdict says of a published network: it is admitted where it is not slower with the records."""
    line = measured_network(verdict)
    if line is None or not line.over_rules:
        return verdict, None
    if any(map(is_disturbed, (verdict.plain_s, verdict.tuned_s))):
        return msgspec.structs.replace(verdict, reason=UNJUDGED), None
    slower = f"{line.over_rules:.3g} times as fast with the records as without" if line.is_slower else None
    return msgspec.structs.replace(verdict, admitted=slower is None, reason=slower), line


def _timed(package: Package) -> list[str]:
    lines = (network_of(line.network) for line in evidence_in(package) if isinstance(line, NetworkEvidence))
    return sorted(name for name in set(lines) if networks.is_known(name))
