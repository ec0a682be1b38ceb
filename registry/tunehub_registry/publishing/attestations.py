"""Publishing attestations: one more line of the document that lies beside a package."""

from __future__ import annotations

import hashlib

from tunehub_registry.attestation import PackageSubject
from tunehub_registry.document import ATTESTATIONS, MAX_DOCUMENT_BYTES
from tunehub_registry.exceptions import FormatError, NotFoundError
from tunehub_registry.index import ShardEntry
from tunehub_registry.publishing.changes import find_version
from tunehub_registry.publishing.exceptions import DocumentChangedError, PublishError
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, Ledger, RetryPolicy, persist
from tunehub_registry.publishing.packages import attach
from tunehub_registry.stores.port import ConflictError
from tunehub_registry.trust.attestations import MAX_ATTESTATIONS, read_envelope


def attach_attestation(
    ledger: Ledger, envelope: bytes, source: str, *, retry: RetryPolicy = DEFAULT_RETRY
) -> tuple[str, ShardEntry]:
    """Add an envelope to those beside the package that it is about; the same one again changes nothing.

    Whether its key is known is for readers. The document is replaced only where it is still the one that was read, so
    that of many writers none loses a line. Returns the package's name and its entry. Raises FormatError for what is no
    attestation or when what is there is damaged, PublishError when no more would be read, and as `attach`.
    """
    subject = read_envelope(envelope, source)[1].subject[0]

    def attempt() -> ShardEntry:
        try:
            return _attach(ledger, subject, envelope.strip(), retry)
        except DocumentChangedError as error:
            address = ledger.store.address
            raise ConflictError(error.reason, address=address, path=subject.name, remedy=error.remedy) from error

    return subject.package[0], persist(attempt, address=ledger.store.address, retry=retry)


def _attach(ledger: Ledger, subject: PackageSubject, line: bytes, retry: RetryPolicy) -> ShardEntry:
    """Add the line to what is there now. Raises DocumentChangedError when that is others in the meantime."""
    name, version = subject.package
    ledger.begin()
    state = ledger.read([name]).names[name]
    if state is None:
        raise NotFoundError(f"{name} is not in the registry: `tunehub list` shows the names")
    entry = find_version(state.shard, version)
    lines = list(dict.fromkeys([*_present(ledger, entry).splitlines(), line]))
    if len(lines) > MAX_ATTESTATIONS:
        reason = f"{name} {version} has {MAX_ATTESTATIONS} attestations, and no more are read"
        raise PublishError(reason, address=ledger.store.address, remedy="attest its next version")
    return attach(
        ledger, name, version, package=subject.digest.sha256, kind=ATTESTATIONS,
        data=b"".join(each + b"\n" for each in lines), replaces=entry.document(ATTESTATIONS), retry=retry,
    )  # fmt: skip


def _present(ledger: Ledger, entry: ShardEntry) -> bytes:
    document = entry.document(ATTESTATIONS)
    if document is None:
        return b""
    content = ledger.store.get(document.file, max_bytes=MAX_DOCUMENT_BYTES)
    assert content is not None  # no entity tag was given
    if hashlib.sha256(content.data).hexdigest() != document.sha256:
        raise FormatError("does not have the hash that its entry states", source=document.file)
    return content.data
