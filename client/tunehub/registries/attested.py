"""What machines that the user trusts have measured of a package: read, verified and counted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.documents import read_document
from tunehub_registry.document import ATTESTATIONS
from tunehub_registry.exceptions import NewerFormatWarning, RegistryError

if TYPE_CHECKING:
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.port import Registry
    from tunehub.registries.trust_store import TrustStore
    from tunehub_registry.index import ShardEntry
    from tunehub_registry.trust.attestations import AttestationSummary

TOO_FEW_REMEDY = (
    "`tunehub show NAME==VERSION` says which attestations count and why others do not; `tunehub trust attester add "
    "FILE.pub` counts those of another key"
)


def read_attestations(
    name: str, entry: ShardEntry, registry: Registry, cache: BlobCache, trust: TrustStore
) -> AttestationSummary | None:
    """None when nothing is beside the version. Raises RegistryUnreadableError, and KeyUnusableError or OSError for the
    keys of attesters."""
    data = read_document(entry, ATTESTATIONS, registry, cache)
    if data is None:
        return None
    from tunehub_registry.attestation import PackageSubject
    from tunehub_registry.trust.attestations import verify_attestations

    subject = PackageSubject.of(name, entry.version, entry.sha256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewerFormatWarning)
        source, now = f"attestations of {name} {entry.version}", datetime.now(timezone.utc)
        return verify_attestations(data, subject, trust.attesters(), source, now=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attesters:
    """Whose attestations count: those of the keys in `trust`, which is opened when it is needed."""

    cache: BlobCache
    trust: Callable[[], TrustStore]

    def summary(self, name: str, registry: Registry, entry: ShardEntry) -> AttestationSummary | None:
        """What they attest of a version; None when nothing is beside it, or no key is trusted. Raises as
        `read_attestations`."""
        if entry.document(ATTESTATIONS) is None or not self.trust().attesters():
            return None
        return read_attestations(name, entry, registry, self.cache, self.trust())

    def too_few(self, asked: int, name: str, registry: Registry, entry: ShardEntry) -> str | None:
        """Why a version is not attested by as many of the keys as are asked for, or None. Never raises."""
        if not asked:
            return None
        try:
            found = read_attestations(name, entry, registry, self.cache, self.trust())
        except (RegistryUnreadableError, RegistryError, OSError) as error:
            return f"attested by none of the {asked} asked: {error}"
        machines = found.machines if found else 0
        return None if machines >= asked else f"attested by {machines or 'none'} of the {asked} asked"
