"""Publishing attestations: one more line of the document that lies beside a package."""

from __future__ import annotations

import hashlib

from tunehub_registry.document import ATTESTATIONS, MAX_DOCUMENT_BYTES
from tunehub_registry.exceptions import FormatError, NotFoundError
from tunehub_registry.index import ShardEntry
from tunehub_registry.publishing.changes import find_version
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, Ledger, RetryPolicy
from tunehub_registry.publishing.packages import attach
from tunehub_registry.trust.attestations import read_envelope


def attach_attestation(
    ledger: Ledger, envelope: bytes, source: str, *, retry: RetryPolicy = DEFAULT_RETRY
) -> tuple[str, ShardEntry]:
    """Add an envelope to those beside the package that it is about; the same one again changes nothing.

    Whether its key is known is for readers. Of two that are added at the same moment the later may replace the other:
    add that once more. Returns the package's name and its entry. Raises FormatError for what is no attestation or when
    what is there is damaged, and as `attach`.
    """
    subject = read_envelope(envelope, source)[1].subject[0]
    name, version = subject.package
    ledger.begin()
    state = ledger.read([name]).names[name]
    if state is None:
        raise NotFoundError(f"{name} is not in the registry: `tunehub list` shows the names")
    present = _present(ledger, find_version(state.shard, version))
    lines = [*present.splitlines(), envelope.strip()]
    data = b"".join(line + b"\n" for line in dict.fromkeys(lines))
    entry = attach(
        ledger, name, version, package=subject.digest.sha256, kind=ATTESTATIONS, data=data, retry=retry
    )  # fmt: skip
    return name, entry


def _present(ledger: Ledger, entry: ShardEntry) -> bytes:
    document = entry.document(ATTESTATIONS)
    if document is None:
        return b""
    content = ledger.store.get(document.file, max_bytes=MAX_DOCUMENT_BYTES)
    assert content is not None  # no entity tag was given
    if hashlib.sha256(content.data).hexdigest() != document.sha256:
        raise FormatError("does not have the hash that its entry states", source=document.file)
    return content.data
