"""Bins: how a publisher with many names signs them (TAP 15, as in PEP 458).

Up to `NAMES_PER_ROLE` names are in the publisher's own metadata. With more, that delegates each name by the first bits
of its hash to one of its bins, by the same keys, so that a publish writes one bin and a reader gets one. A bin says of
each name what it is for; the catalogue lists the names alone that are not in bins. Those by which the nearest is chosen
stay in the publisher's own metadata. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tuf.api.metadata import Delegations, SuccinctRoles, TargetFile, Targets

from tunehub_registry.trust.metadata import PUBLISHER_LIFETIME, Grant

NAMES_PER_ROLE = 1024
NAMES_PER_BIN = 512
BIN_LIFETIME = 2 * PUBLISHER_LIFETIME  # what leads to the bins ends before them, and is renewed with them
_MARK = ".bin"  # no publisher's name has a dot


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """A bin with what changes in it: the targets of its names."""

    role: str
    targets: Mapping[str, TargetFile]


def bins_of(targets: Targets | None) -> SuccinctRoles | None:
    """The bins that a publisher's metadata delegates to; None where it has its names itself."""
    delegations = None if targets is None else targets.delegations
    return None if delegations is None else delegations.succinct_roles


def publishers_in_bins(roles: Iterable[str]) -> tuple[str, ...]:
    """The publishers of whose bins some are among these roles of a snapshot, sorted."""
    return tuple(sorted({role.rpartition(_MARK)[0] for role in roles if _MARK in role}))


def bits_for(count: int, present: int = 0) -> int:
    """Of how many bits the numbers of bins for so many names are: never fewer than at present. 0 for no bins."""
    if count <= NAMES_PER_ROLE and not present:
        return 0
    return max(present, (-(-count // NAMES_PER_BIN) - 1).bit_length(), 1)


def index_role(
    publisher: str, bits: int, grant: Grant, targets: Mapping[str, TargetFile], version: int, now: datetime
) -> Targets:
    """A publisher's metadata that has these names itself, and delegates the others to bins."""
    roles = SuccinctRoles(list(grant.key_ids), grant.threshold, bits, f"{publisher}{_MARK}")
    delegations = Delegations({key.keyid: key for key in grant.keys}, succinct_roles=roles)
    return Targets(version=version, expires=now + PUBLISHER_LIFETIME, targets=dict(targets), delegations=delegations)


def by_bin(roles: SuccinctRoles, targets: Mapping[str, TargetFile]) -> list[Bin]:
    """The names by their bins, in the order of these."""
    found: dict[str, dict[str, TargetFile]] = defaultdict(dict)
    for name, file in targets.items():
        found[roles.get_role_for_target(name)][name] = file
    return [Bin(role=role, targets=found[role]) for role in sorted(found)]


def bin_metadata(before: Targets | None, targets: Mapping[str, TargetFile], version: int, now: datetime) -> Targets:
    """The next metadata of a bin, with these names besides those that it has."""
    old = {} if before is None else before.targets
    return Targets(version=version, expires=now + BIN_LIFETIME, targets={**old, **targets})


def merged(index: Targets, bins: Sequence[Targets]) -> Targets:
    """A publisher's metadata as if it had the names of its bins itself."""
    targets = {name: file for each in (*bins, index) for name, file in each.targets.items()}
    return Targets(
        version=index.version,
        expires=index.expires,
        targets=targets,
        delegations=index.delegations,
        unrecognized_fields=dict(index.unrecognized_fields),
    )
