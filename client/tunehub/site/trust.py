"""What the page on trust says of registries: how each is read, and the root that this machine trusts for it."""

from __future__ import annotations

from dataclasses import dataclass

from tunehub.registries.embedded import EMBEDDED
from tunehub.registries.port import Registry
from tunehub.site.names import plain


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleView:
    """A top-level role of The Update Framework: its keys, and how many of them have to sign."""

    name: str
    keys: tuple[str, ...]
    threshold: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryTrust:
    """One registry; `root` is the version of its trusted root (None where it is unsigned), `expires` a date."""

    address: str
    basis: str
    root: int | None = None
    expires: str = ""
    roles: tuple[RoleView, ...] = ()


def registry_trust(registry: Registry) -> RegistryTrust:
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
    return RegistryTrust(
        address=address,
        basis="signed (TUF)",
        root=root.version,
        expires=f"{root.expires:%Y-%m-%d}",
        roles=tuple(roles),
    )
