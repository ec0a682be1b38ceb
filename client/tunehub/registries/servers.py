"""Which servers of buckets may see a signature of the user: those that the user names, and none that a lock file does.

A signed URL holds the id of the user's key, and the token of a session.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tunehub.exceptions import TrustError
from tunehub_registry.stores.address import BucketAddress, UnsupportedAddressError, parse_address, split_unsigned

if TYPE_CHECKING:
    from tunehub.options import Options

_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def servers_of_user(options: Options) -> frozenset[str]:
    """The servers of configured registries, of those with a trusted root, and of AWS's variables."""
    from tunehub.registries.trust_store import trust_store

    addresses = [*options.registries]
    with suppress(TrustError):  # using the registry says so
        addresses += [root.address for root in trust_store(options).roots()]
    return servers_of(addresses) | {os.environ[name] for name in _VARIABLES if os.environ.get(name)}


def servers_of(addresses: Collection[str]) -> frozenset[str]:
    """The servers of buckets among these addresses, other than AWS's own."""
    return frozenset(filter(None, (_server(address) for address in addresses)))


def reserved(address: str, servers: Collection[str]) -> str:
    """The address, to be read without a signature where it is a bucket on none of these servers nor on AWS's own."""
    server = _server(address)
    if server is None or server in servers:
        return address
    parsed = parse_address(split_unsigned(address)[0])
    assert isinstance(parsed, BucketAddress)
    return replace(parsed, anonymous=True).text


def _server(address: str) -> str | None:
    try:
        parsed = parse_address(split_unsigned(address)[0])
    except UnsupportedAddressError:
        return None  # opening it says why
    return parsed.endpoint if isinstance(parsed, BucketAddress) and not parsed.anonymous else None
