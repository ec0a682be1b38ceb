"""What those who hold the keys of a signed registry do: who may publish what, other keys, new dates.

Everything is written so that a reader finds the registry valid at each moment. A key of a top-level role is replaced in
three steps: a root with the old and the new key, the role's metadata signed by the new one, a root with the new key
only (TUF specification 6.1 has the chain of roots).

Without the online key, roots are written, and the rest waits for the signing job
(:mod:`tunehub_registry.publishing.waiting_delegations`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar

from securesystemslib.signer import Signer
from tuf.api.metadata import Root, Targets

from tunehub_registry.publishing.bins import BinWriter
from tunehub_registry.publishing.draft import Draft
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, RetryPolicy, persist
from tunehub_registry.publishing.proposals import what_waits
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.publishing.waiting_delegations import WaitingDelegations, check_publisher, delegations_waiting
from tunehub_registry.stores.port import IfAbsent
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.bins import bins_of
from tunehub_registry.trust.catalogue import encode_catalogue
from tunehub_registry.trust.exceptions import RoleError
from tunehub_registry.trust.layout import versioned_path
from tunehub_registry.trust.metadata import Grant, Publisher
from tunehub_registry.trust.state import Excuse, SignedState

R = TypeVar("R")
RotatedRole = Literal["targets", "online"]
_ROLES: Mapping[str, tuple[str, ...]] = {"targets": (rules.TARGETS,), "online": rules.ONLINE}
_ALL: frozenset[Excuse] = frozenset({"root", "targets", "snapshot", "timestamp"})


@dataclass(frozen=True, kw_only=True, slots=True)
class NearExpiry:
    """A role that has to be renewed soon, or that is past its date already."""

    role: str
    expires: datetime


class Administration:
    """The changes of one registry. Not to be shared between threads."""

    def __init__(self, writer: MetadataWriter, *, retry: RetryPolicy = DEFAULT_RETRY) -> None:
        self._writer = writer
        self._reader = writer.reader
        self._retry = retry

    def delegate(self, publisher: Publisher, targets_keys: Sequence[Signer]) -> Publisher | None:
        """Let a publisher publish names, or give a known one other keys, threshold or patterns: returns what it was
        before, None for a new one and for one that stays as it is.

        Raises RoleError for patterns that overlap another publisher's, for a name that a removed publisher had, when
        published names would be left out or the published metadata is not signed by enough of the new keys.
        """

        found: list[Publisher | None] = []  # by the first attempt: later ones may see its own commit

        def attempt() -> None:
            state, before = self._read()
            known = rules.publishers_of(before.head)
            found.append(known.get(publisher.name))
            if known.get(publisher.name) == publisher:
                return
            rules.check_no_overlap(known.values(), publisher)
            self._check_metadata(state, before.head, publisher)
            self._commit_publishers(state, before, {**known, publisher.name: publisher}, targets_keys)

        self._persist(attempt)
        return None if found[0] == publisher else found[0]

    def remove(self, name: str, targets_keys: Sequence[Signer]) -> tuple[str, ...]:
        """Take a publisher's names away from it; returns those that disappear from the registry.

        Raises RoleError when there is no such publisher.
        """
        tried: list[list[str]] = []

        def attempt() -> None:
            state, before = self._read()
            known = rules.publishers_of(before.head)
            if name not in known:
                if tried:
                    return  # the answer to our own commit was lost
                raise _no_publisher(name, known)
            role = self._reader.role(state, name) if name in rules.publishers_of(state.targets) else None
            tried[:] = [[] if role is None else sorted(role.targets)]
            left = {other: publisher for other, publisher in known.items() if other != name}
            catalogue = {other: target for other, target in state.catalogue.items() if other not in tried[0]}
            self._commit_publishers(state, before, left, targets_keys, catalogue=encode_catalogue(catalogue))

        self._persist(attempt)
        return tuple(tried[0])

    def rotate_publisher(
        self, name: str, new_keys: Sequence[Signer], targets_keys: Sequence[Signer], *, threshold: int = 1
    ) -> None:
        """Replace a publisher's keys, and sign its metadata with the new ones, in one commit.

        Raises RoleError when there is no such publisher.
        """
        grant = Grant(keys=tuple(signer.public_key for signer in new_keys), threshold=threshold)

        def attempt() -> None:
            state, before = self._read()
            known = rules.publishers_of(before.head)
            if name not in known:
                raise _no_publisher(name, known)
            if known[name].grant != grant:
                changed = {**known, name: replace(known[name], grant=grant)}
                self._commit_publishers(state, before, changed, targets_keys, resigned=(name, new_keys))

        self._persist(attempt)

    def rotate_root(self, root_keys: Sequence[Signer], new_keys: Sequence[Signer], *, threshold: int) -> int:
        """Replace the root keys; the new root is signed by enough of the old and of the new ones.

        `root_keys` are the old ones at hand. Returns the version of the new root.
        """
        grant = Grant(keys=tuple(signer.public_key for signer in new_keys), threshold=threshold)

        def attempt() -> int:
            root = self._reader.renew_root()
            grants = rules.grants_of(root)
            if grants[rules.ROOT] == grant:
                return root.version
            return self._put_root({**grants, rules.ROOT: grant}, [*root_keys, *new_keys])

        return self._persist(attempt)

    def rotate(self, role: RotatedRole, new_key: Signer, root_keys: Sequence[Signer]) -> bool:
        """Replace the targets key, or the online key; returns whether it is done.

        For the online key the writer has to have the new one. A rotation that was cut off goes on when it is run again.
        Without the online key that of the targets key takes two runs, and the signing job between them: until then old
        metadata counts, which the old key has signed.
        """
        new = Grant(keys=(new_key.public_key,))
        names = _ROLES[role]

        def admit() -> None:
            grants = rules.grants_of(self._reader.renew_root())
            if any(grants[name] != new for name in names):
                both = {name: _both(grants[name], new) for name in names}
                if any(grants[name] != both[name] for name in names):
                    self._put_root({**grants, **both}, root_keys)

        def resign() -> bool:
            state = self._writer.read(excused=_ALL, former=True)
            if self._proposes:
                return self._targets_by(state, new_key)
            self._writer.commit(state, [self._renewal(state, [new_key])] if role == "targets" else [])
            return True

        def expel() -> None:
            grants = rules.grants_of(self._reader.renew_root())
            if any(grants[name] != new for name in names):
                self._put_root({**grants, **dict.fromkeys(names, new)}, root_keys)

        self._persist(admit)
        if not self._persist(resign):
            return False
        self._persist(expel)
        # Once more: a publisher that did not know of the last root may have signed with the old key meanwhile. Whoever
        # reads this timestamp knows of that root, and who read an earlier one can no longer commit. The signing job
        # does the same: it looks for the root that a timestamp names.
        return self._persist(resign)

    def _targets_by(self, state: SignedState, new_key: Signer) -> bool:
        """Whether the published targets are signed by a new key. If not, they are proposed so, unless that waits."""
        grants = {**rules.grants_of(state.root), rules.TARGETS: Grant(keys=(new_key.public_key,))}
        wanted = rules.make_root(state.root.version, grants, self._reader.now())
        if self._reader.is_signed(rules.TARGETS, state.targets.version, wanted):
            return True
        before = delegations_waiting(self._reader, state)
        waits = before.adopted is not None and self._reader.is_signed(rules.TARGETS, before.head.version, wanted)
        if not waits:
            self._propose(self._renewal(state, [new_key], before.head), before.free)
        return False

    def refresh(
        self,
        *,
        root_keys: Sequence[Signer] = (),
        targets_keys: Sequence[Signer] = (),
        publisher_keys: Sequence[Signer] = (),
    ) -> tuple[NearExpiry, ...]:
        """Write a new timestamp, and a new snapshot when that is near its end; renew the roles whose keys are given.
        Without the online key only these.

        Returns the other roles that are near their end.
        """
        self._persist(lambda: self._reader.renew_root())
        if root_keys:
            self._persist(lambda: self._put_root(rules.grants_of(self._reader.renew_root()), root_keys))

        def attempt() -> SignedState:
            state = self._writer.read(excused=_ALL)
            if self._proposes:
                renewed.update(self._propose_renewals(state, targets_keys, publisher_keys))
                return state
            drafts = [self._renewal(state, targets_keys)] if targets_keys else []
            drafts += self._publisher_renewals(state, publisher_keys)
            if drafts or rules.near_expiry(state.snapshot, rules.SNAPSHOT, self._reader.now()):
                self._writer.commit(state, drafts)
            else:
                self._writer.commit_timestamp(state)
            return self._writer.read(excused=_ALL)

        renewed: set[str] = set()
        return tuple(item for item in self.near_expiry(self._persist(attempt)) if item.role not in renewed)

    def near_expiry(self, state: SignedState) -> tuple[NearExpiry, ...]:
        """The roles near their end whose keys are not online."""
        now = self._reader.now()
        roles: dict[str, Root | Targets] = {rules.ROOT: state.root, rules.TARGETS: state.targets}
        for name in rules.publishers_of(state.targets):
            role = self._reader.head(state, name)
            if role is not None:
                roles[name] = role
        return tuple(
            NearExpiry(role=name, expires=signed.expires)
            for name, signed in roles.items()
            if rules.near_expiry(signed, name, now)
        )

    def _propose_renewals(
        self, state: SignedState, targets_keys: Sequence[Signer], publisher_keys: Sequence[Signer]
    ) -> Iterator[str]:
        """Propose new dates for the roles whose keys are given, and name them."""
        if targets_keys:
            before = delegations_waiting(self._reader, state)
            self._propose(self._renewal(state, targets_keys, before.head), before.free)
            yield rules.TARGETS
        for draft in self._publisher_renewals(state, publisher_keys):
            waiting = what_waits(self._reader, state, draft.role)
            assert waiting.head is not None  # its draft renews it
            make = partial(rules.renewed_targets, waiting.head, draft.role, now=self._reader.now())
            self._propose(replace(draft, make=make), waiting.free)
            yield draft.role

    def _propose(self, draft: Draft[Targets], version: int) -> None:
        make = draft.make
        self._writer.put_proposal(replace(draft, make=lambda number: rules.as_proposal(make(number))), version)

    @property
    def _proposes(self) -> bool:
        return self._writer.online is None

    def _renewal(
        self, state: SignedState, targets_keys: Sequence[Signer], before: Targets | None = None
    ) -> Draft[Targets]:
        """The top-level targets with a new date: those of the state, or what waits."""
        grant = rules.grants_of(state.root)[rules.TARGETS]
        head = state.targets if before is None else before
        return Draft(
            role=rules.TARGETS,
            base=state.targets.version,
            make=lambda version: rules.renewed_targets(head, rules.TARGETS, version, self._reader.now()),
            signers=rules.signers_for("the targets role", grant, targets_keys, "--targets-key"),
            delegator=state.root,
        )

    def _publisher_renewals(self, state: SignedState, keys: Sequence[Signer]) -> list[Draft[Targets]]:
        """Drafts for the publishers for whom enough of these keys sign."""
        drafts: list[Draft[Targets]] = []
        for name, publisher in rules.publishers_of(state.targets).items():
            with suppress(RoleError):
                signers = rules.signers_for(name, publisher.grant, keys, "--key")
                drafts += self._role_drafts(state, name, signers, state.targets)
        return drafts

    def _role_drafts(
        self, state: SignedState, name: str, signers: Sequence[Signer], delegator: Targets
    ) -> list[Draft[Targets]]:
        """A publisher's metadata, as it is, signed anew: with that of its bins; none when there is none yet."""
        role = self._reader.head(state, name)
        if role is None:
            return []
        if bins_of(role) is not None:
            if self._proposes:
                raise RoleError(f"{name} has its names in bins", remedy="give the online key: --online-key")
            grant = rules.publishers_of(delegator)[name].grant
            bins = BinWriter(reader=self._reader, state=state, publisher=name, grant=grant, signers=signers)
            first, *others = bins.renewed()
            return [replace(first, delegator=delegator), *others]
        return [
            Draft(
                role=name,
                base=role.version,
                make=lambda version: rules.renewed_targets(role, name, version, self._reader.now()),
                signers=signers,
                delegator=delegator,
            )
        ]

    def _commit_publishers(
        self,
        state: SignedState,
        before: WaitingDelegations,
        publishers: Mapping[str, Publisher],
        targets_keys: Sequence[Signer],
        *,
        catalogue: str | None = None,
        resigned: tuple[str, Sequence[Signer]] | None = None,
    ) -> None:
        def make(version: int) -> Targets:
            return rules.with_publishers(before.head, publishers.values(), version, self._reader.now())

        draft = replace(self._renewal(state, targets_keys), make=make)
        drafts: list[Draft[Targets]] = []
        if resigned is not None:
            name, signers = resigned
            drafts += self._role_drafts(state, name, signers, make(before.free))
        if not self._proposes:
            self._writer.commit(state, [draft, *drafts], catalogue=catalogue)
            return
        for each in drafts:
            self._propose(each, what_waits(self._reader, state, each.role, make(before.free)).free)
        self._propose(draft, before.free)

    def _check_metadata(self, state: SignedState, before: Targets, publisher: Publisher) -> None:
        """Refuse what would make a publisher's present metadata invalid, or hide names that are in it."""
        check_publisher(self._reader, state, before, publisher)
        published = f"{publisher.name}.json" in state.snapshot.meta
        if published and not publisher.grant.admits(rules.publishers_of(before)[publisher.name].grant):
            reason = f"what {publisher.name} has published is signed with its old keys"
            remedy = "use `tunehub rotate`, which signs it anew; here keys can only be added"
            raise RoleError(reason, remedy=remedy)

    def _read(self) -> tuple[SignedState, WaitingDelegations]:
        """The state, and what changes are made from: without the online key, with what waits."""
        self._reader.renew_root()
        state = self._writer.read(excused=frozenset({"targets"}))
        if self._proposes:
            return state, delegations_waiting(self._reader, state)
        return state, WaitingDelegations(head=state.targets, free=state.targets.version + 1)

    def _put_root(self, grants: Mapping[str, Grant], signers: Sequence[Signer]) -> int:
        """Write the next root. Raises ConflictError when another was first, RoleError when signers are missing."""
        before = self._reader.root
        root = rules.make_root(before.version + 1, grants, self._reader.now())
        old = rules.signers_for("the root", rules.grants_of(before)[rules.ROOT], signers, "--root-key")
        new = rules.signers_for("the new root", grants[rules.ROOT], signers, "--root-key and --new-key")
        used = {signer.public_key.keyid: signer for signer in (*old, *new)}
        data = rules.sign(rules.ROOT, root, list(used.values()), root)
        self._writer.store.put(versioned_path(rules.ROOT, root.version), data, IfAbsent())
        return self._reader.renew_root().version

    def _persist(self, attempt: Callable[[], R]) -> R:
        return persist(attempt, address=self._writer.store.address, retry=self._retry)


def _both(before: Grant, new: Grant) -> Grant:
    """The old keys and the new ones; any of them signs."""
    keys = {key.keyid: key for key in (*before.keys, *new.keys)}
    return Grant(keys=tuple(keys.values()))


def _no_publisher(name: str, known: Mapping[str, Publisher]) -> RoleError:
    names = ", ".join(sorted(known)) or "none yet"
    return RoleError(f"there is no publisher {name}; there are {names}", remedy="correct the name")
