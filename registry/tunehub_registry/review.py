"""`review.json`: what a review of a submission found. It lies outside the submission, which never changes.

A submission is in quarantine until a review has verified it: every check that counts passed, and none refused. The
review names submission and package by SHA-256, so that it says nothing about any other bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FieldError
from tunehub_registry.target import TargetName

FORMAT_VERSION = "1.0"
MAX_REVIEW_BYTES = 4 << 20
CHECKS = (
    "files", "formats", "sign-off", "license", "traces", "evidence", "workloads", "roofline", "replay", "outputs",
    "version", "delegation",
)  # fmt: skip
MAX_FINDINGS = 100
OutcomeOfCheck = Literal["passed", "refused", "skipped"]
State = Literal["quarantined", "verified"]


class ReviewFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks against a submission, or is worth knowing: `where` names a file, a record or a network."""

    where: _fields.Text
    reason: _fields.Text


class ReviewCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check: `reason` sums it up; `findings` are the first of what it found."""

    name: _fields.Label
    verdict: OutcomeOfCheck
    reason: _fields.Text
    findings: Annotated[tuple[ReviewFinding, ...], Meta(max_length=MAX_FINDINGS)] = ()


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """`review.json`. `submission` is the SHA-256 of `submission.json`, which has those of the other files.

    `registry` is the address that the package was compared with, `role` the publisher for whom; `tvm` are the releases
    that replayed the records. What could not be read has no name, version or package.
    """

    format_version: str = FORMAT_VERSION
    state: State
    submission: _fields.Sha256 | None = None
    name: TargetName | None = None
    version: _fields.Label | None = None
    package: _fields.Sha256 | None = None
    registry: _fields.Text | None = None
    role: _fields.Label | None = None
    tvm: tuple[_fields.Label, ...] = ()
    checks: tuple[ReviewCheck, ...]

    def __post_init__(self) -> None:
        if self.state != state_of(self.checks):
            raise FieldError("state", f"is {self.state}, but the checks say {state_of(self.checks)}")
        if self.state == "verified" and None in (self.submission, self.package, self.name, self.version):
            raise FieldError("state", "is verified, but what was reviewed is not named")


def state_of(checks: tuple[ReviewCheck, ...]) -> State:
    """Verified when every known check passed; those about a registry may be skipped."""
    verdicts = {check.name: check.verdict for check in checks}
    known = len(verdicts) == len(checks) and all(name in verdicts for name in CHECKS)
    optional = ("version", "delegation")
    passed = all(v == "passed" or (v == "skipped" and name in optional) for name, v in verdicts.items())
    return "verified" if known and passed else "quarantined"


def review_problem(review: Review, package: str, registry: str) -> str | None:
    """Why a package, by its SHA-256, may not go into the registry with this address, or None."""
    if review.state != "verified":
        refused = next((check for check in review.checks if check.verdict == "refused"), None)
        return "the submission is quarantined" + (f": {refused.name}: {refused.reason}" if refused else "")
    if review.package != package:
        return f"it is about another package, {review.package}"
    if review.registry != registry:
        return f"it is for another registry, {review.registry or 'none'}"
    return None


def parse_review(data: bytes, source: str) -> Review:
    """Read a review. Raises UnsupportedFormatError, FormatError; warns NewerFormatWarning on a newer minor version."""
    value = _json.decode(data, source, max_bytes=MAX_REVIEW_BYTES)
    _json.check_version(value, "format_version", source, major=1, minor=0)
    return _json.convert(value, Review, source)


def encode_review(review: Review) -> bytes:
    """Write a review, indented, keys sorted. Raises FormatError if the result could not be read again."""
    data = _json.encode(review, indent=2)
    parse_review(data, "review")
    return data
