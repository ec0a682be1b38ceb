"""How an address becomes a registry: signed, or unsigned by choice."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tunehub.exceptions import TrustError, UnsupportedRegistryError
from tunehub.registries.bounded_store import BoundedStore
from tunehub.registries.failures import trust_remedy
from tunehub.registries.port import Access, Registry
from tunehub_registry.stores.open import (
    UnsupportedAddressError,
    is_folder,
    normalise_address,
    open_store,
    split_unsigned,
)
from tunehub_registry.stores.port import Store
from tunehub_registry.trust.layout import TIMESTAMP_PATH


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

    access = replace(access, offline=access.offline and not folder)
    if root is None:
        return SignedRegistry(store, _shipped_root(known, access), access, shipped=True)
    return SignedRegistry(store, root, access)


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
        reason = "no root is known to verify its signatures with"
        raise TrustError(address, reason, remedy=trust_remedy(address))
    return root
