"""The port of registries as clients read them, and how an address becomes one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import BinaryIO, Protocol

from tunehub.exceptions import RegistryUnreadableError, UnsupportedRegistryError
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import Shard, ShardEntry
from tunehub_registry.stores.open import UnsupportedAddressError, open_store
from tunehub_registry.stores.port import StoreError
from tunehub_registry.target import TargetDescriptor


class Registry(Protocol):
    """One registry, read only. What it gives is verified, but for packages: their hash is the caller's to check.

    Every method raises RegistryUnreadableError when the registry or the file cannot be read or is damaged.
    """

    @property
    def address(self) -> str:
        """What messages and reports call the registry; without secrets."""

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


def open_registry(address: str | os.PathLike[str], *, offline: bool = False, label: str | None = None) -> Registry:
    """Open the registry at `address`; nothing is read yet. `label` is what messages call it, the address by default.

    Raises UnsupportedRegistryError for an address that is malformed or of an unknown scheme.
    """
    from tunehub.plain_registry import PlainRegistry

    try:
        return PlainRegistry(open_store(address, offline=offline), label)
    except UnsupportedAddressError as error:
        raise UnsupportedRegistryError(error.address, error.reason, remedy=error.remedy) from error


def store_failure(error: StoreError, address: str) -> RegistryUnreadableError:
    """What a store could not do, as the client's error."""
    return RegistryUnreadableError(address, f"{error.path}: {error.reason}", remedy=error.remedy)


def format_failure(error: RegistryError, address: str) -> RegistryUnreadableError:
    """What is wrong with a file's format, as the client's error."""
    remedy = str(getattr(error, "remedy", "publish it again"))
    return RegistryUnreadableError(address, f"{error}".removesuffix(f" ({remedy})"), remedy=remedy)
