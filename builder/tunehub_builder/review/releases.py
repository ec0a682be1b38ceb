"""A submitted package on other releases of TVM, as `tunehub replay` does it: what a registry should know before.

A function as TVM's JSON is read by the release that wrote it, so workloads are those of networks that can be built by
name. A record that fails there is no reason to refuse it: `tunehub attach` publishes that, and clients leave it out.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunehub.target.tvm_releases import TVMRelease
from tunehub_builder.replay.run import Environment, OnRelease, replay
from tunehub_registry.compat import Compat
from tunehub_registry.review import ReviewFinding


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherReleases:
    """Releases to replay on, beside the installed TVM, the Python of each, and who is told of it."""

    releases: Sequence[TVMRelease]
    environment: Environment
    on_release: OnRelease

    def replayed(self, package: bytes, name: str) -> Compat:
        """What comes of the records. Raises BuilderError when an environment cannot be made."""
        with tempfile.TemporaryDirectory(prefix="tunehub-review-") as folder:
            path = Path(folder) / name
            path.write_bytes(package)
            return replay(path, self.releases, self.environment, self.on_release)


def release_notes(compat: Compat) -> Iterator[ReviewFinding]:
    """A line for each release, and one for each record that it cannot use."""
    for release in compat.releases:
        counts = Counter(item.outcome for item in release.records)
        said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no records for it"
        yield ReviewFinding(where=f"TVM {release.tvm}", reason=said)
        for item in release.records:
            if item.outcome == "failed":
                yield ReviewFinding(where=item.key, reason=f"fails on TVM {release.tvm}: {item.reason}")
