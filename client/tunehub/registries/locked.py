"""Resolution from a lock file: only its packages count; no index and no signature is read, and files go by SHA-256."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from packaging.version import InvalidVersion, Version

from tunehub.exceptions import (
    HubError,
    LockedPackageMissingError,
    LockError,
    LockFileError,
    RegistryUnreadableError,
    RequirementError,
)
from tunehub.registries.attested import TOO_FEW_REMEDY, Attesters
from tunehub.registries.ordered import Registries
from tunehub.registries.requirement import Requirement
from tunehub.registries.resolution import Chosen, Resolution, Unusable
from tunehub_registry.document import Document
from tunehub_registry.exceptions import FormatError
from tunehub_registry.index import Shard, ShardEntry
from tunehub_registry.lock import MAX_LOCK_BYTES, Lock, LockedPackage, parse_lock
from tunehub_registry.package import sha256_of
from tunehub_registry.stores.address import split_unsigned
from tunehub_registry.stores.port import Deadline
from tunehub_registry.target import Accepted, TargetDescriptor, match

if TYPE_CHECKING:
    from tunehub.options import Options
    from tunehub.registries.port import OnProblem
    from tunehub_registry.stores.port import OnBytes

_MAX_REASONS = 5


def read_lock(path: Path, place: str = "lock") -> Lock:
    """Read a lock file. Raises LockFileError, which names `place`, where the path came from."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_LOCK_BYTES + 1)
        with warnings.catch_warnings():
            return parse_lock(data, str(path))
    except FormatError as error:
        reason = f"at {error.path}: {error.reason}"
        raise LockFileError(path, reason, place=place, remedy=error.remedy) from error
    except OSError as error:
        reason = f"the lock file cannot be read: {error.strerror or error}"
        remedy = "make it with `tunehub lock`, or correct the path"
        raise LockFileError(path, reason, place=place, remedy=remedy) from error


def check_lock(options: Options, requirement: Requirement) -> None:
    """Read the lock file of the options, if there is one, and compare it with the requirement.

    Raises LockFileError, and RequirementError when no pin at all satisfies the requirement.
    """
    if options.lock is None:
        return
    lock = read_lock(options.lock, options.lock_place)
    named = [item for item in lock.packages if requirement.name in (None, item.name)]
    if any(requirement.allows(item.version) for item in named):
        return
    if requirement.name is not None or lock.packages:
        raise conflict(requirement, options, ", ".join(item.label for item in named) or "nothing of that name")


def conflict(requirement: Requirement, options: Options, pinned: str) -> RequirementError:
    """The error when a requirement and a lock file ask for different things; names both."""
    reason = f"conflicts with the lock file {options.lock}, which pins {pinned}"
    wanted = replace(requirement, name=requirement.name or "NAME")
    remedy = f"change one of them: `tunehub lock '{wanted}'`"
    return RequirementError(options.require, reason, place=options.require_place, remedy=remedy)


