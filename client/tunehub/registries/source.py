"""The port of registries as clients read them, and how an address becomes one: signed, or unsigned by choice."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from tunehub.exceptions import HubError, HubWarning, RegistryUnreadableError, TrustError, UnsupportedRegistryError
from tunehub.registries.bounded_store import BoundedStore
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import Shard, ShardEntry, parse_shard
from tunehub_registry.stores.open import (
    UnsupportedAddressError,
    is_folder,
    normalise_address,
    open_store,
    split_unsigned,
)
from tunehub_registry.stores.port import Deadline, Store, StoreError
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.layout import TIMESTAMP_PATH

OnProblem = Callable[[HubError], None]


class Registry(Protocol):
    """One registry, read only. What it gives is verified, but for packages: their hash is the caller's to check.

    Every method raises RegistryUnreadableError when the registry or the file cannot be read or is damaged, and
    TrustError when its signatures do not prove it.
    """

    @property
    def address(self) -> str:
        """What messages and reports call the registry: its normalised address, without secrets, or a label."""

    def names(self) -> Mapping[str, TargetDescriptor]:
        """Every name, with the target that its newest version is for. Read once, then remembered."""

    def shard(self, name: str) -> Shard:
        """All versions of a name."""

    def fetch_package(self, entry: ShardEntry) -> bytes:
        """The bytes of a package file, exactly as many as published."""

    def download_package(self, entry: ShardEntry, stream: BinaryIO, offset: int) -> None:
        """Write a package file from `offset` on to `stream`. What arrived before an error is in `stream`.

        What `stream.write` raises goes through as it is.
        """

    def url(self, path: str) -> str:
        """Where a file of the registry is, for lock files and people, without secrets."""


def _raise(problem: HubError) -> None:
    raise problem


def _warn(text: str) -> None:
    warnings.warn(text, HubWarning, stacklevel=3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """With what registries are read.

    `cache`: the folder where metadata is kept (None: nowhere). `trust`: the trusted roots. `deadline`: after it there
    is no network any more. `offline`: there is none at all. `on_problem` gets what is read from the cache instead of
    the registry; `on_warning` what is to be warned of in any mode.
    """

    cache: Path | None = None
    trust: TrustStore | None = None
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    offline: bool = False
    on_problem: OnProblem = _raise
    on_warning: Callable[[str], None] = _warn


def open_registry(
    address: str | os.PathLike[str], access: Access | None = None, *, label: str | None = None
) -> Registry:
    """Open the registry at `address`; nothing is read yet but the trust store.

    A folder without metadata is read as it is: its permissions are its trust. What comes over a network, and what a
    root is known for, has to be signed; `unsigned+` before the address waives that, with a warning. What has a `label`
    (the embedded registry) is a folder that needs no signatures; messages call it so.

    Raises UnsupportedRegistryError for an address that is malformed or of an unknown scheme, TrustError when there is
    no root to trust, or when one is known and the address waives signatures.
    """
    access = access or Access()
    bare, waived = split_unsigned(os.fspath(address))
    try:
        if label is not None:
            return _plain(open_store(bare), replace(access, cache=None), label)
        folder, known = is_folder(bare), normalise_address(bare)
        store: Store = open_store(bare) if folder else BoundedStore(bare, access.deadline, offline=access.offline)
    except UnsupportedAddressError as error:
        raise UnsupportedRegistryError(error.address, error.reason, remedy=error.remedy) from error
    root = access.trust.root(known) if access.trust else None
    if root is None and folder and (waived or not (Path(known) / TIMESTAMP_PATH).is_file()):
        return _plain(store, replace(access, cache=None))
    if waived:
        _check_waiver(known, root, access)
        return _plain(store, access)
    from tunehub.registries.signed import SignedRegistry

    root = root or _shipped_root(known, access)
    return SignedRegistry(store, root, replace(access, offline=access.offline and not folder))


def _plain(store: Store, access: Access, label: str | None = None) -> Registry:
    from tunehub.registries.plain import PlainRegistry

    return PlainRegistry(store, access, label)


def _check_waiver(address: str, root: bytes | None, access: Access) -> None:
    if root is not None:
        remedy = f"leave `unsigned+` out; `tunehub trust remove {address}` if it is no longer signed"
        raise TrustError(address, "a root is trusted for it, so it is not read without signatures", remedy=remedy)
    access.on_warning(
        f"registry {address} is read without signatures, because its address begins with unsigned+: whoever can write "
        "to it, or change the traffic, decides what is compiled"
    )


def _shipped_root(address: str, access: Access) -> bytes:
    root = access.trust.shipped_root() if access.trust else None
    if root is None:
        remedy = f"get its root.json from its operator, then `tunehub trust add {address} ROOT.json`"
        raise TrustError(address, "no root is known to verify its signatures with", remedy=remedy)
    return root


def read_shard(address: str, path: str, data: bytes, name: str) -> Shard:
    """The shard in these bytes, which have the right hash. Raises RegistryUnreadableError."""
    try:
        shard = parse_shard(data, f"{address}/{path}")
    except RegistryError as error:
        raise format_failure(error, address) from error
    if shard.name != name:
        reason = f"{path} is the shard of {shard.name}, but it is published as that of {name}"
        raise RegistryUnreadableError(address, reason, remedy="publish the registry again")
    return shard


def store_failure(error: StoreError, address: str) -> RegistryUnreadableError:
    """What a store could not do, as the client's error."""
    return RegistryUnreadableError(address, f"{error.path}: {error.reason}", remedy=error.remedy)


def format_failure(error: RegistryError, address: str) -> RegistryUnreadableError:
    """What is wrong with a file's format, as the client's error."""
    remedy = str(getattr(error, "remedy", "publish it again"))
    return RegistryUnreadableError(address, f"{error}".removesuffix(f" ({remedy})"), remedy=remedy)


def last_known(error: RegistryUnreadableError, address: str, age: float | None) -> RegistryUnreadableError:
    """The problem when what the cache has of a registry is used, because the registry cannot be read."""
    reason = error.reason.removeprefix(f"registry {address}: ")
    known = "before" if age is None else f"{plain_age(age)} ago"
    return RegistryUnreadableError(address, f"{reason}: what was read {known} is used", remedy=error.remedy)


def plain_age(seconds: float) -> str:
    """A length of time for people."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
