"""The environment of some extras, pretended where more is installed: other distributions cannot be imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from typing import Any

from packaging.requirements import Requirement


def distributions_of(extras: Iterable[str]) -> frozenset[str]:
    """The normalised names of all that `pip install tunehub[…]` with these extras brings, of what is installed."""
    found: dict[str, set[str]] = {}
    pending = [("tunehub", extra) for extra in ("", *extras)]
    while pending:
        name, extra = pending.pop()
        name = _normalised(name)
        if extra in found.setdefault(name, set()):
            continue
        found[name].add(extra)
        try:
            needs = list(map(Requirement, requires(name) or ()))
        except PackageNotFoundError:
            continue
        for need in needs:
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                pending += [(need.name, each) for each in ("", *need.extras)]
    return frozenset(found)


class OnlyExtras:
    """A finder of modules that comes first, and refuses those of other distributions."""

    def __init__(self, extras: Iterable[str]) -> None:
        allowed = {*distributions_of(extras), "setuptools", "pip"}
        self._refused = {
            module
            for module, owners in packages_distributions().items()
            if not allowed & set(map(_normalised, owners)) and module not in ("tests", "benchmarks")
        }

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """As importlib asks."""
        if name.partition(".")[0] in self._refused:
            raise ModuleNotFoundError(f"No module named {name!r}: no extra of this document brings it", name=name)
        return None


def install(extras: Iterable[str]) -> None:
    """Have this process see no other modules than those of these extras. Before anything else is imported."""
    sys.meta_path.insert(0, OnlyExtras(extras))  # type: ignore[arg-type]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
