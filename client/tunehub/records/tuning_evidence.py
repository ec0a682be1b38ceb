"""What a package's evidence says that tuning is worth, by template: how much faster tuned knobs are than its own.

It is read only when somebody asks what tuning would gain: compiling needs none of it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tunehub.registries.blob_cache import BlobCache, fetch_verified, is_sound
from tunehub.report.model import TunedRatio
from tunehub_registry.evidence import RecordEvidence, read_evidence
from tunehub_registry.package import EVIDENCE, open_package

if TYPE_CHECKING:
    from tunehub.registries.port import Registry
    from tunehub.registries.resolution import Chosen

MIN_WORKLOADS = 5  # fewer say little about another one


def read_tuned_ratios(chosen: Chosen, registry: Registry, cache: BlobCache) -> dict[str, TunedRatio]:
    """The ratios of a package. Raises RegistryUnreadableError, RegistryError or HashMismatchError."""
    sha256 = chosen.entry.sha256
    blob = cache.blob_path(sha256)
    data = blob if is_sound(blob, sha256) else fetch_verified(sha256, lambda: registry.fetch_package(chosen.entry))
    with open_package(data, source=chosen.entry.file) as package:
        if EVIDENCE not in package.names:
            return {}
        with package.open(EVIDENCE) as stream:
            lines = read_evidence(stream, EVIDENCE)
            return tuned_ratios(line for line in lines if isinstance(line, RecordEvidence))


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
