"""Bins: how a publisher with many names signs them (TAP 15, as in PEP 458).

Up to `NAMES_PER_ROLE` names are in the publisher's own metadata. With more, that delegates each name by the first bits
of its hash to one of its bins, by the same keys, so that a publish writes one bin and a reader gets one. A bin says of
its names what they are for, in a catalogue of its own; the registry's lists the names alone that are not in bins. Those
by which the nearest is chosen stay in the publisher's own metadata. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tuf.api.metadata import Delegations, SuccinctRoles, TargetFile, Targets

from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.catalogue import decode_catalogue, encode_catalogue
from tunehub_registry.trust.layout import CATALOGUE_FIELD
from tunehub_registry.trust.metadata import PUBLISHER_LIFETIME, Grant

NAMES_PER_ROLE = 1024
BIN_LIFETIME = 2 * PUBLISHER_LIFETIME  # what leads to the bins ends before them, and is renewed with them
_MARK = ".bin"  # no publisher's name has a dot


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """Names with their shards, as TUF has its targets, and with the machines that they are for."""

    files: Mapping[str, TargetFile] = field(default_factory=dict)
    machines: Mapping[str, TargetDescriptor] = field(default_factory=dict)

    def __or__(self, other: Names) -> Names:
        return Names(files={**self.files, **other.files}, machines={**self.machines, **other.machines})

    def of(self, names: Container[str]) -> Names:
        """Those of them that are among these."""
        return Names(
            files={name: file for name, file in self.files.items() if name in names},
            machines={name: machine for name, machine in self.machines.items() if name in names},
        )


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
    return max(present, (-(-count // NAMES_PER_ROLE) - 1).bit_length(), 1)


def index_role(
    publisher: str, bits: int, grant: Grant, targets: Mapping[str, TargetFile], version: int, now: datetime
) -> Targets:
    """A publisher's metadata that has these names itself, and delegates the others to bins."""
    roles = SuccinctRoles(list(grant.key_ids), grant.threshold, bits, f"{publisher}{_MARK}")
    delegations = Delegations({key.keyid: key for key in grant.keys}, succinct_roles=roles)
    return Targets(version=version, expires=now + PUBLISHER_LIFETIME, targets=dict(targets), delegations=delegations)


def by_bin(roles: SuccinctRoles, names: Names) -> dict[str, Names]:
    """The names by the roles of their bins, in the order of these."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in names.files:
        found[roles.get_role_for_target(name)].add(name)
    return {role: names.of(found[role]) for role in sorted(found)}


def names_in(part: Targets | None) -> Names:
    """What a bin has. Raises FormatError where what it says of machines cannot be read."""
    if part is None:
        return Names()
    machines = decode_catalogue(part.unrecognized_fields.get(CATALOGUE_FIELD), "a bin", [])
    return Names(files=part.targets, machines=machines)


def bin_metadata(names: Names, version: int, now: datetime) -> Targets:
    """The metadata of a bin with these names."""
    fields = {CATALOGUE_FIELD: encode_catalogue(names.machines)}
    return Targets(
        version=version, expires=now + BIN_LIFETIME, targets=dict(names.files), unrecognized_fields=fields
    )  # fmt: skip


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
