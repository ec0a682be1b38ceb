"""Which publisher a name belongs to, and so which other names of machines, aliases, its packages may go by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec
from msgspec import structs

from tunehub_registry.target import TargetDescriptor


class Delegated(msgspec.Struct, frozen=True, kw_only=True):
    """The names of one publisher, by patterns as TUF has them."""

    role: str
    patterns: tuple[str, ...]


def publisher_of(name: str, delegated: Sequence[Delegated]) -> str | None:
    """The first of the publishers, in the order of the delegations, to whom a name belongs; None for nobody."""
    return next((item.role for item in delegated if any(fnmatchcase(name, each) for each in item.patterns)), None)


def with_own_aliases(
    names: Mapping[str, TargetDescriptor], delegated: Sequence[Delegated]
) -> Mapping[str, TargetDescriptor]:
    """The names, each with the aliases alone that its publisher could give to packages as names."""
    return {name: keep_aliases(target, _own(name, delegated)) for name, target in names.items()}


def keep_aliases(target: TargetDescriptor, may_have: Callable[[str], bool]) -> TargetDescriptor:
    """A target with those aliases whose package names it `may_have`."""
    if not target.aliases:
        return target
    kept = tuple(alias for alias in target.aliases if may_have(f"{target.kind}-{alias.lower()}"))
    return target if kept == target.aliases else structs.replace(target, aliases=kept)


def _own(name: str, delegated: Sequence[Delegated]) -> Callable[[str], bool]:
    def may_have(other: str) -> bool:
        publisher = publisher_of(other, delegated)
        return publisher is not None and publisher == publisher_of(name, delegated)

    return may_have
