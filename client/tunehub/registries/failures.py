"""What cannot be read of a registry, as the client's errors."""

from __future__ import annotations

from collections.abc import Sequence

from tunehub.exceptions import RegistryUnreadableError
from tunehub_registry.exceptions import FormatError, RegistryError
from tunehub_registry.stores.port import StoreError


def store_failure(error: StoreError, address: str) -> RegistryUnreadableError:
    """What a store could not do, as the client's error."""
    return RegistryUnreadableError(address, f"{error.path}: {error.reason}", remedy=error.remedy)


def trust_remedy(address: str) -> str:
    """What to do about a registry that no root is trusted for."""
    return f"if you trust it: get its root.json from its operator, then `tunehub trust add {address} root.json`"


def format_failure(error: RegistryError, address: str) -> RegistryUnreadableError:
    """What is wrong with a file's format, as the client's error."""
    remedy = str(getattr(error, "remedy", "publish it again"))
    return RegistryUnreadableError(address, f"{error}".removesuffix(f" ({remedy})"), remedy=remedy)


def parts_left_out(problems: Sequence[FormatError], address: str) -> RegistryUnreadableError:
    """What is not valid in a registry's file, where the rest of it is used."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    first = problems[0]
    reason = f"{first.source.removeprefix(f'{address}/')}: at {first.path}: {first.reason}: left out{more}"
    return RegistryUnreadableError(address, reason, remedy="its publisher has to publish it again")


def unexpected(error: Exception, address: str) -> RegistryUnreadableError:
    """What nobody thought of while a registry was read: it costs that registry, and no other."""
    reason = f"reading it failed: {type(error).__name__}: {str(error)[:200]}"
    return RegistryUnreadableError(address, reason, remedy="please report it; the other registries are used")


def last_known(error: RegistryUnreadableError, address: str, age: float | None) -> RegistryUnreadableError:
    """The problem when what the cache has of a registry is used, because the registry cannot be read."""
    reason = error.reason.removeprefix(f"registry {address}: ")
    known = "before" if age is None else f"{plain_age(age)} ago"
    return RegistryUnreadableError(address, f"{reason}: what was read {known} is used", remedy=error.remedy)


def ended(error: RegistryUnreadableError, address: str, age: float | None) -> RegistryUnreadableError:
    """The problem when what the cache has is too old to stand for a registry that cannot be read: or whoever is in the
    way could keep its users at an old state for ever."""
    reason = error.reason.removeprefix(f"registry {address}: ")
    known = "" if age is None else f", read {plain_age(age)} ago,"
    remedy = f"{error.remedy}; TUNEHUB_OFFLINE=1 or a lock file uses it however old it is"
    return RegistryUnreadableError(address, f"{reason}; what the cache has{known} is no longer valid", remedy=remedy)


def plain_age(seconds: float) -> str:
    """A length of time for people."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
