"""The ledger of a signed registry: roles and snapshot under new numbers, then the timestamp as the commit point.

TUF's consistent snapshots (specification 6.2) make every file but the timestamp immutable. Number N+1 of a file is then
also a claim: who finds it taken gives way for a moment, since its writer is about to commit, and takes the next number
when nothing comes of it, since then its writer was killed.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import MappingProxyType

from securesystemslib.signer import Signer
from tuf.api.metadata import MetaFile, Root, Snapshot, T, Targets

from tunehub_registry.index import INDEX_PATH, shard_path
from tunehub_registry.publishing.bins import BinWriter
from tunehub_registry.publishing.blobs import Uploads, exists
from tunehub_registry.publishing.changes import NameState
from tunehub_registry.publishing.draft import Draft
from tunehub_registry.publishing.exceptions import NotInitialisedError
from tunehub_registry.publishing.ledger import LedgerState
from tunehub_registry.publishing.log import LogStep, LogWriter, origin_of
from tunehub_registry.publishing.source import first_root
from tunehub_registry.publishing.unsigned import shard_bytes
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    FileMissingError,
    IfAbsent,
    IfMatch,
    WritableStore,
)
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.attached import attached_files
from tunehub_registry.trust.bins import Names, publishers_in_bins
from tunehub_registry.trust.catalogue import encode_catalogue
from tunehub_registry.trust.exceptions import RoleError, UntrustedError
from tunehub_registry.trust.layout import LOG_FIELD, MAX_TARGETS_BYTES, TIMESTAMP_PATH, versioned_path
from tunehub_registry.trust.state import Clock, Excuse, SignedState, StateReader, utc_now

_FIRST_PACE_S = 0.01  # what a write takes, until it is known better


class MetadataWriter:
    """Writes metadata over a verified state. Not to be shared between threads."""

    def __init__(
        self,
        store: WritableStore,
        root: bytes,
        *,
        online: Signer | None,
        now: Clock = utc_now,
        lifetime: timedelta = rules.LIFETIMES[rules.TIMESTAMP],
        begins_log: bool = False,
    ) -> None:
        """Without the online key only roots and proposals can be written; `lifetime` is that of new timestamps.
        `begins_log`: the next timestamp begins a log where there is none.

        Raises UntrustedError when `root` is not a root.
        """
        self.lifetime = lifetime
        self.begins_log = begins_log
        self._log = LogWriter(store)
        self.store = store
        self.online = online
        self.reader = StateReader(store, root, now=now)
        self._taken: dict[str, int] = {}
        self._pace = _FIRST_PACE_S

    def read(self, *, excused: frozenset[Excuse] = frozenset(), former: bool = False) -> SignedState:
        """The present state. Raises NotInitialisedError, and as `StateReader.read`."""
        try:
            return self.reader.read(excused=excused, former=former)
        except (FileMissingError, AccessDeniedError) as error:
            if error.path != TIMESTAMP_PATH:
                raise
            raise self._not_initialised(error) from error

    def online_signers(self, root: Root) -> list[Signer]:
        """The online key, as a list. Raises RoleError when it is not the registry's."""
        grants = rules.grants_of(root)
        given = [] if self.online is None else [self.online]
        for role in rules.ONLINE:
            rules.signers_for(f"the {role}", grants[role], given, "--online-key")
        return given

    def commit(
        self,
        state: SignedState,
        drafts: Iterable[Draft[Targets]] = (),
        *,
        adopted: Mapping[str, MetaFile] = MappingProxyType({}),
        catalogue: str | None = None,
    ) -> None:
        """Write the drafts and a snapshot that has them, then replace the timestamp of `state`. What is `adopted`, by
        role, is there already and verified.

        Raises ConflictError when another writer was first, RoleError, KeyUnusableError, and what stores raise.
        """
        self.online_signers(state.root)
        changed = dict(adopted)
        for draft in drafts:
            signed, data = self._put_next(draft)
            changed[draft.role] = rules.meta_of(signed.version, data)
            self.reader.remember(draft.role, data, signed, draft.delegator.version)
        text = state.catalogue_text if catalogue is None else catalogue
        self._commit_snapshot(state, changed, text)

    def commit_timestamp(self, state: SignedState, snapshot: tuple[MetaFile, Snapshot] | None = None) -> None:
        """Replace the timestamp of `state`, by one for another snapshot if given. Raises as `commit`."""
        signers = self.online_signers(state.root)
        present = state.timestamp.snapshot_meta
        fields = state.timestamp.unrecognized_fields
        meta = present if snapshot is None else snapshot[0]
        step = None if snapshot is None else self._log.next(fields, present, meta, signers[0])
        if self.begins_log and LOG_FIELD not in fields:
            step = self._log.first(origin_of(first_root(self.store)), meta, signers[0])
        signed = rules.next_timestamp(
            meta, state.root.version, state.timestamp.version + 1,
            self.reader.now(), lifetime=self.lifetime, log=fields.get(LOG_FIELD) if step is None else step.note,
        )  # fmt: skip
        if snapshot is None:
            attached = attached_files(TIMESTAMP_PATH, state.timestamp_data)
        else:
            attached = self._attached(*snapshot, step)
        data = rules.sign(rules.TIMESTAMP, signed, signers, state.root, attached)
        etag = self.store.put(TIMESTAMP_PATH, data, IfMatch(etag=state.etag))
        self.reader.remember_timestamp(data, etag, signed.version)
        if step is not None:
            self._log.finish(step)

    def _commit_snapshot(self, state: SignedState, changed: Mapping[str, MetaFile], catalogue: str) -> None:
        def make(version: int) -> Snapshot:
            return rules.next_snapshot(state.snapshot, changed, catalogue, version, self.reader.now())

        draft = Draft(
            role=rules.SNAPSHOT,
            base=state.snapshot.version,
            make=make,
            signers=self.online_signers(state.root),
            delegator=state.root,
        )
        signed, data = self._put_next(draft)
        self.reader.remember(rules.SNAPSHOT, data, signed, state.root.version)
        self.commit_timestamp(state, (rules.meta_of(signed.version, data), signed))

    def _attached(self, meta: MetaFile, snapshot: Snapshot, step: LogStep | None) -> dict[str, bytes]:
        """What rides in the timestamp of a registry with bins: what its clients would ask for next. None in others."""
        publishers = publishers_in_bins(name.removesuffix(".json") for name in snapshot.meta)
        if not publishers:
            return {}
        roles = {rules.SNAPSHOT: meta, **{role: snapshot.meta[f"{role}.json"] for role in (rules.TARGETS, *publishers)}}
        files = dict({} if step is None else step.tiles)
        for path in (versioned_path(role, described.version) for role, described in roles.items()):
            content = self.reader.files.get(path, max_bytes=MAX_TARGETS_BYTES)
            assert content is not None  # no tag was given
            files[path] = content.data
        return files

    def _put_next(self, draft: Draft[T]) -> tuple[T, bytes]:
        version = max(draft.base, self._taken.get(draft.role, 0))
        while True:
            version += 1
            signed = draft.make(version)
            data = rules.sign(draft.role, signed, draft.signers, draft.delegator, draft.attached())
            path = versioned_path(draft.role, version)
            start = time.monotonic()
            try:
                self.store.put(path, data, IfAbsent())
            except ConflictError as error:
                self._give_way(error)
                self._check_not_proposed(draft, version)
                continue
            finally:
                self._pace += (time.monotonic() - start - self._pace) / 4
                self._taken[draft.role] = version
            self.reader.files.keep(path, data)
            return signed, data

    def put_proposal(self, draft: Draft[Targets], version: int) -> None:
        """Write a publisher's next metadata for the signing job. Raises ConflictError when the number is taken."""
        signed = draft.make(version)
        data = rules.sign(draft.role, signed, draft.signers, draft.delegator)
        self.store.put(versioned_path(draft.role, version), data, IfAbsent())

    def _check_not_proposed(self, draft: Draft[T], version: int) -> None:
        """Raise RoleError where the number belongs to a proposal: the next one would leave out what that brings."""
        if draft.role == rules.SNAPSHOT:
            return
        with suppress(UntrustedError):
            if self.reader.proposal(draft.delegator, draft.role, version) is not None:
                reason = f"what {draft.role} has proposed (version {version}) waits to be published"
                raise RoleError(reason, remedy="run `tunehub timestamp STORE` first, then this again")

    def _give_way(self, error: ConflictError) -> None:
        """Wait for the commit of who has the number; raises `error` when there was one."""
        pause = self._pace
        end = time.monotonic() + min(max(10 * pause, 0.1), 3.0)
        while time.monotonic() < end:
            time.sleep(pause * random.uniform(0.5, 1.5))
            if self.reader.poll():
                raise error
            pause *= 2

    def _not_initialised(self, error: FileMissingError | AccessDeniedError) -> NotInitialisedError:
        if exists(self.store, INDEX_PATH):
            remedy = "say --unsigned to go on without signatures, or `tunehub mirror` it into a signed one"
            return NotInitialisedError("this registry is unsigned", address=self.store.address, remedy=remedy)
        remedy = "make one with `tunehub init`, or correct the address or the credentials"
        return NotInitialisedError(f"no registry here: {error.reason}", address=self.store.address, remedy=remedy)


