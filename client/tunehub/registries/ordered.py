"""Registries in order of preference, resolved as one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from tunehub.exceptions import HubError, RegistryUnreadableError, ResolutionError, TrustError, TunehubError
from tunehub.registries.attested import TOO_FEW_REMEDY, Attesters
from tunehub.registries.embedded import EMBEDDED
from tunehub.registries.failures import unexpected
from tunehub.registries.requirement import Requirement
from tunehub.registries.resolution import (
    Chosen,
    Decision,
    NameOffer,
    RankedName,
    Resolution,
    Unusable,
    choose_version,
    rank_names,
)
from tunehub.report.origin import Origin, OriginPackage, place_of
from tunehub.target.tvm_generation import is_relay
from tunehub_registry.index import Shard, ShardEntry
from tunehub_registry.target import Rejected, TargetDescriptor, own_names

if TYPE_CHECKING:
    from tunehub.registries.port import OnProblem, Registry
    from tunehub.registries.trust_store import Binding, TrustStore
    from tunehub_registry.trust.attestations import AttestationSummary

_NO_PACKAGE_REMEDY = (
    "tune for this machine with `tunehub tune`, or name a registry that has it in TUNEHUB_REGISTRY; "
    "`tunehub resolve` explains"
)
_MAX_REASONS = 5
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One version of one name in one registry."""

    registry: Registry
    name: str
    target: TargetDescriptor
    entry: ShardEntry


