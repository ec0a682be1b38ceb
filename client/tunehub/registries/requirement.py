"""What users ask of packages, in words: a name, versions, and how many machines that they trust attest them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from tunehub.exceptions import RequirementError

MOST_ATTESTED = 256  # a document has no more attestations that are read
_PACKAGE = re.compile(r"\s*([a-z0-9][a-z0-9._]*-[A-Za-z0-9._-]*[A-Za-z0-9])?\s*([<>=!~].*)?")
_ATTESTED = re.compile(r"attested(?![\w.-])", re.IGNORECASE)  # names of packages have a hyphen
_AT_LEAST = re.compile(r"attested\s*>=\s*([1-9][0-9]{0,3})", re.IGNORECASE)
_REMEDY = (
    "write a PEP 440 specifier, with or without a package name: '>=0.1,<1' or 'llvm-znver5==0.1.0'; "
    "a comma and 'attested>=2' behind it ask for attestations"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One name only (None for any), versions in `specifier`, and attestations that count by at least so many keys."""

    name: str | None = None
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    attested: int = 0

    def __str__(self) -> str:
        """As `parse_requirement` reads it."""
        versions = f"{self.name or ''}{self.specifier}"
        return ", ".join(filter(None, (versions, f"attested>={self.attested}" if self.attested else "")))

    def allows(self, version: str) -> bool:
        """Whether a version is one of those that are asked for; a pre-release, too."""
        return self.specifier.contains(version, prereleases=True)

    def narrowed(self, other: Requirement) -> Requirement:
        """What asks for both, under the name of this one."""
        attested = max(self.attested, other.attested)
        return Requirement(name=self.name, specifier=self.specifier & other.specifier, attested=attested)


def parse_requirement(text: str | None, place: str = "require") -> Requirement:
    """Read `llvm-znver5>=0.1,<1, attested>=2`, or some of it; None asks for nothing. Raises RequirementError.

    `place` names where the text came from.
    """
    if text is None or not text.strip():
        return Requirement()
    clauses = [clause.strip() for clause in text.split(",")]
    attested = [clause for clause in clauses if _ATTESTED.match(clause)]
    versions = ",".join(clause for clause in clauses if clause not in attested)
    found = _PACKAGE.fullmatch(versions)
    if found is None:
        raise RequirementError(text, "is not a package requirement", place=place, remedy=_REMEDY)
    try:
        specifier = SpecifierSet(found[2] or "")
    except InvalidSpecifier as error:
        raise RequirementError(text, f"is not a version specifier: {error}", place=place, remedy=_REMEDY) from None
    return Requirement(name=found[1], specifier=specifier, attested=_attested(attested, text, place))


def parse_versions(text: str, place: str) -> Requirement:
    """Read a name and versions, for what does not look at attestations. Raises RequirementError."""
    found = parse_requirement(text, place)
    if found.attested:
        remedy = "leave it out; `require`, `tunehub resolve --require` and `tunehub lock` take it"
        raise RequirementError(text, "asks for attestations, which do not count here", place=place, remedy=remedy)
    return found


def _attested(clauses: Sequence[str], text: str, place: str) -> int:
    """The largest number asked for; 0 for none."""
    most = 0
    for clause in clauses:
        found = _AT_LEAST.fullmatch(clause)
        if found is None or int(found[1]) > MOST_ATTESTED:
            reason = f"has {clause[:40]!r}, which is not attested>=N with N from 1 to {MOST_ATTESTED}"
            raise RequirementError(text, reason, place=place, remedy="such as 'attested>=2'")
        most = max(most, int(found[1]))
    return most
