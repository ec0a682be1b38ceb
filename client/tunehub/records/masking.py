"""Which records of a package the installed TVM cannot use, by the replays published beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunehub.exceptions import PackageUnusableError, RegistryUnreadableError
from tunehub.registries.replayed import REPLAY_REMEDY, read_compat
from tunehub_registry.exceptions import RegistryError

if TYPE_CHECKING:
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.port import OnProblem, Registry
    from tunehub.registries.resolution import Chosen


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
    if tvm_version is None:
        return None
    try:
        compat = read_compat(chosen.label, chosen.entry, registry, cache)
    except (RegistryError, RegistryUnreadableError) as error:
        reason = f"what is known of {chosen.label} on each TVM is not used: {error}"
        on_problem(PackageUnusableError(reason, remedy=REPLAY_REMEDY))
        return None
    reasons = {} if compat is None else compat.masked(tvm_version)
    return Mask(package=chosen.label, tvm=tvm_version, reasons=reasons) if reasons else None
