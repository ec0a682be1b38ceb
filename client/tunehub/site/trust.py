"""What pages say of registries: how each is read, the root that this machine trusts for it, and who publishes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.embedded import EMBEDDED
from tunehub.registries.port import OnProblem, Registry
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.printable import plain

if TYPE_CHECKING:
    from tuf.api.metadata import Targets

    from tunehub.registries.signed import SignedRegistry


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleView:
    """A top-level role of The Update Framework: its keys, and how many of them have to sign."""

    name: str
    keys: tuple[str, ...]
    threshold: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherView:
    """Who may publish the names that match one of `patterns`; `reviewed`: only what a review has verified."""

    name: str
    patterns: tuple[str, ...]
    keys: tuple[str, ...]
    threshold: int
    reviewed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryTrust:
    """One registry; `root` is the version of its trusted root (None where it is unsigned), `expires` a date.

    `publishers` are by the names of their roles, `targets` what delegates to them (None where nobody knows).
    """

    address: str
    basis: str
    root: int | None = None
    expires: str = ""
    roles: tuple[RoleView, ...] = ()
    publishers: Mapping[str, PublisherView] = field(default_factory=dict)
    targets: Targets | None = None

    def publisher_of(self, name: str) -> PublisherView | None:
        """The publisher to whom a package name is delegated."""
        if self.targets is None:
            return None
        from tunehub_registry.trust.metadata import publisher_for

        return self.publishers.get(publisher_for(self.targets, name) or "")


def registry_trust(registry: Registry, on_problem: OnProblem) -> RegistryTrust:
    """How a registry is trusted. Its root was checked when it was added to the trust store."""
    from tunehub.registries.signed import SignedRegistry

    address = plain(registry.address)
    if not isinstance(registry, SignedRegistry):
        embedded = registry.address == EMBEDDED
        basis = "comes with tunehub itself" if embedded else "unsigned: who can write to it decides"
        return RegistryTrust(address=address, basis=basis)
    from tuf.api.metadata import Metadata, Root

    root = Metadata[Root].from_bytes(registry.root).signed
    roles = [
        RoleView(name=plain(name), keys=tuple(plain(key) for key in sorted(role.keyids)), threshold=role.threshold)
        for name, role in sorted(root.roles.items())
    ]
    targets = _delegations(registry, on_problem)
    return RegistryTrust(
        address=address,
        basis="signed (TUF)",
        root=root.version,
        expires=f"{root.expires:%Y-%m-%d}",
        roles=tuple(roles),
        publishers={} if targets is None else _publishers(targets),
        targets=targets,
    )


def _delegations(registry: SignedRegistry, on_problem: OnProblem) -> Targets | None:
    try:
        return registry.delegations()
    except RegistryUnreadableError as error:
        on_problem(error)
        return None


def _publishers(targets: Targets) -> dict[str, PublisherView]:
    """The publishers by name; none where another tool wrote roles that tunehub's rules do not allow."""
    from tunehub_registry.trust.metadata import publishers_of

    try:
        found = publishers_of(targets)
    except RegistryError:
        return {}
    return {
        name: PublisherView(
            name=plain(name),
            patterns=tuple(map(plain, publisher.patterns)),
            keys=tuple(map(plain, sorted(publisher.grant.key_ids))),
            threshold=publisher.grant.threshold,
            reviewed=publisher.reviewed,
        )
        for name, publisher in sorted(found.items())
    }
