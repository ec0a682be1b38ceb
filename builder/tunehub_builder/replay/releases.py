"""The releases of TVM that tunehub supports, newest first. A new one is one line here, and an extra that pins it."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from tunehub.target.tvm_generation import find_tvm
from tunehub_builder.exceptions import BuilderError


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A release by its first two numbers, and the extra of tunehub that installs it."""

    version: str
    extra: str


RELEASES = (
    Release(version="0.27", extra="tvm"),
    Release(version="0.26", extra="tvm-0-26"),
    Release(version="0.25", extra="tvm-0-25"),
    Release(version="0.19", extra="legacy"),
)


def parse_releases(text: str) -> tuple[Release, ...]:
    """`all`, or some of them with commas between. Raises BuilderError, which lists them."""
    known = {release.version: release for release in RELEASES}
    asked = list(known) if text == "all" else [_two_numbers(word.strip()) for word in text.split(",")]
    unknown = next((word for word in asked if word not in known), None)
    if unknown is not None:
        raise BuilderError(f"--tvm {unknown!r}: expected all, or some of {', '.join(known)} with commas between")
    return tuple(known[word] for word in dict.fromkeys(asked))


def _two_numbers(word: str) -> str:
    try:
        return ".".join(map(str, Version(word).release[:2]))
    except InvalidVersion:
        return word


def installed_release() -> Release:
    """The release that is installed here. Raises BuilderError when it is none of them."""
    found = find_tvm()
    return parse_releases("none" if found is None else ".".join(map(str, found.release)))[0]
