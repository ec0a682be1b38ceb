"""What a package's evidence says that tuning is worth, by template: how much faster tuned knobs are than its own; and
how near networks with its records are to another runtime.

It is read only when somebody asks for a report with that: compiling needs none of it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunehub.registries.blob_cache import BlobCache
from tunehub.report.model import NetworkAccuracy, TunedRatio
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence, evidence_in
from tunehub_registry.package import open_package

if TYPE_CHECKING:
    from tunehub.registries.port import Registry
    from tunehub.registries.resolution import Chosen

MIN_WORKLOADS = 5  # fewer say little about another one


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageEvidence:
    """By template what tuned knobs are worth, and what is known of the accuracy of networks."""

    ratios: Mapping[str, TunedRatio] = field(default_factory=dict)
    networks: tuple[NetworkAccuracy, ...] = ()


def read_package_evidence(chosen: Chosen, registry: Registry, cache: BlobCache) -> PackageEvidence:
    """What a package's evidence says. Raises RegistryUnreadableError, RegistryError or HashMismatchError."""
    data = cache.kept_or(chosen.entry.sha256, lambda: registry.fetch_package(chosen.entry))
    with open_package(data, source=chosen.entry.file) as package:
        lines = list(evidence_in(package))
    ratios = tuned_ratios(line for line in lines if isinstance(line, RecordEvidence))
    networks = filter(None, (network_accuracy(line) for line in lines if isinstance(line, NetworkEvidence)))
    return PackageEvidence(ratios=ratios, networks=tuple(networks))


def network_accuracy(line: NetworkEvidence) -> NetworkAccuracy | None:
    """What a line of evidence says of a network's accuracy; None where that was not measured."""
    found = line.accuracy or None
    if found is None:
        return None
    return NetworkAccuracy(
        network=line.network,
        precision=line.precision or "float32",
        inputs=found.inputs,
        rows=found.rows,
        same_class=found.same_class,
        difference=found.max_rel_diff,
    )


def tuned_ratios(evidence: Iterable[RecordEvidence]) -> dict[str, TunedRatio]:
    """By template the median of (time with default knobs ÷ tuned time), where enough workloads have both."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in evidence:
        if line.admitted and line.template and line.untuned_s:
            found[line.template].append(line.untuned_s / line.tuned_s)
    return {
        template: TunedRatio(median=statistics.median(ratios), count=len(ratios))
        for template, ratios in sorted(found.items())
        if len(ratios) >= MIN_WORKLOADS
    }
