"""What replays on releases of TVM made of a package's records: the document beside it, read and checked."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from tunehub.exceptions import RegistryUnreadableError
from tunehub.registries.documents import read_document
from tunehub_registry.document import COMPAT
from tunehub_registry.exceptions import NewerFormatWarning

if TYPE_CHECKING:
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.port import Registry
    from tunehub_registry.compat import Compat
    from tunehub_registry.index import ShardEntry

REPLAY_REMEDY = "report it to the publisher of the package; no record of it is masked until then"


def read_compat(label: str, entry: ShardEntry, registry: Registry, cache: BlobCache) -> Compat | None:
    """None when nothing is beside the version, which messages call `label`.

    Raises RegistryUnreadableError, also for replays of another package, and FormatError for a damaged document.
    """
    if entry.document(COMPAT) is None:
        return None
    from tunehub_registry.compat import parse_compat  # most packages have none

    data = read_document(entry, COMPAT, registry, cache)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewerFormatWarning)
        compat = parse_compat(data or b"", f"{COMPAT} of {label}")
    if compat.package != entry.sha256:
        reason = f"the replays beside {label} are of another package"
        raise RegistryUnreadableError(registry.address, reason, remedy=REPLAY_REMEDY)
    return compat
