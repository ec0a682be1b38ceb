"""python-tuf's client over a store. The only module of the client that imports tuf, and so imported late."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from tuf.api.exceptions import (
    DownloadError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    ExpiredMetadataError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata, Targets
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from tunehub.exceptions import RegistryUnreadableError, TrustError
from tunehub.registries.delegated import Delegated
from tunehub.registries.failures import store_failure, trust_remedy
from tunehub.registries.registry_cache import ShardRef
from tunehub_registry.exceptions import FormatError
from tunehub_registry.stores.port import AccessDeniedError, Content, FileMissingError, StoreError, TooLargeError
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.attached import AttachedStore
from tunehub_registry.trust.bins import bins_of, names_in, publishers_in_bins
from tunehub_registry.trust.layout import (
    CATALOGUE_FIELD,
    MAX_ROOT_BYTES,
    MAX_SNAPSHOT_BYTES,
    MAX_TARGETS_BYTES,
    MAX_TIMESTAMP_BYTES,
    METADATA,
    TIMESTAMP_PATH,
)

REMEDY_FORGED = "nothing of it is used; if this lasts, tell the registry's operator"
_SMALL_BYTES = 16_384  # a timestamp without anything that rides in it is smaller
_CONFIG = UpdaterConfig(
    root_max_length=MAX_ROOT_BYTES,
    timestamp_max_length=MAX_TIMESTAMP_BYTES,
    snapshot_max_length=MAX_SNAPSHOT_BYTES,
    targets_max_length=MAX_TARGETS_BYTES,
)


class VerifiedMetadata:
    """The present metadata of a registry, verified from a trusted root on."""

    def __init__(
        self, store: AttachedStore, root: bytes, folder: Path, *, shipped: bool = False, known: Content | None = None
    ) -> None:
        """Read and verify it; `folder` is python-tuf's, and nobody else may use it meanwhile. `shipped`: the root came
        with tunehub, so that a registry that was never verified may be another's. `known`: the timestamp that was last
        verified, with its entity tag.

        Raises TrustError when anything is not as signed, RegistryUnreadableError when a file cannot be had, OSError
        when `folder` cannot be written.
        """
        self._address = store.address
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.rglob("*"):
            if not path.is_file() and not path.is_dir():  # a pipe would keep python-tuf waiting
                path.unlink()
        with _explained(self._address, stranger=shipped and not (folder / "timestamp.json").exists()):
            fetcher = _StoreFetcher(store, known)
            self._updater = Updater(str(folder), METADATA, fetcher=fetcher, config=_CONFIG, bootstrap=root)
            self._updater.refresh()
        data = (folder / "timestamp.json").read_bytes()
        self.timestamp = hashlib.sha256(data).hexdigest()
        self.expires = str(msgspec.json.decode(data)["signed"]["expires"])
        data = (folder / "snapshot.json").read_bytes()
        self.snapshot = hashlib.sha256(data).hexdigest()
        signed = msgspec.json.decode(data)["signed"]
        self.catalogue: Any = signed.get(CATALOGUE_FIELD)
        self.in_bins = publishers_in_bins(name.removesuffix(".json") for name in signed["meta"])
        self.etag = fetcher.etag

    def target(self, name: str, in_bins_of: str | None = None) -> ShardRef | None:
        """What the publisher to whom the name is delegated has signed; None when there is nothing. `in_bins_of`: that
        publisher, where it has bins, which say what the name is for. Raises as above."""
        with _explained(self._address):
            found = self._updater.get_targetinfo(name)
        if found is None or "sha256" not in found.hashes:
            return None
        machine = None if in_bins_of is None else self._machine_of(name, in_bins_of)
        return ShardRef(sha256=found.hashes["sha256"], length=found.length, snapshot=self.snapshot, target=machine)

    def _machine_of(self, name: str, publisher: str) -> TargetDescriptor | None:
        """What a name in a bin is for, as that says, which python-tuf has verified and kept."""
        head = self._kept(publisher)
        bins = bins_of(head)
        if bins is None or name in head.targets:  # then the catalogue lists it
            return None
        try:
            return names_in(self._kept(bins.get_role_for_target(name))).machines.get(name)
        except FormatError:
            return None

    def _kept(self, role: str) -> Targets:
        return Metadata[Targets].from_bytes((self._folder / f"{role}.json").read_bytes()).signed

    def delegated(self) -> tuple[Delegated, ...]:
        """The publishers with the patterns of their names, in the order of the delegations. Raises as `delegations`."""
        found = self.delegations().delegations
        roles = found.roles if found is not None else None
        return tuple(Delegated(role=role.name, patterns=tuple(role.paths or ())) for role in (roles or {}).values())

    def delegations(self) -> Targets:
        """The top-level targets: who may publish which names. Raises OSError when python-tuf's files are gone."""
        return self._kept("targets")


class _StoreFetcher(FetcherInterface):
    """Metadata files from a store: the base of the URLs is the folder's path in it. `etag` is that of the timestamp,
    where it is a large one."""

    def __init__(self, store: AttachedStore, known: Content | None) -> None:
        self._store = store
        self._known = known
        self.etag = ""

    def _fetch(self, url: str) -> Iterator[bytes]:
        return iter((self.download_bytes(url, MAX_TARGETS_BYTES),))

    def download_bytes(self, url: str, max_length: int) -> bytes:
        known = self._known if url == TIMESTAMP_PATH else None
        try:
            content = self._store.get(url, max_bytes=max_length, etag=known.etag if known else None)
        except (FileMissingError, AccessDeniedError) as error:
            raise DownloadHTTPError(str(error), 404) from error
        except TooLargeError as error:
            raise DownloadLengthMismatchError(str(error)) from error
        except StoreError as error:
            raise DownloadError(str(error)) from error
        if content is None:
            assert known is not None  # no entity tag was given otherwise
            content = known
            self._store.learn(url, content.data)
        if url == TIMESTAMP_PATH and len(content.data) > _SMALL_BYTES:
            self.etag = content.etag
        return content.data


@contextmanager
def _explained(address: str, *, stranger: bool = False) -> Iterator[None]:
    """python-tuf's errors as the client's; a `stranger` is a registry that nothing was trusted of yet."""
    try:
        yield
    except ExpiredMetadataError as error:
        now = datetime.now(timezone.utc).isoformat(" ", "minutes").removesuffix("+00:00")
        remedy = (
            f"is this machine's clock right? it says {now} UTC; if it is, the registry's operator has to run "
            "`tunehub timestamp` or `tunehub refresh`"
        )
        raise TrustError(address, f"its metadata has expired: {error}", remedy=remedy) from error
    except (RepositoryError, DownloadLengthMismatchError) as error:
        if stranger and isinstance(error, UnsignedMetadataError):
            reason = "no root that is trusted here leads to the keys it is signed with"
            raise TrustError(address, reason, remedy=trust_remedy(address)) from error
        raise TrustError(address, f"its metadata cannot be trusted: {error}", remedy=REMEDY_FORGED) from error
    except DownloadError as error:
        cause = error.__cause__
        if isinstance(cause, StoreError):
            raise store_failure(cause, address) from error
        raise RegistryUnreadableError(address, str(error), remedy="try again later") from error
