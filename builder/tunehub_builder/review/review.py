"""`tunehub review`: all checks of a submission in their order, and what they say together."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunehub_builder.exceptions import SubmissionError
from tunehub_builder.review import rules
from tunehub_builder.review.contents import (
    SubmittedContents,
    file_findings,
    parse_contents,
    parse_stated,
    read_folder,
    read_records,
)
from tunehub_builder.review.releases import OtherReleases, release_notes
from tunehub_builder.review.running import run_checks
from tunehub_builder.submission.base import BasePackage, read_base
from tunehub_builder.tuning.target import tvm_versions
from tunehub_registry.compat import Compat
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import ShardEntry
from tunehub_registry.publishing.source import SignedSource, UnsignedSource, fetch_package
from tunehub_registry.review import CHECKS, MAX_FINDINGS, Review, ReviewCheck, ReviewFinding, state_of
from tunehub_registry.submission import SUBMISSION, Submission
from tunehub_registry.trust.metadata import publisher_for

_COMPARED = 20  # of the newest versions of the name
_STATIC = {
    "sign-off": (rules.sign_off_findings, "somebody signs it off"),
    "license": (rules.license_findings, "its licence is taken here"),
    "traces": (rules.trace_findings, "every record is within the allow-list"),
    "evidence": (rules.evidence_findings, "records and evidence follow from the raw times"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewedFor:
    """The registry that a package is to go into, and the publisher in whose name."""

    source: SignedSource | UnsignedSource
    role: str | None = None


def review_submission(
    path: Path,
    place: ReviewedFor | None,
    *,
    threads: int,
    show: Callable[[int, int], None],
    others: OtherReleases | None = None,
) -> Review:
    """Review the submission in a folder, on the installed TVM and ``others``. What is wrong with it is in the review;
    raises what reading the registry raises, BuilderError without an environment for another release, and OSError when
    no process can be started."""
    read = _read(path, place)
    checks, tvm = list(read.checks), [tvm_versions()[0]]
    if read.contents is not None:
        checks += [_check(name, rule(read.contents), good) for name, (rule, good) in _STATIC.items()]
        checks += _run(read.contents, checks, threads, show)
        if others is not None and all(check.verdict != "refused" for check in checks):
            package = read.contents.submission.package
            compat = others.replayed(read.files[package], package)
            checks = [_with_releases(check, compat) if check.name == "replay" else check for check in checks]
            tvm += [release.tvm for release in compat.releases]
        checks += _registry_checks(read.contents, place)
    return _reviewed(read, checks, place, tvm)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReadSubmission:
    """What could be read of a submission, and the checks of that."""

    checks: tuple[ReviewCheck, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stated: Submission | None = None
    contents: SubmittedContents | None = None


def _read(path: Path, place: ReviewedFor | None) -> _ReadSubmission:
    """Read a folder as far as it is right."""
    files: dict[str, bytes] = {}
    stated: Submission | None = None
    try:
        files = read_folder(path)
        stated = parse_stated(files)
        complete = _check("files", file_findings(files, stated), "all files have the stated bytes")
        if complete.verdict != "passed":
            return _ReadSubmission(checks=(complete,), files=files, stated=stated)
        contents = parse_contents(files, stated, _base(stated, place))
    except (SubmissionError, RegistryError) as error:
        name = "files" if stated is None else "formats"
        refused = ReviewCheck(name=name, verdict="refused", reason=str(error)[:4000])
        return _ReadSubmission(checks=(refused,) if stated is None else (complete, refused), files=files, stated=stated)
    parsed = ReviewCheck(name="formats", verdict="passed", reason="all files can be read")
    return _ReadSubmission(checks=(complete, parsed), files=files, stated=stated, contents=contents)


def _reviewed(
    read: _ReadSubmission, checks: Sequence[ReviewCheck], place: ReviewedFor | None, tvm: Sequence[str]
) -> Review:
    """The review that these checks make; those that are missing were not come to."""
    done = {check.name for check in checks}
    left = [ReviewCheck(name=n, verdict="skipped", reason="an earlier check failed") for n in CHECKS if n not in done]
    every = tuple(sorted([*checks, *left], key=lambda check: CHECKS.index(check.name)))
    stated = read.files.get(SUBMISSION)
    return Review(
        state=state_of(every),
        submission=None if stated is None else hashlib.sha256(stated).hexdigest(),
        name=read.stated.name if read.stated else None,
        version=read.stated.version if read.stated else None,
        package=read.contents.package_sha256 if read.contents else None,
        registry=place.source.store.address if place else None,
        role=place.role if place else None,
        tvm=tuple(tvm),
        checks=every,
    )


def _run(
    contents: SubmittedContents, before: Sequence[ReviewCheck], threads: int, show: Callable[[int, int], None]
) -> list[ReviewCheck]:
    """The checks in TVM, which sees only what the allow-list took."""
    if next(check for check in before if check.name == "traces").verdict != "passed":
        return []
    found = run_checks(contents, threads, show)
    good = {
        "workloads": "every record has its workload",
        "replay": f"all records replay on TVM {tvm_versions()[0]}",
        "roofline": "no time is faster than the target can be",
        "outputs": f"{found.compared} outputs computed again, {found.by_record} by the records, "
        f"{found.whole} compared in all their numbers; {found.nearest:.2g} apart at most",
    }
    checks = [_check(name, findings, good[name]) for name, findings in found.by_name.items()]
    return checks if found.compared or found.outputs else [
        ReviewCheck(name="outputs", verdict="skipped", reason="none could be computed here")
        if check.name == "outputs" else check for check in checks
    ]  # fmt: skip


def _with_releases(check: ReviewCheck, compat: Compat) -> ReviewCheck:
    notes = tuple(release_notes(compat))[:MAX_FINDINGS]
    said = "; ".join(f"{note.where}: {note.reason}" for note in notes if note.where.startswith("TVM "))
    return ReviewCheck(name=check.name, verdict=check.verdict, reason=f"{check.reason}; {said}"[:4000], findings=notes)


def _registry_checks(contents: SubmittedContents, place: ReviewedFor | None) -> list[ReviewCheck]:
    if place is None:
        return [ReviewCheck(name=n, verdict="skipped", reason="no --registry") for n in ("version", "delegation")]
    return [_version(contents, place.source), _delegation(contents, place)]


def _version(contents: SubmittedContents, source: SignedSource | UnsignedSource) -> ReviewCheck:
    """The version beside those that are published, the newest of which it would replace."""
    state = source.state(contents.manifest.name)
    if state is None or not state.shard.versions:
        return ReviewCheck(name="version", verdict="passed", reason="the first of its name")
    published = {entry.version: _published(source, entry) for entry in state.shard.versions[-_COMPARED:]}
    findings = [
        *rules.version_findings(contents, state.shard),
        *(each for item in published.items() for each in rules.replayed_findings(contents, *item)),
    ]
    newest = state.shard.versions[-1].version
    check = _check("version", findings, f"newer than {newest}")
    notes = tuple(rules.notes_beside(contents, newest, published[newest]))[:MAX_FINDINGS]
    if check.verdict == "refused" or not notes:
        return check
    reason = f"{check.reason}; note: {notes[0].where}: {notes[0].reason}" + (" and more" if notes[1:] else "")
    return ReviewCheck(name="version", verdict="passed", reason=reason[:4000], findings=notes)


def _published(source: SignedSource | UnsignedSource, entry: ShardEntry) -> rules.PublishedRecords:
    found = read_records(_fetched(source, entry), entry.file)
    return rules.PublishedRecords(digests=rules.digests_of(found.records), times=rules.times_of(found.evidence))


def _base(stated: Submission, place: ReviewedFor | None) -> BasePackage | None:
    """The published package that a submission takes along. Raises SubmissionError when it is not published."""
    if stated.base is None:
        return None
    label = f"{stated.name} {stated.base.version}, which it takes along,"
    if place is None:
        raise SubmissionError(f"{label} is published somewhere: give that --registry")
    state = place.source.state(stated.name)
    versions = state.shard.versions if state else ()
    entry = next((each for each in versions if each.sha256 == stated.base.sha256 and each.yanked is None), None)
    if entry is None:
        raise SubmissionError(f"{label} is not published in {place.source.store.address} with these bytes, or yanked")
    return read_base(_fetched(place.source, entry), entry.file)


def _fetched(source: SignedSource | UnsignedSource, entry: ShardEntry) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return fetch_package(source.store, entry, Path(folder)).read_bytes()


def _delegation(contents: SubmittedContents, place: ReviewedFor) -> ReviewCheck:
    """Whether the publisher may publish the name."""
    if isinstance(place.source, UnsignedSource):
        return ReviewCheck(name="delegation", verdict="skipped", reason="the registry has no signatures")
    name = contents.manifest.name
    owner = publisher_for(place.source.present.targets, name)
    reason = None
    if owner is None:
        reason = f"nobody may publish {name} there"
    elif place.role != owner:
        reason = f"{name} belongs to the publisher {owner}, not to {place.role or 'anybody: give --role'}"
    findings = [] if reason is None else [ReviewFinding(where=name, reason=reason)]
    return _check("delegation", findings, f"{owner} may publish {name}")


def _check(name: str, findings: Iterable[ReviewFinding], good: str) -> ReviewCheck:
    found = list(findings)
    if not found:
        return ReviewCheck(name=name, verdict="passed", reason=good)
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    reason = f"{found[0].where}: {found[0].reason}{more}"[:4000]
    return ReviewCheck(name=name, verdict="refused", reason=reason, findings=tuple(found[:MAX_FINDINGS]))
