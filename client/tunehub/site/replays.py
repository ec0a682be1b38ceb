"""What pages say of replays: on which releases of TVM a package's records work. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tunehub.site.contents import PackageContents, RecordName
from tunehub.site.releases import releases_of
from tunehub_registry.compat import Compat, NetworkSample, RecordReplay, release_of
from tunehub_registry.manifest import RecordSet
from tunehub_registry.printable import plain

MOST_TUNERS = 20  # rows of a matrix: a document may name any number
MOST_REASONS = 50  # rows of a page
EXAMPLES = 4  # operators of a row
_NUMBERED = re.compile(r"\w*\d\w*")
_Outcomes = Mapping[str, Mapping[tuple[str, str], str]]  # release → (tuner, key) → outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayCounts:
    """How many records came out how; see `compat.RecordReplay`."""

    ok: int = 0
    differs: int = 0
    failed: int = 0
    not_run: int = 0

    @property
    def works(self) -> int:
        """Those that the release can use."""
        return self.ok + self.differs

    @property
    def total(self) -> int:
        """All of them."""
        return self.ok + self.differs + self.failed + self.not_run


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRow:
    """A tuner's records, release by release; None where a release serves none of them."""

    tuner: str
    cells: tuple[ReplayCounts | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayReason:
    """Why `count` records do not work on a release, or nobody could try; `operators` are some of theirs."""

    release: str
    tuner: str
    outcome: str
    reason: str
    count: int
    operators: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleView:
    """A whole network that was compiled with the package's records, which served so many of its workloads.

    `ran`: its outputs were compared with those of TVM's default. `failed` says why it did not work; empty if it did.
    """

    release: str
    network: str
    workloads: int
    by_record: int
    ran: bool
    failed: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaysView:
    """The matrix; `releases` are pairs of a release and the whole version, oldest first, `sums` the last row.

    `missing` are releases that the package states and nobody replayed; the sums have the tuners of `more_tuners`, too.
    """

    created: str
    created_by: str
    releases: tuple[tuple[str, str], ...]
    rows: tuple[ReplayRow, ...]
    more_tuners: int
    sums: tuple[ReplayCounts, ...]
    reasons: tuple[ReplayReason, ...]
    more_reasons: int
    samples: tuple[SampleView, ...]
    missing: tuple[str, ...]

    @property
    def failing(self) -> tuple[str, ...]:
        """The releases on which every record fails."""
        sums = zip(self.releases, self.sums, strict=True)
        return tuple(release for (release, _), counts in sums if 0 < counts.total == counts.failed)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseCoverage:
    """A network's records on a release; `counts` is None where nobody replayed them there."""

    release: str
    counts: ReplayCounts | None

    @property
    def usable(self) -> bool:
        """Whether something is left that the release may use."""
        return self.counts is None or self.counts.failed < self.counts.total


def replays_view(compat: Compat, names: Mapping[str, RecordName], stated: Sequence[str]) -> ReplaysView:
    """The matrix of a package whose records have these names and which states these releases."""
    found = sorted(compat.releases, key=lambda item: release_of(item.tvm) or ())
    counts = [_counts_by_tuner(item.records) for item in found]
    tuners = Counter(record.tuner for item in found for record in item.records)
    releases = tuple((_release(item.tvm), plain(item.tvm)) for item in found)
    reasons = [
        reason
        for (release, _), item in zip(reversed(releases), reversed(found), strict=True)
        for reason in _reasons(release, item.records, names)
    ]
    return ReplaysView(
        created=compat.created,
        created_by=plain(compat.created_by),
        releases=releases,
        rows=tuple(
            ReplayRow(tuner=tuner, cells=tuple(each.get(tuner) for each in counts))
            for tuner in sorted(tuner for tuner, _ in tuners.most_common(MOST_TUNERS))
        ),
        more_tuners=max(0, len(tuners) - MOST_TUNERS),
        sums=tuple(_counts(record.outcome for record in item.records) for item in found),
        reasons=tuple(reasons[:MOST_REASONS]),
        more_reasons=max(0, len(reasons) - MOST_REASONS),
        samples=tuple(_sample(_release(item.tvm), item.sample) for item in found if item.sample is not None),
        missing=tuple(release for release in stated if release not in dict(releases)),
    )


def network_coverages(contents: PackageContents, compat: Compat | None) -> dict[str, tuple[ReleaseCoverage, ...]]:
    """Of each network of the manifest its records on each release, oldest first.

    Sets whose records name no network (tuning logs) stand for the networks that no record names.
    """
    outcomes = {
        _release(item.tvm): {(record.tuner, record.key): record.outcome for record in item.records}
        for item in (compat.releases if compat else ())
    }
    silent = _coverage([_SetKeys(each.record_set, None) for each in contents.sets if not each.networks], outcomes)
    found = {}
    for entry in contents.manifest.networks:
        named = [
            _SetKeys(each.record_set, each.networks[entry.name])
            for each in contents.sets
            if entry.name in each.networks
        ]
        found[entry.name] = _coverage(named, outcomes) if named else silent
    return found


class _SetKeys(NamedTuple):
    """Records of a set by their keys; None for all of them."""

    record_set: RecordSet
    keys: Sequence[str] | None


def _coverage(sets: Sequence[_SetKeys], outcomes: _Outcomes) -> tuple[ReleaseCoverage, ...]:
    covered = []
    for release in releases_of(each.record_set.tvm for each in sets):
        known = outcomes.get(release)
        serving = [each for each in sets if release in releases_of([each.record_set.tvm])]
        counts = (
            None if known is None else _counts(outcome for each in serving for outcome in _outcomes_of(each, known))
        )
        covered.append(ReleaseCoverage(release=release, counts=counts))
    return tuple(covered)


def _outcomes_of(some: _SetKeys, known: Mapping[tuple[str, str], str]) -> Iterable[str]:
    tuner = some.record_set.tuner
    if some.keys is None:
        return [outcome for (other, _), outcome in known.items() if other == tuner]
    return [known.get((tuner, key), "not_run") for key in some.keys]


def _sample(release: str, found: NetworkSample) -> SampleView:
    return SampleView(
        release=release,
        network=plain(found.network),
        workloads=found.workloads,
        by_record=found.by_record,
        ran=found.ran,
        failed=plain(found.reason) if found.outcome == "failed" else "",
    )


def _release(version: str) -> str:
    return ".".join(map(str, release_of(version) or ()))


def _counts(outcomes: Iterable[str]) -> ReplayCounts:
    return ReplayCounts(**Counter(outcomes))


def _counts_by_tuner(records: Iterable[RecordReplay]) -> dict[str, ReplayCounts]:
    outcomes: dict[str, list[str]] = {}
    for record in records:
        outcomes.setdefault(record.tuner, []).append(record.outcome)
    return {tuner: _counts(found) for tuner, found in outcomes.items()}


def _reasons(release: str, records: Iterable[RecordReplay], names: Mapping[str, RecordName]) -> Iterable[ReplayReason]:
    """Failed ones first, those of most records first. Reasons that differ in numbered names alone are one."""
    groups: dict[tuple[str, str, str], list[RecordReplay]] = {}
    for record in records:
        if record.reason:
            groups.setdefault((record.outcome, record.tuner, _NUMBERED.sub("", record.reason)), []).append(record)
    for (outcome, tuner, _), found in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0])):
        known = dict.fromkeys(plain(names[record.key].op) for record in found if record.key in names)
        yield ReplayReason(
            release=release,
            tuner=tuner,
            outcome=outcome,
            reason=plain(found[0].reason),
            count=len(found),
            operators=tuple(known)[:EXAMPLES],
        )
