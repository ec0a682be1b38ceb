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
from tunehub_registry.trust.bins import NAMES_PER_BIN, Bin, bin_metadata, bins_of, bits_for, by_bin, index_role
from tunehub_registry.trust.layout import MAX_TARGETS_BYTES, versioned_path
from tunehub_registry.trust.metadata import Grant
from tunehub_registry.trust.state import SignedState, StateReader

MAX_RIDING_BYTES = 8192  # a larger shard is fetched by who wants it


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

    def with_names(self, files: Mapping[str, TargetFile]) -> tuple[list[Draft[Targets]], dict[str, TargetDescriptor]]:
        """Drafts with these names, and what the names are for that were not in bins before."""
        head = self.reader.head(self.state, self.publisher)
        bins = bins_of(head)
        if head is not None and bins is not None and self._keys_stand(bins):
            drafts = [self._draft(part, self.reader.bin(self.state, head, part.role), head)
                      for part in by_bin(bins, files)]  # fmt: skip
            if all(len(draft.make(1).targets) <= 2 * NAMES_PER_BIN for draft in drafts):
                return drafts, {}
        whole = self.reader.role(self.state, self.publisher)
        every = {**self._stating(whole), **files}
        bits = bits_for(len(every), 0 if bins is None else bins.bit_length)
        targets = {} if bins is not None else {name: rules.stated_target(file) for name, file in every.items()}
        return self._all(every, bits), {name: target for name, target in targets.items() if target is not None}

    def renewed(self) -> list[Draft[Targets]]:
        """Drafts of all that there is, signed anew."""
        whole = self.reader.role(self.state, self.publisher)
        bins = bins_of(whole)
        assert whole is not None and bins is not None
        return self._all(whole.targets, bins.bit_length)

    def _all(self, files: Mapping[str, TargetFile], bits: int) -> list[Draft[Targets]]:
        base = self._version(self.publisher)

        def make(version: int) -> Targets:
            return index_role(self.publisher, bits, self.grant, version, self.reader.now())

        index = make(base + 1)
        bins = bins_of(index)
        assert bins is not None
        parts = {part.role: part for part in by_bin(bins, files)}
        first = Draft(
            role=self.publisher, base=base, make=make, signers=self.signers, delegator=self.state.targets
        )  # fmt: skip
        return [first, *(self._draft(parts.get(role, Bin(role=role, targets={})), None, index)
                         for role in bins.get_roles())]  # fmt: skip

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
