"""The checks of a submission that need no TVM: who gives it, what its records may hold, whether its numbers agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from packaging.version import Version

from tunehub_builder.backends.relax.ladder_gate import ladder_reason
from tunehub_builder.backends.relax.workload_gate import static_reason
from tunehub_builder.gate.evidence import timed_evidence
from tunehub_builder.review.contents import SubmittedContents
from tunehub_builder.submission.candidates import candidate_digest
from tunehub_builder.tuning.trial_record import candidate_of
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence
from tunehub_registry.exceptions import LicenseError
from tunehub_registry.index import Shard
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.licenses import canonical_license, license_of_both
from tunehub_registry.review import ReviewFinding
from tunehub_registry.submission import NetworkTimes, SizesComparison, WorkloadComparison, sign_off_problem

LICENSES = ("CC0-1.0", "Apache-2.0")
_SLOWER = 1.05  # times as long: less is noise between two machines of one model
_SAME = 1e-9  # relative: both sides are computed from the same decimals


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRecords:
    """A published version: what tells its records apart, by key, and seconds by workload and network."""

    digests: Mapping[str, str]
    times: Mapping[str, float]


def sign_off_findings(contents: SubmittedContents) -> Iterator[ReviewFinding]:
    """Whether somebody vouches for the submission."""
    problem = sign_off_problem(contents.submission.sign_off)
    if problem is not None:
        yield ReviewFinding(where="sign_off", reason=problem)


def license_findings(contents: SubmittedContents) -> Iterator[ReviewFinding]:
    """Whether the licence is one that lets a registry pass the data on."""
    stated = contents.submission.license or ""
    try:
        known = canonical_license(stated) in LICENSES
    except LicenseError:
        known = False
    if not known:
        reason = f"{stated[:80]!r} is not taken here; {' or '.join(LICENSES)}"
        yield ReviewFinding(where="license", reason=reason)
        return
    expected = stated if contents.base is None else license_of_both(contents.base.manifest.license, stated)
    if contents.manifest.license != expected:
        yield ReviewFinding(where="license", reason=f"the package's is {contents.manifest.license}, not {expected}")


def trace_findings(contents: SubmittedContents) -> Iterator[ReviewFinding]:
    """Records that must not reach TVM."""
    for record in contents.records:
        ladder = isinstance(record, LadderRecord)
        reason = ladder_reason(record) if ladder else static_reason(candidate_of(record))  # type: ignore[arg-type]
        if reason is not None:
            yield ReviewFinding(where=record.exact, reason=reason)


def evidence_findings(contents: SubmittedContents) -> Iterator[ReviewFinding]:
    """Records and evidence whose numbers do not follow from the raw times."""
    compared = {each.exact: each for each in contents.comparisons if isinstance(each, WorkloadComparison)}
    sized = {each.exact: each for each in contents.comparisons if isinstance(each, SizesComparison)}
    networks = {each.network: each for each in contents.comparisons if isinstance(each, NetworkTimes)}
    tried = {(trial.exact, trial.candidate) for trial in contents.trials if trial.run_s}
    admitted = {line.exact for line in contents.evidence if isinstance(line, RecordEvidence) and line.admitted}
    for record in contents.records:
        reason = None if record.exact in admitted else "no evidence admits it"
        if isinstance(record, LadderRecord):
            reason = reason or _ladder_reason(record, sized.get(record.exact))
        elif reason is None:
            digest, found = candidate_digest(candidate_of(record)), compared.get(record.exact)
            reason = _record_reason(record.run_s, record.default_s, digest, found)
            if reason is None and (record.exact, digest) not in tried:
                reason = "no trial measured it"
        if reason is not None:
            yield ReviewFinding(where=record.exact, reason=reason)
    for line in contents.evidence:
        if isinstance(line, RecordEvidence) and line.exact not in sized:
            reason = _line_reason(line, compared.get(line.exact))
            where = line.exact
        elif isinstance(line, NetworkEvidence):
            where = line.network
            reason = _network_reason(line, networks.get(line.network) or networks.get(line.network.split(" (")[0]))
        else:
            continue
        if reason is not None:
            yield ReviewFinding(where=where, reason=reason)


def version_findings(contents: SubmittedContents, shard: Shard | None) -> Iterator[ReviewFinding]:
    """Whether the version is newer than what is published, and no published one under another number."""
    if shard is None or not shard.versions:
        return
    newest, own = shard.versions[-1], contents.manifest.version
    again = next((entry for entry in shard.versions if entry.sha256 == contents.package_sha256), None)
    if again is not None:
        yield ReviewFinding(where=own, reason=f"these very bytes are published as {again.version}")
    elif Version(own) <= Version(newest.version):
        reason = f"is not newer than {newest.version}, which is published; take the next number"
        yield ReviewFinding(where=own, reason=reason)


def replayed_findings(
    contents: SubmittedContents, version: str, published: PublishedRecords
) -> Iterator[ReviewFinding]:
    """Whether a published version has all these records already, whatever number they come under now."""
    own = digests_of(contents.records)
    if own.items() <= published.digests.items():
        yield ReviewFinding(where=contents.manifest.version, reason=f"has no record that {version} does not have")


def notes_beside(contents: SubmittedContents, version: str, published: PublishedRecords) -> Iterator[ReviewFinding]:
    """What a registry loses by replacing a published version: records that are gone, and times that are longer."""
    taken_along = contents.base.keys if contents.base else frozenset[str]()
    gone = published.digests.keys() - taken_along - {record.exact for record in contents.records}
    if gone:
        yield ReviewFinding(where=version, reason=f"{len(gone)} of its {len(published.digests)} records are left out")
    own = times_of(contents.evidence)
    for subject in sorted(own.keys() & published.times.keys()):
        if own[subject] > _SLOWER * published.times[subject]:
            reason = f"takes {own[subject] / published.times[subject]:.2f} times as long as with {version}"
            yield ReviewFinding(where=subject, reason=reason)


def times_of(evidence: Iterable[Evidence]) -> dict[str, float]:
    """Seconds of the admitted workloads, by key, and of networks, by name."""
    found = {}
    for line in evidence:
        if isinstance(line, NetworkEvidence):
            found[line.network] = line.tuned_s
        elif line.admitted:
            found[line.exact] = line.tuned_s
    return found


def digests_of(records: Iterable[AnyRecord | LadderRecord]) -> dict[str, str]:
    """What tells records apart, their schedules and times, by key."""
    return {record.exact: _digest_of(record) for record in records}


def _digest_of(record: AnyRecord | LadderRecord) -> str:
    return candidate_digest(record.ladder if isinstance(record, LadderRecord) else [candidate_of(record), record.run_s])


def _record_reason(
    run_s: tuple[float, ...], default_s: float | None, digest: str, found: WorkloadComparison | None
) -> str | None:
    if found is None or found.winner is None or not found.default_s:
        return "there is no comparison of it"
    winner = found.finalists[found.winner]
    if winner.candidate != digest:
        return "the comparison was won by another candidate"
    if winner.run_s != run_s:
        return "its times are not those of the comparison"
    return None if default_s is not None and _near(default_s, median(found.default_s)) else "its default's time is not"


def _line_reason(line: RecordEvidence, found: WorkloadComparison | None) -> str | None:
    if found is None or found.winner is None or not found.default_s:
        return "evidence without a comparison"
    winner = found.finalists[found.winner]
    if not winner.run_s:
        return "evidence without raw times"
    computed = timed_evidence(
        line.exact, found.default_s, winner.run_s, difference=winner.difference, threads=found.threads,
        admitted=line.admitted, reason=line.reason,
    )  # fmt: skip
    for field in ("default_s", "tuned_s", "speedup", "spread", "output_max_rel_diff", "repeats", "threads"):
        stated, own = getattr(line, field), getattr(computed, field)
        if (stated is None) != (own is None) or (stated is not None and not _near(stated, own)):
            return f"{field} is {stated}, the raw times give {own}"
    return None


def _network_reason(line: NetworkEvidence, found: NetworkTimes | None) -> str | None:
    if found is None:
        return "a network's times without raw ones"
    for field in ("default_s", "tuned_s"):
        samples = getattr(found, field)
        stated = getattr(line, field)
        if not samples or stated is None or not _near(stated, median(samples)):
            return f"{field} is {stated}, which is not the median of the raw times"
    return None


def _ladder_reason(record: LadderRecord, found: SizesComparison | None) -> str | None:
    if found is None:
        return "there is no comparison of its sizes"
    known = {at: (default, times) for at, default, times in zip(found.at, found.default_s, found.run_s, strict=True)}
    for times in record.times:
        default, measured = known.get(times.at, (math.nan, ()))
        if not _near(times.default_s, default) or not any(_near(times.run_s, each) for each in (*measured, default)):
            return f"its times at {times.at} are not those of the comparison"
    return None


def _near(stated: float, computed: float) -> bool:
    return math.isclose(stated, computed, rel_tol=_SAME)
