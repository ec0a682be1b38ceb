"""Releases of TVM by what is asked for: on the command line, and what is installed."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from tunehub.target.tvm_generation import find_tvm
from tunehub.target.tvm_releases import RELEASES, TVMRelease
from tunehub_builder.exceptions import BuilderError


def parse_releases(text: str) -> tuple[TVMRelease, ...]:
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


def installed_release() -> TVMRelease:
    """The release that is installed here. Raises BuilderError when it is none of them."""
    found = find_tvm()
    return parse_releases("none" if found is None else ".".join(map(str, found.release)))[0]
