"""From an address to its store. Nothing is asked of a store until it is used."""

from __future__ import annotations

import os

from tunehub_registry.stores.address import (
    Address,
    BucketAddress,
    FolderAddress,
    UnsupportedAddressError,
    WebAddress,
    normalise_address,
    parse_address,
    split_unsigned,
)
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.port import Store, WritableStore

__all__ = [
    "UnsupportedAddressError",
    "is_folder",
    "normalise_address",
    "open_store",
    "open_writable_store",
    "parse_address",
    "split_unsigned",
]


def open_store(address: str | os.PathLike[str], *, offline: bool = False) -> Store:
    """The store at an address (without `unsigned+`), for reading.

    Raises UnsupportedAddressError for an address that is malformed or of an unknown scheme, when it needs the network
    but `offline` forbids that, and when boto3, which buckets need, is not installed.
    """
    parsed = parse_address(address)
    if offline and not isinstance(parsed, FolderAddress):
        reason = "it needs the network, which offline mode forbids"
        remedy = "unset TUNEHUB_OFFLINE, or use a folder: `tunehub mirror` makes one"
        raise UnsupportedAddressError(reason, address=parsed.text, remedy=remedy)
    return _open_web(parsed) if isinstance(parsed, WebAddress) else _open_writable(parsed)


def open_writable_store(address: str | os.PathLike[str]) -> WritableStore:
    """The store at an address, for publishing. Raises as `open_store`, and for web sites, which can only be read."""
    parsed = parse_address(address)
    if isinstance(parsed, WebAddress):
        reason = "web sites are read only"
        remedy = "publish to the bucket or folder that the site shows: s3://bucket/prefix or a path"
        raise UnsupportedAddressError(reason, address=parsed.text, remedy=remedy)
    return _open_writable(parsed)


def is_folder(address: str | os.PathLike[str]) -> bool:
    """Whether an address is a folder of this machine (a path or `file://`). Raises UnsupportedAddressError."""
    parsed: Address = parse_address(address)
    return isinstance(parsed, FolderAddress)


def _open_web(parsed: WebAddress) -> Store:
    from tunehub_registry.stores.http import HttpStore

    return HttpStore(parsed.url)


def _open_writable(parsed: FolderAddress | BucketAddress) -> WritableStore:
    if isinstance(parsed, FolderAddress):
        return FolderStore(parsed.path)
    from tunehub_registry.stores.s3 import S3Store

    return S3Store(parsed)
