"""What lies beside a package, read for its page: replays on releases of TVM, and what other machines measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tunehub.exceptions import HubError, PackageUnusableError
from tunehub.registries.attested import read_attestations
from tunehub.registries.replayed import read_compat
from tunehub.site.contents import VersionLine
from tunehub_registry.exceptions import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.registries.blob_cache import BlobCache
    from tunehub.registries.port import OnProblem
    from tunehub.registries.trust_store import TrustStore
    from tunehub_registry.compat import Compat
    from tunehub_registry.trust.attestations import AttestationSummary

_REMEDY = "its publisher has to attach it again"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """The documents of the current version; None for those that it lacks, or that cannot be read (`problems`)."""

    compat: Compat | None = None
    attestations: AttestationSummary | None = None
    problems: tuple[str, ...] = ()


def read_beside(line: VersionLine, cache: BlobCache, trust: TrustStore, on_problem: OnProblem) -> Beside:
    """Read and verify them: attestations count by the keys of the trust store. What fails goes to `on_problem`."""
    entry, registry = line.current, line.registry
    label = f"{line.name} {entry.version}"
    problems: list[str] = []

    def note(error: HubError) -> None:
        on_problem(error)
        problems.append(str(error))

    def compat() -> Compat | None:
        return read_compat(label, entry, registry, cache)

    def attestations() -> AttestationSummary | None:
        return read_attestations(line.name, entry, registry, cache, trust)

    return Beside(
        compat=_attempt(compat, f"the replays of {label}", note),
        attestations=_attempt(attestations, f"the attestations of {label}", note),
        problems=tuple(problems),
    )


def _attempt(read: Callable[[], T | None], what: str, on_problem: OnProblem) -> T | None:
    try:
        return read()
    except (HubError, RegistryError) as error:
        on_problem(PackageUnusableError(f"{what} are not shown: {error}", remedy=_REMEDY))
        return None
