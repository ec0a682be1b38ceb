"""The chain of registries: configured ones first, the embedded one last, resolved as one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from tunehub.exceptions import HubError, RegistryUnreadableError, ResolutionError, TrustError
from tunehub.registries.embedded import embedded_registry
from tunehub.registries.resolution import (
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
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.index import Shard, ShardEntry
from tunehub_registry.stores.port import Deadline
from tunehub_registry.target import Rejected, TargetDescriptor

if TYPE_CHECKING:  # imported where they are used: a chain of a lock file needs none of them
    from tunehub.options import Settings
    from tunehub.registries.source import Access, Registry
    from tunehub.registries.trust_store import Binding, TrustStore

EMBEDDED = "embedded"
_NO_PACKAGE_REMEDY = (
    "tune for this machine with `tunehub tune`, or name a registry that has it in TUNEHUB_REGISTRY; "
    "`tunehub resolve` explains"
)
_MAX_REASONS = 5
OnProblem = Callable[[HubError], None]
OnWarning = Callable[[str], None]
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

    def __init__(
        self,
        registries: Sequence[Registry],
        on_problem: OnProblem,
        *,
        configured: Iterable[str] = (),
        trust: TrustStore | None = None,
    ) -> None:
        """`on_problem` gets every RegistryUnreadableError; what it raises goes through.

        `configured` are the normalised addresses that `trust` may bind names to, also those that cannot be opened.
        """
        self.registries = tuple(registries)
        self._on_problem = on_problem
        self._configured = frozenset(configured)
        self._trust = trust
        self._bindings: Mapping[str, Binding] | None = None
        self._left_out: set[int] = set()

    def offers(self) -> Iterator[NameOffer]:
        """Every name of every readable registry."""
        for position, registry in enumerate(self.registries):
            names = self._attempt(position, registry.names) or {}
            address = registry.address
            embedded = address == EMBEDDED
            for name in sorted(names):
                yield NameOffer(
                    name=name, target=names[name], registry=address, position=position, embedded=embedded
                )  # fmt: skip

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
        ranked, trace = rank_names(self.offers(), host, require, self._owners())
        chosen: Chosen | None = None
        for position, candidate in enumerate(ranked):
            shard = self._shard(candidate.offer)
            entries = shard.versions if shard else ()
            chosen, decisions = choose_version(candidate, entries, require, tvm_version, unusable)
            trace.extend(decisions or [_no_versions(candidate)])
            if chosen is not None:
                trace.extend(_not_needed(ranked[position + 1 :], chosen))
                break
        return Resolution(host=host, chosen=chosen, trace=tuple(trace))

    def nothing_found(
        self, resolution: Resolution, require: Requirement, tvm_version: str | None, unusable: Unusable
    ) -> HubError:
        """The error for a resolution that chose nothing; the rest is what `resolve` was given."""
        rejected = [f"{item.name} {item.version}: {item.reason}" for item in resolution.trace if item.reason]
        shown = "; ".join(rejected[:_MAX_REASONS]) or "the registries offer none"
        more = f"; and {len(rejected) - _MAX_REASONS} more" if len(rejected) > _MAX_REASONS else ""
        reason = f"no package serves {resolution.host.name} ({resolution.host.arch}): {shown}{more}"
        return ResolutionError(reason, remedy=_NO_PACKAGE_REMEDY, cause="no package")

    def bind(self, chosen: Chosen) -> str | None:
        """Bind the name of a package that is used to its registry, if that is configured; a remark when it moves."""
        if self._trust is None or chosen.registry not in self._configured:
            return None
        before = self._known_bindings().get(chosen.name)
        if before is not None and before.registry == chosen.registry:
            return None
        if before is not None and before.explicit:
            return f"{chosen.name} is bound to {before.registry}, which is not configured: {chosen.registry} serves it"
        try:
            bind = self._trust.bind_first if before is None else self._trust.bind
            bind(chosen.name, chosen.registry)
        except (OSError, ValueError, HubError) as error:
            from tunehub.registries.trust_store import not_kept

            self._on_problem(not_kept(self._trust, error))
        if before is None:
            return None
        return f"{chosen.name} was bound to {before.registry}, which is no longer configured: now to {chosen.registry}"

    def _owners(self) -> dict[str, str]:
        """The names that only one of the configured registries may serve."""
        bound = self._known_bindings() if self._configured else {}
        return {name: item.registry for name, item in bound.items() if item.registry in self._configured}

    def _known_bindings(self) -> Mapping[str, Binding]:
        if self._bindings is None:
            try:
                self._bindings = self._trust.bindings() if self._trust else {}
            except HubError as error:
                self._bindings = {}
                self._on_problem(error)
        return self._bindings

    def _shard(self, offer: NameOffer) -> Shard | None:
        registry = self.registries[offer.position]
        return self._attempt(offer.position, lambda: registry.shard(offer.name))

    def _attempt(self, position: int, read: Callable[[], T]) -> T | None:
        """What `read` gives, None when it fails. After a trust failure nothing of a registry is used any more."""
        if position in self._left_out:
            return None
        try:
            return read()
        except RegistryUnreadableError as error:
            if isinstance(error, TrustError) or read == self.registries[position].names:
                self._left_out.add(position)
            self._on_problem(error)
            return None


def open_chain(
    addresses: Sequence[str], *, offline: bool, on_problem: OnProblem, access: Access | None = None
) -> Chain:
    """Open the configured registries and the embedded one; those that cannot be opened go to `on_problem`.

    `access` is with what they are read, by default without a cache and without trusted roots.
    """
    from tunehub.registries.source import Access, open_registry

    access = replace(access or Access(), offline=offline, on_problem=on_problem)
    registries: list[Registry] = []
    for address in addresses:
        try:
            registries.append(open_registry(address, access))
        except RegistryUnreadableError as error:
            on_problem(error)
    registries.append(open_registry(embedded_registry(), access, label=EMBEDDED))
    return Chain(registries, on_problem, configured=filter(None, map(_normalised, addresses)), trust=access.trust)


def configured_chain(
    settings: Settings, *, on_problem: OnProblem, on_warning: OnWarning | None = None, deadline: Deadline | None = None
) -> Chain:
    """The chain of the settings: their registries, or their lock file alone. Raises LockFileError.

    After `deadline` there is no network any more; by default the time is not limited.
    """
    if settings.lock is not None:
        from tunehub.registries.locked import open_locked

        return open_locked(settings, on_problem, deadline or Deadline(None))
    from tunehub.registries.source import Access

    access = Access(cache=settings.cache, trust=trust_store(settings), deadline=deadline or Deadline(None))
    access = replace(access, on_warning=on_warning) if on_warning else access
    return open_chain(settings.registries, offline=settings.offline, on_problem=on_problem, access=access)


def trust_store(settings: Settings) -> TrustStore:
    """The trust store of the settings, with the root that comes with tunehub."""
    from tunehub.registries.trust_store import SHIPPED_ROOT, TrustStore

    return TrustStore(settings.trust, shipped=embedded_registry() / SHIPPED_ROOT)


def _normalised(address: str) -> str | None:
    from tunehub_registry.stores.open import normalise_address, split_unsigned

    try:
        return normalise_address(split_unsigned(address)[0])
    except RegistryError:
        return None


def _not_needed(candidates: Iterable[RankedName], chosen: Chosen) -> Iterator[Decision]:
    """Why each candidate after the chosen one was not looked at; there may be ten thousand, of few kinds."""
    outcomes: dict[tuple[str, int], Rejected] = {}
    for candidate in candidates:
        offer, place = candidate.offer, (candidate.match.rung, candidate.match.distance)
        outcome = outcomes.get(place)
        if outcome is None:
            reason = f"{chosen.label} is nearer (this one: {place[0]}, distance {place[1]})"
            if place == (chosen.match.rung, chosen.match.distance):
                reason = f"{chosen.label} from {chosen.registry} comes first"
            outcome = outcomes[place] = Rejected(reason=reason)
        yield Decision(name=offer.name, version="*", registry=offer.registry, outcome=outcome)


def _no_versions(candidate: RankedName) -> Decision:
    offer = candidate.offer
    outcome = Rejected(reason="none of its versions can be read")
    return Decision(name=offer.name, version="*", registry=offer.registry, outcome=outcome)