class Registries:
    """Registries in order of preference. A registry that cannot be read is reported and left out."""

    def __init__(
        self,
        registries: Sequence[Registry],
        on_problem: OnProblem,
        *,
        configured: Iterable[str] = (),
        trust: TrustStore | None = None,
        attesters: Attesters | None = None,
    ) -> None:
        """`on_problem` gets every RegistryUnreadableError; what it raises goes through.

        `configured` are the normalised addresses, in order, that `trust` may bind names to, also those that cannot be
        opened.
        Without `attesters` no attestation counts.
        """
        self.sources = tuple(registries)
        self._on_problem = on_problem
        self._configured = tuple(configured)
        self._trust = trust
        self._attesters = attesters
        self._bindings: Mapping[str, Binding] | None = None
        self._left_out: set[int] = set()
        self._failed: set[str] = set()  # addresses of what could not be read, or not all of it

    def offers(self, asked: Iterable[str] = ()) -> Iterator[NameOffer]:
        """Every name that readable registries list, and those of the `asked` that they have."""
        wanted = tuple(asked)
        for position, registry in enumerate(self.sources):
            listed = self._attempt(position, registry.names) or {}
            found = {name: self._attempt(position, partial(registry.find, name)) for name in wanted
                     if name not in listed}  # fmt: skip
            names = {**listed, **{name: target for name, target in found.items() if target is not None}}
            address = registry.address
            embedded = address == EMBEDDED
            for name in sorted(names):
                yield NameOffer(
                    name=name, target=names[name], registry=address, position=position, embedded=embedded
                )  # fmt: skip

    def published(self, names: Collection[str] | None = None) -> Iterator[Published]:
        """Every version of every name (of `names`, where they are given), newest first, for listings."""
        for offer in self.offers(names or ()):
            if names is not None and offer.name not in names:
                continue
            shard = self._shard(offer)
            for entry in reversed(shard.versions) if shard else ():
                registry = self.sources[offer.position]
                yield Published(registry=registry, name=offer.name, target=offer.target, entry=entry)

    def resolve(
        self,
        host: TargetDescriptor,
        require: Requirement,
        tvm_version: str | None,
        unusable: Unusable = MappingProxyType({}),
        *,
        besides: str | None = None,
    ) -> Resolution:
        """Take the nearest package, of another name than ``besides``, that has a version to use; shards are read only
        until a version is found."""
        asked = own_names(host) | ({require.name.lower()} if require.name else set())
        offers = (offer for offer in self.offers(sorted(asked)) if offer.name != besides)
        ranked, trace = rank_names(offers, host, require, self._bound())
        chosen: Chosen | None = None
        for position, candidate in enumerate(ranked):
            shard = self._shard(candidate.offer)
            entries = shard.versions if shard else ()
            offer = candidate.offer
            lacking = partial(self.too_few, require.attested, offer.name, self.sources[offer.position])
            chosen, decisions = choose_version(candidate, entries, require, tvm_version, unusable, lacking)
            trace.extend(decisions or [_no_versions(candidate)])
            if chosen is not None:
                trace.extend(_not_needed(ranked[position + 1 :], chosen))
                break
        return Resolution(host=host, chosen=chosen, trace=tuple(trace))

    def behind(self, resolution: Resolution, require: Requirement, tvm_version: str | None) -> Chosen | None:
        """What serves behind a package for this very model, which may have few networks: the next nearest one of
        another name. None where a package is asked for by name, for TVM up to 0.19, and where rules are as good."""
        chosen = resolution.chosen
        if chosen is None or chosen.match.fit != "exact" or chosen.entry.evidence_alone:
            return None
        if require.name is not None or is_relay(tvm_version):
            return None
        return self.resolve(resolution.host, require, tvm_version, besides=chosen.name).chosen

    def origin(self, resolution: Resolution) -> Origin:
        """Which packages a compile goes by after this resolution, and by which lock file."""
        found = [chosen for chosen in (resolution.chosen, resolution.behind) if chosen is not None]
        return Origin(packages=tuple(map(self._origin, found)), lock_sha256=self._lock_sha256())

    def _origin(self, chosen: Chosen) -> OriginPackage:
        address, entry = self._address_of(chosen), chosen.entry
        return OriginPackage(name=chosen.name, version=entry.version, sha256=entry.sha256, registry=place_of(address))

    def _address_of(self, chosen: Chosen) -> str:
        return chosen.registry

    def _lock_sha256(self) -> str | None:
        return None

    def too_few(self, asked: int, name: str, registry: Registry, entry: ShardEntry) -> str | None:
        """Why a version is not attested by as many trusted keys as are asked for, or None."""
        if self._attesters is None:
            return f"attested by none of the {asked} asked: no keys of attesters are known here" if asked else None
        return self._attesters.too_few(asked, name, registry, entry)

    def attestations(self, chosen: Chosen) -> AttestationSummary | None:
        """What trusted keys attest of a package; None when nothing is beside it, or no key is trusted.

        Raises RegistryUnreadableError, KeyUnusableError, OSError.
        """
        registry = self.sources[chosen.position]
        return self._attesters.summary(chosen.name, registry, chosen.entry) if self._attesters else None

    def nothing_found(
        self, resolution: Resolution, require: Requirement, tvm_version: str | None, unusable: Unusable
    ) -> HubError:
        """The error for a resolution that chose nothing; the rest is what `resolve` was given."""
        rejected = [f"{item.name} {item.version}: {item.reason}" for item in resolution.trace if item.reason]
        shown = "; ".join(rejected[:_MAX_REASONS]) or "the registries offer none"
        more = f"; and {len(rejected) - _MAX_REASONS} more" if len(rejected) > _MAX_REASONS else ""
        reason = f"no package serves {resolution.host.name} ({resolution.host.arch}): {shown}{more}"
        remedy = TOO_FEW_REMEDY if require.attested else _NO_PACKAGE_REMEDY
        return ResolutionError(reason, remedy=remedy, cause="no package")

    def bind(self, chosen: Chosen) -> str | None:
        """Bind the name of a package that is used to its registry, if that is configured; a remark when it moves."""
        if self._trust is None or chosen.registry not in self._configured:
            return None
        before = self._known_bindings().get(chosen.name)
        if before is not None and before.registry == chosen.registry:
            return None
        if before is not None and before.explicit:
            return f"{chosen.name} is bound to {before.registry}, which is not configured: {chosen.registry} serves it"
        unread = self._unread_before(chosen.registry)
        if unread is not None:
            return (
                f"{chosen.name} is not bound to {chosen.registry}: {unread}, which comes before it, cannot be read now"
            )
        try:
            bind = self._trust.bind_first if before is None else self._trust.bind
            bind(chosen.name, chosen.registry)
        except (OSError, ValueError, HubError) as error:
            from tunehub.registries.trust_store import not_kept

            self._on_problem(not_kept(self._trust, error))
        if before is None:
            return None
        return f"{chosen.name} was bound to {before.registry}, which is no longer configured: now to {chosen.registry}"

    def _unread_before(self, address: str) -> str | None:
        """The first of the configured registries before this one that may have more than could be read of it."""
        earlier = self._configured[: self._configured.index(address)]
        read = {source.address for source in self.sources if not source.stale} - self._failed
        return next((other for other in earlier if other not in read), None)

    def _bound(self) -> dict[str, str]:
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
        registry = self.sources[offer.position]
        return self._attempt(offer.position, lambda: registry.shard(offer.name))

    def _attempt(self, position: int, read: Callable[[], T]) -> T | None:
        """What `read` gives, None when it fails. After a trust failure nothing of a registry is used any more."""
        if position in self._left_out:
            return None
        try:
            return self._guarded(position, read)
        except RegistryUnreadableError as error:
            self._failed.add(self.sources[position].address)
            if isinstance(error, TrustError) or read == self.sources[position].names:
                self._left_out.add(position)
            self._on_problem(error)
            return None

    def _guarded(self, position: int, read: Callable[[], T]) -> T:
        """What `read` gives; whatever it raises that nobody thought of costs this registry alone."""
        try:
            return read()
        except (TunehubError, Warning):  # warnings that the user makes errors stay what they are
            raise
        except Exception as error:
            raise unexpected(error, self.sources[position].address) from error


def _not_needed(candidates: Iterable[RankedName], chosen: Chosen) -> Iterator[Decision]:
    """Why each candidate after the chosen one was not looked at; there may be ten thousand, of few kinds."""
    outcomes: dict[tuple[str, int], Rejected] = {}
    for candidate in candidates:
        offer, place = candidate.offer, (candidate.match.fit, candidate.match.distance)
        outcome = outcomes.get(place)
        if outcome is None:
            reason = f"{chosen.label} is nearer (this one: {place[0]}, distance {place[1]})"
            if place == (chosen.match.fit, chosen.match.distance):
                reason = f"{chosen.label} from {chosen.registry} comes first"
            outcome = outcomes[place] = Rejected(reason=reason)
        yield Decision(name=offer.name, version="*", registry=offer.registry, outcome=outcome)


def _no_versions(candidate: RankedName) -> Decision:
    offer = candidate.offer
    outcome = Rejected(reason="none of its versions can be read")
    return Decision(name=offer.name, version="*", registry=offer.registry, outcome=outcome)
