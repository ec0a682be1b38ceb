"""The next metadata of publishers whose names are in bins: of the bins that change, or of all with what leads there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from securesystemslib.signer import Signer
from tuf.api.metadata import SuccinctRoles, TargetFile, Targets

from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import MAX_SHARD_BYTES, shard_path
from tunehub_registry.publishing.draft import Draft
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.bins import (
    NAMES_PER_ROLE,
    Names,
    bin_metadata,
    bins_of,
    bits_for,
    by_bin,
    index_role,
    names_in,
)
from tunehub_registry.trust.catalogue import samples
from tunehub_registry.trust.layout import MAX_TARGETS_BYTES, versioned_path
from tunehub_registry.trust.metadata import Grant
from tunehub_registry.trust.state import SignedState, StateReader

MAX_RIDING_BYTES = 8192  # a larger shard is fetched by who wants it


@dataclass(frozen=True, kw_only=True, slots=True)
class Parted:
    """What is to be written of a publisher, and what of its names the catalogue lists from then on, or no more."""

    drafts: tuple[Draft[Targets], ...]
    listed: Mapping[str, TargetDescriptor]
    unlisted: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class BinWriter:
    """One publisher in one state: its keys as delegated, and what signs."""

    reader: StateReader
    state: SignedState
    publisher: str
    grant: Grant
    signers: Sequence[Signer]

    def names_stay_here(self, names: Mapping[str, object]) -> bool:
        """Whether the publisher has no bins, and needs none with these names, too."""
        head = self._head
        known = {} if head is None else head.targets
        return bins_of(head) is None and not bits_for(len(known.keys() | names.keys()))

    def with_names(self, names: Names) -> Parted:
        """Drafts with these names: each stays where it is, and new ones are listed where the catalogue needs them."""
        head, bins = self._head, bins_of(self._head)
        if head is None or bins is None:
            every = self._every() | names
            return self._all(every, bits_for(len(every.files)), every.of(samples(self._others(every), every.machines)))
        parts = {role: names_in(self.reader.bin(self.state, head, role)) for role in by_bin(bins, names)}
        own = names.of(self._own(head, names, parts))
        if not self._keys_stand(bins):
            return self._all(self._every() | names, bins.bit_length, self._listed(head) | own)
        in_bins = by_bin(bins, names.of(names.files.keys() - own.files.keys()))
        after = {role: parts[role] | new for role, new in in_bins.items()}
        if any(len(part.files) > 2 * NAMES_PER_ROLE for part in after.values()):
            return self._all(self._every() | names, bins.bit_length + 1, self._listed(head) | own)
        drafts = [self._draft(role, part, head) for role, part in after.items()]
        first = [self._index(bins.bit_length, self._listed(head) | own)] if own.files else []
        return Parted(drafts=(*first, *drafts), listed=own.machines)

    def renewed(self) -> tuple[Draft[Targets], ...]:
        """Drafts of all that there is, signed anew."""
        head, bins = self._head, bins_of(self._head)
        assert head is not None and bins is not None
        return self._all(self._every(), bins.bit_length, self._listed(head)).drafts

    @property
    def _head(self) -> Targets | None:
        return self.reader.head(self.state, self.publisher)

    def _own(self, head: Targets, names: Names, parts: Mapping[str, Names]) -> frozenset[str]:
        """Those of the names that the publisher's own metadata has, or is to have."""
        before = names.files.keys() & head.targets.keys()
        known = before.union(*(part.files for part in parts.values()))
        new = names.of(names.files.keys() - known)
        room = len(head.targets) < NAMES_PER_ROLE
        return frozenset(before) | (samples(self._others(new), new.machines) if room else frozenset())

    def _others(self, names: Names) -> dict[str, TargetDescriptor]:
        """What the catalogue lists but these names."""
        return {name: target for name, target in self.state.catalogue.items() if name not in names.files}

    def _listed(self, head: Targets) -> Names:
        """The names that the publisher's own metadata has."""
        return Names(files=head.targets, machines=self.state.catalogue).of(head.targets)

    def _every(self) -> Names:
        """All names that are published."""
        head, bins = self._head, bins_of(self._head)
        if head is None:
            return Names()
        every = self._listed(head)
        for role in bins.get_roles() if bins is not None else ():
            every |= names_in(self.reader.bin(self.state, head, role))
        return every

    def _all(self, every: Names, bits: int, own: Names) -> Parted:
        first = self._index(bits, own)
        index = first.make(first.base + 1)
        bins = bins_of(index)
        assert bins is not None
        others = every.of(every.files.keys() - own.files.keys())
        parts = by_bin(bins, others)
        drafts = [self._draft(role, parts.get(role, Names()), index) for role in bins.get_roles()]
        return Parted(drafts=(first, *drafts), listed=own.machines, unlisted=frozenset(others.files))

    def _index(self, bits: int, own: Names) -> Draft[Targets]:
        return Draft(
            role=self.publisher,
            base=self._version(self.publisher),
            make=lambda version: index_role(
                self.publisher, bits, self.grant, own.files, version, self.reader.now()
            ),
            signers=self.signers,
            delegator=self.state.targets,
            attached=lambda: self._shards(self.publisher, own.files),
        )  # fmt: skip

    def _draft(self, role: str, names: Names, index: Targets) -> Draft[Targets]:
        return Draft(
            role=role,
            base=self._version(role),
            make=lambda version: bin_metadata(names, version, self.reader.now()),
            signers=self.signers,
            delegator=index,
            attached=lambda: self._shards(role, names.files),
        )

    def _shards(self, role: str, files: Mapping[str, TargetFile]) -> dict[str, bytes]:
        """The shards of names that can be had: the others are fetched by who wants them."""
        if present := self._version(role):  # most ride in it
            self.reader.files.get(versioned_path(role, present), max_bytes=MAX_TARGETS_BYTES)
        found: dict[str, bytes] = {}
        for file in files.values():
            sha256 = file.hashes.get("sha256", "")
            path = shard_path(sha256)
            if file.length <= MAX_RIDING_BYTES:
                with suppress(RegistryError):
                    content = self.reader.files.get(path, max_bytes=MAX_SHARD_BYTES)
                    if content is not None and hashlib.sha256(content.data).hexdigest() == sha256:
                        found[path] = content.data
        return found

    def _keys_stand(self, bins: SuccinctRoles) -> bool:
        return (tuple(bins.keyids), bins.threshold) == (self.grant.key_ids, self.grant.threshold)

    def _version(self, role: str) -> int:
        meta = self.state.snapshot.meta.get(f"{role}.json")
        return 0 if meta is None else meta.version
