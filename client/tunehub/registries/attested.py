"""What machines that the user trusts have measured of a package: read, verified and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.registries.documents import read_document
from tunehub_registry.document import ATTESTATIONS

if TYPE_CHECKING:
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.port import Registry
    from tunehub.registries.trust_store import TrustStore
    from tunehub_registry.index import ShardEntry
    from tunehub_registry.trust.attestations import AttestationSummary


def read_attestations(
    name: str, entry: ShardEntry, registry: Registry, cache: BlobCache, trust: TrustStore
) -> AttestationSummary | None:
    """None when nothing is beside the version. Raises RegistryUnreadableError and KeyUnusableError."""
    data = read_document(entry, ATTESTATIONS, registry, cache)
    if data is None:
        return None
    from tunehub_registry.attestation import PackageSubject
    from tunehub_registry.trust.attestations import verify_attestations

    subject = PackageSubject.of(name, entry.version, entry.sha256)
    return verify_attestations(data, subject, trust.attesters(), f"attestations of {name} {entry.version}")