class SignedLedger:
    """Reads and commits names of publishers whose keys are at hand. Not to be shared between threads."""

    def __init__(
        self,
        store: WritableStore,
        root: bytes,
        *,
        keys: Sequence[Signer],
        online: Signer | None,
        role: str | None = None,
        reviewed: bool = True,
        now: Clock = utc_now,
    ) -> None:
        """`root` is a trusted root; `keys` are publishers' keys. With `role`, only that publisher's names are written.
        What is not `reviewed` is not written where the delegation asks for reviews.

        Raises UntrustedError when `root` is not a root.
        """
        self.store = store
        self._writer = MetadataWriter(store, root, online=online, now=now)
        self._reader = self._writer.reader
        self._keys = tuple(keys)
        self._role = role
        self._reviewed = reviewed
        self._uploads = Uploads(store)

    def begin(self) -> None:
        """As the port says: look for new roots."""
        self._reader.renew_root()

    def read(self, names: Iterable[str]) -> LedgerState:
        """As the port says."""
        state = self._writer.read()
        self._writer.online_signers(state.root)
        return LedgerState(names={name: self._state(state, name) for name in names}, token=state)

    def commit(self, state: LedgerState, changed: Mapping[str, NameState]) -> None:
        """As the port says."""
        token = state.token
        assert isinstance(token, SignedState)
        shards: dict[str, dict[str, bytes]] = defaultdict(dict)
        for name, after in changed.items():
            shards[self._role_of(token, name)][name] = self._upload(after)
        drafts: list[Draft[Targets]] = []
        listed = {name: after.target for name, after in changed.items()}
        catalogue = dict(token.catalogue)
        for role, theirs in shards.items():
            writer = self._bins(token, role)
            if writer.names_stay_here(theirs):
                drafts.append(self._draft(token, role, theirs))
                continue
            files = {name: rules.target_of(name, data) for name, data in theirs.items()}
            parted = writer.with_names(Names(files=files, machines={name: listed.pop(name) for name in theirs}))
            drafts += parted.drafts
            catalogue = {name: target for name, target in catalogue.items() if name not in parted.unlisted}
            catalogue |= parted.listed
        catalogue |= listed
        same = catalogue == token.catalogue
        self._writer.commit(token, drafts, catalogue=token.catalogue_text if same else encode_catalogue(catalogue))

    def aliases_of_others(self, target: TargetDescriptor) -> tuple[str, ...]:
        """The aliases of a package's target that clients leave out: names that its publisher could not publish."""
        if not target.aliases:
            return ()
        targets = self._writer.read().targets
        own = rules.publisher_for(targets, target.name)
        names = {alias: f"{target.kind}-{alias.lower()}" for alias in target.aliases}
        return tuple(alias for alias, name in names.items() if rules.publisher_for(targets, name) != own)

    def _state(self, state: SignedState, name: str) -> NameState | None:
        role = self._role_of(state, name)
        self._signers(state, role)
        shard = self._reader.shard(self._head(state, role, name), name)
        if shard is None:
            return None
        target = self._target(state, role, name)
        if target is None:
            raise UntrustedError(
                f"its catalogue lacks {name}, which {role} published",
                address=self.store.address,
                path=versioned_path(rules.SNAPSHOT, state.snapshot.version),
                remedy="replace the online key, which hid it, with `tunehub rotate`; restore the snapshot",
            )
        return NameState(target=target, shard=shard)

    def _upload(self, after: NameState) -> bytes:
        data, sha256 = shard_bytes(after.shard)
        self._uploads.ensure(shard_path(sha256), data, sha256=sha256, size=len(data))
        self._reader.remember_shard(after.shard, data)
        self._reader.files.keep(shard_path(sha256), data)
        return data

    def _head(self, state: SignedState, role: str, name: str) -> Targets | None:
        """The publisher's metadata that the next of a name is made from."""
        return self._reader.part(state, role, name)

    def _target(self, state: SignedState, role: str, name: str) -> TargetDescriptor | None:
        """What the newest version of a name is for, as that metadata has it."""
        return self._reader.target(state, role, name)

    def _role_of(self, state: SignedState, name: str) -> str:
        role = rules.publisher_for(state.targets, name)
        if role is None:
            remedy = f"who has the targets key delegates it: `tunehub delegate STORE PUBLISHER --names {name} …`"
            raise RoleError(f"nobody may publish {name} in {self.store.address}", remedy=remedy)
        if self._role not in (None, role):
            remedy = f"publish it as {role}, or leave --role out"
            raise RoleError(f"{name} belongs to the publisher {role}, not to {self._role}", remedy=remedy)
        if not self._reviewed and rules.publishers_of(state.targets)[role].reviewed:
            remedy = "give --review FILE, which `tunehub review -o FILE` writes"
            raise RoleError(f"{role} publishes in {self.store.address} what a review has verified", remedy=remedy)
        return role

    def _signers(self, state: SignedState, role: str) -> list[Signer]:
        grant = rules.publishers_of(state.targets)[role].grant
        return rules.signers_for(f"the publisher {role}", grant, self._keys, "--key")

    def _draft(self, state: SignedState, role: str, shards: Mapping[str, bytes]) -> Draft[Targets]:
        before = self._reader.role(state, role)
        meta = state.snapshot.meta.get(f"{role}.json")
        return Draft(
            role=role,
            base=0 if meta is None else meta.version,
            make=lambda version: rules.with_shards(before, shards, version, self._reader.now()),
            signers=self._signers(state, role),
            delegator=state.targets,
        )

    def _bins(self, state: SignedState, role: str) -> BinWriter:
        grant = rules.publishers_of(state.targets)[role].grant
        return BinWriter(
            reader=self._reader, state=state, publisher=role, grant=grant, signers=self._signers(state, role)
        )  # fmt: skip