class LockedRegistry:
    """The pins of a lock file as a registry."""

    def __init__(
        self,
        lock: Lock,
        address: str,
        *,
        registries: Sequence[str],
        offline: bool,
        deadline: Deadline | None = None,
        servers: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`address` names the lock in messages; `registries` are asked for files before those that the lock names.

        After `deadline` there is no network any more. `servers` are those that may see the user's signatures.
        """
        self.lock = lock
        self._address = address
        self._registries = tuple(registries)
        self._offline = offline
        self._deadline = deadline or Deadline(None)
        self._servers = servers

    @property
    def address(self) -> str:
        """As the port says."""
        return self._address

    @property
    def stale(self) -> bool:
        """Never: the pins are what was asked for."""
        return False

    def names(self) -> Mapping[str, TargetDescriptor]:
        """As the port says."""
        return self.lock.names

    def find(self, name: str) -> TargetDescriptor | None:
        """As the port says."""
        return self.lock.names.get(name)

    def shard(self, name: str) -> Shard:
        """As the port says."""
        return self.lock.shard(name)

    def fetch_package(self, entry: ShardEntry) -> bytes:
        """As the port says; the hash is right."""
        stream = BytesIO()
        self.download_package(entry, stream, 0)
        return stream.getvalue()

    def download_package(self, entry: ShardEntry, stream: BinaryIO, offset: int) -> None:
        """As the port says; the hash is right. Raises LockedPackageMissingError."""
        pin = next(item for item in self.lock.packages if item.sha256 == entry.sha256)
        self.download(pin, stream, offset)

    def download(self, pin: LockedPackage, stream: BinaryIO, offset: int = 0, on_bytes: OnBytes | None = None) -> str:
        """Write the file of a pin from `offset` on; returns the place that had it.

        `stream` has to be readable, too, when `offset` is not 0. Raises LockedPackageMissingError, which names every
        place that was tried.
        """
        from tunehub.registries.locked_files import bounded_opener, download_verified, places_of

        opener = bounded_opener(self._deadline, offline=self._offline, servers=self._servers())
        places = places_of(pin, self._registries, opener)
        place, failures = download_verified(pin, places, stream, offset, on_bytes)
        if place is None:
            tried = tuple((item.address, item.reason) for item in failures)
            raise _missing(self.address, pin, tried, offline=self._offline)
        return place.address

    def fetch_document(self, document: Document) -> bytes:
        """As the port says; the hash is right. Raises RegistryUnreadableError, which names every place."""
        from tunehub.registries.locked_files import bounded_opener, download_verified, places_of_document

        stream = BytesIO()
        pin = next(item for item in self.lock.packages if document in item.documents)
        opener = bounded_opener(self._deadline, offline=self._offline, servers=self._servers())
        places = places_of_document(document, pin, self._registries, opener)
        place, failures = download_verified(document, places, stream)
        if place is None:
            tried = "; ".join(f"{item.address}: {item.reason}" for item in failures)
            reason = f"the document {document.kind} of {pin.label} is not in the cache, and no place has it: {tried}"
            raise RegistryUnreadableError(self.address, reason, remedy="run `tunehub sync` while there is a network")
        return stream.getvalue()

    def url(self, path: str) -> str:
        """As the port says: what the lock states."""
        return next((item.url or item.registry for item in self.lock.packages if path in item.paths), path)


class LockedRegistries(Registries):
    """A lock file as the only registry."""

    def __init__(self, registry: LockedRegistry, options: Options, on_problem: OnProblem, attesters: Attesters) -> None:
        """`options` are those that the lock was named in, `attesters` as in `Registries`."""
        super().__init__([registry], on_problem, attesters=attesters)
        self._lock = registry.lock
        self._options = options

    def _address_of(self, chosen: Chosen) -> str:
        """Where the package was when it was locked."""
        pins = (pin.registry for pin in self._lock.packages if pin.sha256 == chosen.entry.sha256)
        return split_unsigned(next(pins, chosen.registry))[0]

    def _lock_sha256(self) -> str | None:
        try:
            return None if self._options.lock is None else sha256_of(self._options.lock)
        except OSError:  # it was read before
            return None

    def nothing_found(
        self, resolution: Resolution, require: Requirement, tvm_version: str | None, unusable: Unusable
    ) -> HubError:
        """Why no pin serves, before anything is compiled: a requirement against it, the target, or the TVM."""
        host = resolution.host
        if unusable:
            return LockError(f"the lock file {self._options.lock} has no other package for {host.name}",
                             remedy="compiling with default schedules")  # fmt: skip
        without = self.resolve(host, Requirement(), tvm_version).chosen
        if without is not None:
            error = conflict(require, self._options, f"{without.label} for {host.name}")
            why = next((item.reason for item in resolution.trace if item.version == without.entry.version), None)
            reason = f"{error.place} {error.value!r} {error.reason}{f': {why}' if why else ''}"
            remedy = f"{error.remedy}; {TOO_FEW_REMEDY}" if require.attested else error.remedy
            return LockError(reason, remedy=remedy)
        reasons = [f"{item.name} {item.version}: {item.reason}" for item in resolution.trace if item.reason]
        shown = "; ".join(reasons[:_MAX_REASONS]) or "it is empty"
        reason = f"the lock file {self._options.lock} does not fit {_here(host, tvm_version)}: {shown}"
        return LockError(reason, remedy=self._remedy(host, tvm_version), cause="no package")

    def _remedy(self, host: TargetDescriptor, tvm_version: str | None) -> str:
        """The command that makes it fit. Where the target has a pin, the TVM is what is missing."""
        pinned = any(isinstance(match(target, host), Accepted) for target in self._lock.names.values())
        versions = dict.fromkeys((*self._lock.tvm, tvm_version) if pinned else ())
        options = [f"--tvm {version}" for version in versions if version and _is_version(version)]
        return f"run `{' '.join(['tunehub lock', *([] if pinned else [host.name]), *options])}`"


def open_locked(options: Options, on_problem: OnProblem, deadline: Deadline, attesters: Attesters) -> LockedRegistries:
    """The registries of a lock file; there is no network after the deadline. Raises LockFileError."""
    assert options.lock is not None
    lock = read_lock(options.lock, options.lock_place)
    registry = LockedRegistry(
        lock, f"lock file {options.lock}", registries=options.registries, offline=options.offline, deadline=deadline,
        servers=partial(_servers, options),
    )  # fmt: skip
    return LockedRegistries(registry, options, on_problem, attesters)


def _servers(options: Options) -> Collection[str]:
    from tunehub.registries.servers import servers_of_user  # most packages are in the cache

    return servers_of_user(options)


def _missing(
    address: str, pin: LockedPackage, tried: tuple[tuple[str, str], ...], *, offline: bool
) -> LockedPackageMissingError:
    """The error when no place has a locked package; names all of them."""
    places = "; ".join(f"{place}: {reason}" for place, reason in tried)
    reason = f"{pin.label} is not in the cache, and no place has it: {places}"
    remedy = "name a registry or mirror that has it in TUNEHUB_REGISTRY, and run `tunehub sync`"
    if offline:
        remedy = "run `tunehub sync` while there is a network, or name a mirror folder in TUNEHUB_REGISTRY"
    return LockedPackageMissingError(address, reason, remedy=remedy, tried=tried)


def _here(host: TargetDescriptor, tvm_version: str | None) -> str:
    tvm = f" with TVM {tvm_version}" if tvm_version else ""
    return f"{host.name} ({host.arch}){tvm}"


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
