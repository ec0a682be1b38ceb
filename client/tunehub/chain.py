"""The chain of registries: configured ones first, the embedded one last, resolved as one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from tunehub.embedded import embedded_registry
from tunehub.exceptions import HubError, RegistryUnreadableError, ResolutionError
from tunehub.registry_source import Registry, open_registry
from tunehub.resolution import (
    Chosen,
    Decision,
    NameOffer,
    RankedName,
    Requirement,
    Resolution,
    Unusable,
    choose_version,
    rank_names,
)
from tunehub_registry.index import Shard, ShardEntry
from tunehub_registry.target import Accepted, Rejected, TargetDescriptor

EMBEDDED = "embedded"
_NO_PACKAGE_REMEDY = (
    "tune for this machine with `tunehub tune`, or name a registry that has it in TUNEHUB_REGISTRY; "
    "`tunehub resolve` explains"
)
_MAX_REASONS = 5
OnProblem = Callable[[HubError], None]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One version of one name in one registry."""

    registry: Registry
    name: str
    target: TargetDescriptor
    entry: ShardEntry


class Chain:
    """Registries in order of preference. A registry that cannot be read is reported and left out."""

    def __init__(self, registries: Sequence[Registry], on_problem: OnProblem) -> None:
        """`on_problem` gets every RegistryUnreadableError; what it raises goes through."""
        self.registries = tuple(registries)
        self._on_problem = on_problem

    def offers(self) -> Iterator[NameOffer]:
        """Every name of every readable registry."""
        for position, registry in enumerate(self.registries):
            names = self._attempt(registry.names)
            for name, target in sorted(names.items()) if names else ():
                yield NameOffer(name=name, target=target, registry=registry.address, position=position)

    def published(self, names: Container[str] | None = None) -> Iterator[Published]:
        """Every version of every name (of `names`, where they are given), newest first, for listings."""
        for offer in self.offers():
            if names is not None and offer.name not in names:
                continue
            shard = self._shard(offer)
            for entry in reversed(shard.versions) if shard else ():
                registry = self.registries[offer.position]
                yield Published(registry=registry, name=offer.name, target=offer.target, entry=entry)

    def resolve(
        self,
        host: TargetDescriptor,
        require: Requirement,
        tvm_version: str | None,
        unusable: Unusable = MappingProxyType({}),
    ) -> Resolution:
        """Go down the ladder of packages; shards are read only until a version is found."""
        ranked, trace = rank_names(self.offers(), host, require)
        chosen: Chosen | None = None
        for candidate in ranked:
            if chosen is not None:
                trace.append(_not_needed(candidate, chosen))
                continue
            shard = self._shard(candidate.offer)
            entries = shard.versions if shard else ()
            chosen, decisions = choose_version(candidate, entries, require, tvm_version, unusable)
            trace.extend(decisions or [_no_versions(candidate)])
        return Resolution(host=host, chosen=chosen, trace=tuple(trace))

    def nothing_found(self, resolution: Resolution) -> HubError:
        """The error for a resolution that chose nothing."""
        rejected = [f"{item.name} {item.version}: {item.reason}" for item in resolution.trace if item.reason]
        shown = "; ".join(rejected[:_MAX_REASONS]) or "the registries offer none"
        more = f"; and {len(rejected) - _MAX_REASONS} more" if len(rejected) > _MAX_REASONS else ""
        reason = f"no package serves {resolution.host.name} ({resolution.host.arch}): {shown}{more}"
        return ResolutionError(reason, remedy=_NO_PACKAGE_REMEDY, cause="no package")

    def _shard(self, offer: NameOffer) -> Shard | None:
        registry = self.registries[offer.position]
        return self._attempt(lambda: registry.shard(offer.name))

    def _attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except RegistryUnreadableError as error:
            self._on_problem(error)
            return None


def open_chain(addresses: Sequence[str], *, offline: bool, on_problem: OnProblem) -> Chain:
    """Open the configured registries and the embedded one; those of an unsupported scheme go to `on_problem`."""
    registries: list[Registry] = []
    for address in addresses:
        try:
            registries.append(open_registry(address, offline=offline))
        except RegistryUnreadableError as error:
            on_problem(error)
    registries.append(open_registry(str(embedded_registry()), label=EMBEDDED))
    return Chain(registries, on_problem)


def _not_needed(candidate: RankedName, chosen: Chosen) -> Decision:
    reason = f"{chosen.label} is nearer (this one: {candidate.match.rung}, distance {candidate.match.distance})"
    if _same_place(candidate.match, chosen.match):
        reason = f"{chosen.label} from {chosen.registry} comes first"
    offer = candidate.offer
    return Decision(name=offer.name, version="*", registry=offer.registry, outcome=Rejected(reason=reason))


def _no_versions(candidate: RankedName) -> Decision:
    offer = candidate.offer
    outcome = Rejected(reason="none of its versions can be read")
    return Decision(name=offer.name, version="*", registry=offer.registry, outcome=outcome)


def _same_place(one: Accepted, other: Accepted) -> bool:
    return (one.rung, one.distance) == (other.rung, other.distance)
