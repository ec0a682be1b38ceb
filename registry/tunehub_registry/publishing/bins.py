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
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.bins import (
    NAMES_PER_BIN,
    NAMES_PER_ROLE,
    Bin,
    bin_metadata,
    bins_of,
    bits_for,
    by_bin,
    index_role,
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
        head = self.reader.head(self.state, self.publisher)
        known = {} if head is None else head.targets
        return bins_of(head) is None and not bits_for(len(known.keys() | names.keys()))

    def with_names(self, files: Mapping[str, TargetFile]) -> Parted:
        """Drafts with these names: each stays where it is, and new ones are listed where the catalogue needs them."""
        head = self.reader.head(self.state, self.publisher)
        bins = bins_of(head)
        if head is not None and bins is not None and self._keys_stand(bins):
            own = self._own(head, bins, files)
            others = {name: file for name, file in files.items() if name not in own}
            drafts = [self._draft(part, self.reader.bin(self.state, head, part.role), head)
                      for part in by_bin(bins, others)]  # fmt: skip
            if all(len(draft.make(1).targets) <= 2 * NAMES_PER_BIN for draft in drafts):
                first = [self._index(bins.bit_length, {**head.targets, **own})] if own else []
                return Parted(drafts=(*first, *drafts), listed=_targets(own))
        every = {**self._stating(self.reader.role(self.state, self.publisher)), **files}
        bits = bits_for(len(every), 0 if bins is None else bins.bit_length)
        return self._all(every, bits, self._own(head, bins, every))

    def renewed(self) -> tuple[Draft[Targets], ...]:
        """Drafts of all that there is, signed anew."""
        head, whole = self.reader.head(self.state, self.publisher), self.reader.role(self.state, self.publisher)
        bins = bins_of(head)
        assert head is not None and whole is not None and bins is not None
        return self._all(whole.targets, bins.bit_length, head.targets).drafts

    def _own(
        self, head: Targets | None, bins: SuccinctRoles | None, files: Mapping[str, TargetFile]
    ) -> dict[str, TargetFile]:
        """Those of the names that the publisher's own metadata has, or is to have."""
        before = head.targets if head is not None and bins is not None else {}
        new = {name: file for name, file in files.items() if not self._is_in_bin(head, bins, name)}
        targets = {name: target for name, target in _targets(new).items() if name not in before}
        listed = {name: target for name, target in self.state.catalogue.items() if name not in targets}
        chosen = samples(listed, targets) if len(before) < NAMES_PER_ROLE else frozenset()
        return {name: file for name, file in files.items() if name in before or name in chosen}

    def _is_in_bin(self, head: Targets | None, bins: SuccinctRoles | None, name: str) -> bool:
        if head is None or bins is None:
            return False
        part = self.reader.bin(self.state, head, bins.get_role_for_target(name))
        return part is not None and name in part.targets

    def _all(self, files: Mapping[str, TargetFile], bits: int, own: Mapping[str, TargetFile]) -> Parted:
        first = self._index(bits, own)
        index = first.make(first.base + 1)
        bins = bins_of(index)
        assert bins is not None
        others = {name: file for name, file in files.items() if name not in own}
        parts = {part.role: part for part in by_bin(bins, others)}
        drafts = [self._draft(parts.get(role, Bin(role=role, targets={})), None, index) for role in bins.get_roles()]
        return Parted(drafts=(first, *drafts), listed=_targets(own), unlisted=frozenset(others))

    def _index(self, bits: int, own: Mapping[str, TargetFile]) -> Draft[Targets]:
        base = self._version(self.publisher)
        return Draft(
            role=self.publisher,
            base=base,
            make=lambda version: index_role(self.publisher, bits, self.grant, own, version, self.reader.now()),
            signers=self.signers,
            delegator=self.state.targets,
            attached=lambda: self._shards(own, versioned_path(self.publisher, base) if base else None),
        )

    def _draft(self, part: Bin, before: Targets | None, index: Targets) -> Draft[Targets]:
        files = {**(before.targets if before else {}), **part.targets}
        return Draft(
            role=part.role,
            base=self._version(part.role),
            make=lambda version: bin_metadata(before, part.targets, version, self.reader.now()),
            signers=self.signers,
            delegator=index,
            attached=lambda: self._shards(files, None if before is None else versioned_path(part.role, before.version)),
        )

    def _shards(self, files: Mapping[str, TargetFile], riding_in: str | None) -> dict[str, bytes]:
        """The shards of names that can be had: the others are fetched by who wants them."""
        if riding_in is not None:
            self.reader.files.get(riding_in, max_bytes=MAX_TARGETS_BYTES)
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

    def _stating(self, whole: Targets | None) -> dict[str, TargetFile]:
        """A publisher's names, each with what it is for: of names that were not in bins, the catalogue says that."""
        files = {} if whole is None else dict(whole.targets)
        for name, file in files.items():
            known = self.state.catalogue.get(name)
            if rules.stated_target(file) is None and known is not None:
                files[name] = rules.with_target(file, known)
        return files

    def _keys_stand(self, bins: SuccinctRoles) -> bool:
        return (tuple(bins.keyids), bins.threshold) == (self.grant.key_ids, self.grant.threshold)

    def _version(self, role: str) -> int:
        meta = self.state.snapshot.meta.get(f"{role}.json")
        return 0 if meta is None else meta.version


def _targets(files: Mapping[str, TargetFile]) -> dict[str, TargetDescriptor]:
    """What names are for, as far as that is stated."""
    stated = {name: rules.stated_target(file) for name, file in files.items()}
    return {name: target for name, target in stated.items() if target is not None}
