"""Which releases of TVM a version specifier covers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tunehub.registries.resolution import tvm_allowed
from tunehub.target import tvm_releases

RELEASES = tuple(release.version for release in reversed(tvm_releases.RELEASES))  # oldest first


def releases_of(specifiers: Iterable[str]) -> tuple[str, ...]:
    """The releases that any of the specifiers covers, oldest first."""
    covered = {release for text in specifiers for release in _covered(text)}
    return tuple(release for release in RELEASES if release in covered)


@lru_cache(maxsize=1024)
def _covered(text: str) -> tuple[str, ...]:
    return tuple(release for release in RELEASES if tvm_allowed(text, f"{release}.0"))
