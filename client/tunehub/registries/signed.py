"""A signed registry: TUF metadata by python-tuf, shards and packages by the hashes that it signs.

When the network fails, what was last verified serves on until its timestamp ends, with a warning; offline, as its user
wants it, however old it is. When a signature, a version or a hash is wrong, nothing of the registry is used.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from tunehub._files.atomic import open_regular
from tunehub.exceptions import RegistryUnreadableError, TrustError
from tunehub.registries.delegated import publisher_of, with_own_aliases
from tunehub.registries.failures import ended, last_known
from tunehub.registries.port import Access
from tunehub.registries.registry_cache import RegistryCache, ShardRef, VerifiedState
from tunehub.registries.store_packages import StorePackages
from tunehub_registry.exceptions import FormatError
from tunehub_registry.index import MAX_SHARD_BYTES, Shard, shard_path
from tunehub_registry.stores.port import Content, Store, TooLargeError
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.attached import AttachedStore
from tunehub_registry.trust.catalogue import decode_catalogue
from tunehub_registry.trust.layout import MAX_TIMESTAMP_DAYS

if TYPE_CHECKING:
    from tuf.api.metadata import Targets

    from tunehub.registries.tuf_client import VerifiedMetadata

_FORGED = "nothing of it is used; if this lasts, tell the registry's operator"


class SignedRegistry(StorePackages):
    """The port over a store, with a trusted root."""

    signed = True

    def __init__(
        self, store: Store, root: bytes, access: Access, label: str | None = None, *, shipped: bool = False
    ) -> None:
        """Reads nothing yet. `label` is what messages call it, the store's address by default. `shipped`: the root is
        the one that comes with tunehub, not one that was given for this registry."""
        self._files = AttachedStore(store)
        super().__init__(self._files, label or store.address, access.on_problem)
        self.root = root
        self._shipped = shipped
        self._root_id = hashlib.sha256(root).hexdigest()
        self.cache = RegistryCache(access.cache, store.address)
        self._access = access
        self._state: VerifiedState | None = None
        self._metadata: VerifiedMetadata | None = None  # None while another process's refresh, or the cache, will do
        self._names: Mapping[str, TargetDescriptor] | None = None
        self._failure: RegistryUnreadableError | None = None
        self.stale = access.offline

    def names(self) -> Mapping[str, TargetDescriptor]:
        """As the port says."""
        if self._names is None:
            left_out: list[FormatError] = []
            try:
                state = self._verified()
                listed = decode_catalogue(state.catalogue, f"{self.address}/catalogue", left_out)
                self._names = with_own_aliases(listed, state.delegated or ())
            except FormatError as error:
                self._failure = self._forged(f"its catalogue is damaged: {error.reason}")
                raise self._failure from error
            self._report(left_out)
        return self._names

    def find(self, name: str) -> TargetDescriptor | None:
        """As the port says. A name that is in a bin costs that bin, if it is not here yet."""
        target = self.names().get(name)
        if target is not None or self._bins_of(name) is None:
            return target
        state = self._verified()
        ref = state.shards.get(name)
        if not self.stale and (ref is None or ref.snapshot != state.snapshot):
            ref = self._found_in_bin(name, ref)
        if ref is None or ref.target is None:
            return None
        if ref.target.name != name:
            raise self._costing(name, self._forged(f"{name} is said to be for {ref.target.name}"))
        return with_own_aliases({name: ref.target}, state.delegated or ())[name]

    def _found_in_bin(self, name: str, kept: ShardRef | None) -> ShardRef | None:
        try:
            ref = self._signed_ref(name)
        except TrustError as error:
            raise self._costing(name, error) from error
        except RegistryUnreadableError:
            if kept is None:
                raise
            return kept  # as long as it is not asked for more
        if ref is not None:
            self._remember(name, ref)
        return ref

    def _bins_of(self, name: str) -> str | None:
        """The publisher of a name, where it has bins."""
        state = self._state
        publisher = publisher_of(name, state.delegated or ()) if state is not None and state.in_bins else None
        return publisher if state is not None and publisher in state.in_bins else None

    def _costing(self, name: str, error: TrustError) -> RegistryUnreadableError:
        """What is wrong costs a name in a bin alone, and otherwise the registry."""
        if self._bins_of(name) is not None:
            return RegistryUnreadableError(self.address, f"{name} is not used: {error.reason}", remedy=error.remedy)
        self._failure = error
        return error

    def shard(self, name: str) -> Shard:
        """As the port says. Where the network fails, the shard that was last verified for the name."""
        state = self._verified()
        if not self.stale:
            try:
                return self._present_shard(state, name)
            except TrustError as error:
                raise self._costing(name, error) from error
            except RegistryUnreadableError as error:
                if self._kept_shard(state, name) is None:
                    raise
                self._go_stale(error)
        shard = self._kept_shard(state, name)
        if shard is None:
            remedy = "try again when the registry can be reached"
            raise RegistryUnreadableError(self.address, f"the versions of {name} are not in the cache", remedy=remedy)
        return shard

    def delegations(self) -> Targets | None:
        """Who may publish which names, as the registry's operator has signed it; None while the network is away.

        Raises RegistryUnreadableError.
        """
        self._verified()
        if self.stale:
            return None
        if self._metadata is None:
            self._state = self._refresh(float("inf"))
        assert self._metadata is not None
        try:
            return self._metadata.delegations()
        except OSError as error:
            raise RegistryUnreadableError(self.address, f"its metadata: {error}", remedy="try again") from error

    def _verified(self) -> VerifiedState:
        """What the metadata says: as it is now, or where the network fails as it was last verified."""
        if self._failure is not None:
            raise self._failure
        if self._state is None:
            try:
                self._state = self._last_verified() if self.stale else self._refresh(time.time())
            except TrustError as error:
                self._failure = error
                raise
            except RegistryUnreadableError as error:
                self._state = self._kept_instead(error)
        return self._state

    def _last_verified(self) -> VerifiedState:
        kept = self.cache.state(self._root_id)
        if kept is None:
            remedy = "use it once with the network; unset TUNEHUB_OFFLINE for that"
            raise RegistryUnreadableError(self.address, "offline, and nothing of it is in the cache", remedy=remedy)
        return kept

    def _kept_instead(self, error: RegistryUnreadableError) -> VerifiedState:
        kept = None if self._access.offline else self.cache.state(self._root_id)
        if kept is not None and kept.has_ended(now()):
            error, kept = ended(error, self.address, self.cache.age()), None
        if kept is None:
            self._failure = error
            raise error
        self._go_stale(error)
        return kept

    def _go_stale(self, error: RegistryUnreadableError) -> None:
        self.stale = True
        self._access.on_problem(last_known(error, self.address, self.cache.age()))

    def _refresh(self, began: float) -> VerifiedState:
        """Verify anew, unless another process has done it since `began`: while this one waited for its lock."""
        try:
            with self.cache.lock(self._access.deadline):
                kept = self.cache.state(self._root_id)
                if kept is not None and began <= (self.cache.verified() or 0.0) <= time.time():
                    return kept
                assert self.cache.metadata is not None
                return self._read_metadata(self.cache.metadata, kept)
        except TimeoutError:
            reason = "another process that reads it did not finish in time"
            raise RegistryUnreadableError(self.address, reason, remedy="try again later") from None
        except OSError:  # no cache, or none that can be written
            return self._refresh_aside()

    def _refresh_aside(self) -> VerifiedState:
        """Verify in a temporary folder, from what the cache has if it can be read."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="tunehub-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            if self.cache.metadata is not None:
                with suppress(OSError):
                    _copy_files(self.cache.metadata, folder)
            return self._read_metadata(folder, self.cache.state(self._root_id))
        except OSError as error:
            reason = f"its metadata can be written neither to the cache nor to a temporary folder: {error}"
            remedy = "make room on the disk, or set TUNEHUB_CACHE to a writable folder"
            raise RegistryUnreadableError(self.address, reason, remedy=remedy) from error

    def _read_metadata(self, folder: Path, kept: VerifiedState | None) -> VerifiedState:
        from tunehub.registries.tuf_client import VerifiedMetadata

        before = {name: _bytes_of(folder / name) for name in ("timestamp.json", "snapshot.json")}
        known = None
        if kept is not None and kept.etag and before["timestamp.json"] is not None:
            is_kept = hashlib.sha256(before["timestamp.json"]).hexdigest() == kept.timestamp
            known = Content(data=before["timestamp.json"], etag=kept.etag) if is_kept else None
        found = VerifiedMetadata(self._files, self.root, folder, shipped=self._shipped, known=known)
        try:
            self._check_log(folder)
        except RegistryUnreadableError:  # or who showed another registry once, has it stay the newest for good
            for name, data in before.items():
                _restore(folder / name, data)
            raise
        self._metadata = found
        expires = self._end(found, kept)
        same = kept is not None and (kept.snapshot, kept.catalogue) == (found.snapshot, found.catalogue)
        if kept is not None and same and kept.delegated is not None:
            state = structs.replace(kept, expires=expires, timestamp=found.timestamp, etag=found.etag)
            self.cache.confirm_state() if state == kept else self.cache.keep_state(state)
            return state
        state = self._new_state(found, kept, expires)
        self.cache.keep_state(state)
        return state

    def _new_state(self, found: VerifiedMetadata, kept: VerifiedState | None, expires: str) -> VerifiedState:
        """What is kept of metadata that says something new."""
        if not isinstance(found.catalogue, str):
            raise self._forged("its snapshot has no catalogue")
        shards = kept.shards if kept is not None else {}
        return VerifiedState(
            address=self.address,
            root=self._root_id,
            snapshot=found.snapshot,
            catalogue=found.catalogue,
            shards=dict(shards),
            delegated=found.delegated(),
            expires=expires,
            timestamp=found.timestamp,
            etag=found.etag,
            in_bins=found.in_bins,
        )

    def _check_log(self, folder: Path) -> None:
        if self._access.trust is not None:
            from tunehub.registries.log_check import check_log

            check_log(self._files, self._access.trust, (folder / "timestamp.json").read_bytes(), now())

    def _end(self, found: VerifiedMetadata, kept: VerifiedState | None) -> str:
        """When the timestamp ends: as it says, but no later than so long after it was first seen here. Who got hold of
        the online key once could else show the state of that day for ever."""
        cap = (now() + timedelta(days=MAX_TIMESTAMP_DAYS)).strftime("%Y-%m-%dT%H:%M:%SZ")  # as TUF has dates
        if kept is None or kept.timestamp != found.timestamp:
            return min(found.expires, cap)
        if kept.has_ended(now()):
            reason = f"its timestamp says that it is valid until {found.expires}, and is older than any may be"
            remedy = f"its operator has to sign a new one within {MAX_TIMESTAMP_DAYS} days: `tunehub timestamp`"
            raise TrustError(self.address, reason, remedy=remedy)
        return min(kept.expires, cap)

    def _present_shard(self, state: VerifiedState, name: str) -> Shard:
        ref = state.shards.get(name)
        if ref is None or ref.snapshot != state.snapshot:
            ref = self._signed_ref(name)
        if ref is None:
            reason = f"{name} is not signed by a publisher to whom the name is delegated"
            raise RegistryUnreadableError(self.address, reason, remedy="its publisher has to publish it again")
        path = shard_path(ref.sha256)
        data = self.cache.shard(ref.sha256)
        if data is None:
            data = self._get_shard(path, ref)
            self.cache.keep_shard(ref.sha256, data)
        shard = self._parse_shard(path, data, name)
        self._remember(name, ref)
        return shard

    def _signed_ref(self, name: str) -> ShardRef | None:
        if self._metadata is None:
            self._state = self._refresh(float("inf"))
        assert self._metadata is not None
        try:
            return self._metadata.target(name, self._bins_of(name))
        except OSError:  # the cache has become full or read-only since the refresh
            self._state = self._refresh_aside()
            return self._metadata.target(name, self._bins_of(name))

    def _get_shard(self, path: str, ref: ShardRef) -> bytes:
        try:
            content = self._get(path, min(ref.length, MAX_SHARD_BYTES))
        except RegistryUnreadableError as error:
            if isinstance(error.__cause__, TooLargeError):
                raise self._forged(f"{path} is larger than what is signed") from error.__cause__
            raise
        assert content is not None  # no entity tag was given
        if len(content.data) != ref.length or hashlib.sha256(content.data).hexdigest() != ref.sha256:
            raise self._forged(f"{path} does not have the hash that is signed")
        return content.data

    def _remember(self, name: str, ref: ShardRef) -> None:
        state = self._state
        if state is not None and state.shards.get(name) != ref:
            self._state = structs.replace(state, shards={**state.shards, name: ref})
            self.cache.keep_state(self._state)

    def _kept_shard(self, state: VerifiedState, name: str) -> Shard | None:
        ref = state.shards.get(name)
        data = None if ref is None else self.cache.shard(ref.sha256)
        return None if ref is None or data is None else self._parse_shard(shard_path(ref.sha256), data, name)

    def _forged(self, reason: str) -> TrustError:
        return TrustError(self.address, reason, remedy=_FORGED)


def now() -> datetime:
    """The time in UTC."""
    return datetime.now(timezone.utc)


def _bytes_of(path: Path) -> bytes | None:
    try:
        with open_regular(path) as stream:
            return stream.read()
    except OSError:
        return None


def _restore(path: Path, data: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)


def _copy_files(source: Path, target: Path) -> None:
    """The contents without the permissions, which may be to read only. The link to the present root is made anew."""
    for path in source.rglob("*.json"):
        if not path.is_symlink():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
