"""Which records of a package the installed TVM cannot use, by the replays published beside it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunehub.exceptions import PackageUnusableError, RegistryUnreadableError
from tunehub.registries.documents import read_document
from tunehub_registry.document import COMPAT
from tunehub_registry.exceptions import NewerFormatWarning, RegistryError

if TYPE_CHECKING:
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.port import OnProblem, Registry
    from tunehub.registries.resolution import Chosen

_REMEDY = "report it to the publisher of the package; no record of it is masked until then"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mask:
    """The records that are not to serve, by tuner and key, each with the reason."""

    package: str
    tvm: str
    reasons: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def __str__(self) -> str:
        """What the report says."""
        (tuner, key), reason = next(iter(self.reasons.items()))
        count = len(self.reasons)
        found = "1 record" if count == 1 else f"{count} records"
        return f"masked: {found} of {self.package} that TVM {self.tvm} cannot use, such as {tuner} {key}: {reason}"


def read_mask(
    chosen: Chosen, registry: Registry, cache: BlobCache, tvm_version: str | None, on_problem: OnProblem
) -> Mask | None:
    """The mask of a package for a TVM; None when nothing is masked.

    A document that cannot be read or is damaged is given to `on_problem`, and masks nothing.
    """
    if tvm_version is None or chosen.entry.document(COMPAT) is None:
        return None
    from tunehub_registry.compat import parse_compat  # most packages have none

    try:
        data = read_document(chosen.entry, COMPAT, registry, cache)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NewerFormatWarning)
            compat = parse_compat(data or b"", f"{COMPAT} of {chosen.label}")
        if compat.package != chosen.entry.sha256:
            raise RegistryUnreadableError(
                registry.address, f"the replays beside {chosen.label} are of another package", remedy=_REMEDY
            )
    except (RegistryError, RegistryUnreadableError) as error:
        reason = f"what is known of {chosen.label} on each TVM is not used: {error}"
        on_problem(PackageUnusableError(reason, remedy=_REMEDY))
        return None
    reasons = compat.masked(tvm_version)
    return Mask(package=chosen.label, tvm=tvm_version, reasons=reasons) if reasons else None
