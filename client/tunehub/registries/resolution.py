"""Which package serves a target: pure rules over what registries offer, with a reason for every candidate."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tunehub.registries.delegated import keep_aliases
from tunehub.registries.key_scheme import KEY_SCHEMES, LOG_TUNERS, RECORD_TUNERS
from tunehub.registries.requirement import Requirement
from tunehub.registries.successors import deprecation, successor_text
from tunehub.target.tvm_generation import is_relay
from tunehub_registry.index import ShardEntry
from tunehub_registry.printable import plain
from tunehub_registry.target import Accepted, Matcher, Rejected, TargetDescriptor

if TYPE_CHECKING:
    from tunehub_registry.trust.attestations import AttestationSummary

Unusable = Mapping[tuple[str, str, str], str]  # (registry, name, version) -> why it failed when it was opened
TooFew = Callable[[ShardEntry], str | None]  # why too few keys attest a version, None when enough do
_Place = tuple[bool, tuple[int, ...], int, bool, bytes]


class NameOffer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A package name in a registry; `position` is the registry's place in their order, 0 first.

    `embedded`: the registry is the one that comes with tunehub.
    """

    name: str
    target: TargetDescriptor
    registry: str
    position: int
    embedded: bool = False


class RankedName(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A name whose target serves the host."""

    offer: NameOffer
    match: Accepted


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one candidate; `version` is `*` when the name was decided on without reading its versions."""

    name: str
    version: str
    registry: str
    outcome: Accepted | Rejected

    @property
    def reason(self) -> str | None:
        """Why the candidate was rejected, None when it was not."""
        return self.outcome.reason if isinstance(self.outcome, Rejected) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The package that serves the host."""

    name: str
    registry: str
    position: int
    entry: ShardEntry
    match: Accepted

    @property
    def label(self) -> str:
        """Name and version, as reports show it."""
        return f"{self.name} {self.entry.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """The package chosen for `host`, or None, and every decision on the way. `behind` serves what the chosen one has no
    record for, where a compile looks there, too."""

    host: TargetDescriptor
    chosen: Chosen | None
    trace: tuple[Decision, ...] = ()
    behind: Chosen | None = None

    def explain(self) -> str:
        """Say in a few lines what was chosen and why each other candidate was not."""
        head = f"target {self.host.name} ({self.host.arch})"
        if self.chosen is None:
            lines = [f"{head}: no package serves it"]
        else:
            lines = [f"{head}: {self.chosen.label} from {self.chosen.registry}, {_fit_text(self.chosen.match)}"]
            lines += filter(None, [deprecation(self.chosen.label, self.chosen.entry)])
        if self.behind is not None:
            fit = _fit_text(self.behind.match)
            lines.append(
                f"behind it, for what it has no record of: {self.behind.label} from {self.behind.registry}, {fit}"
            )
        lines += [f"  {_decision_text(decision)}" for decision in self.trace]
        return "\n".join(map(plain, lines if self.trace else [*lines, "  the registries offer no packages"]))

    def to_json(self) -> dict[str, object]:
        """The resolution in JSON's types."""
        return {
            "target": self.host.name,
            "arch": self.host.arch,
            "chosen": None if self.chosen is None else _chosen_json(self.chosen),
            "behind": None if self.behind is None else _chosen_json(self.behind),
            "trace": [_decision_json(decision) for decision in self.trace],
        }


def rank_names(
    offers: Iterable[NameOffer],
    host: TargetDescriptor,
    require: Requirement,
    bound: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[RankedName], list[Decision]]:
    """Order the names that serve `host`, and say why others do not.

    What states no features comes behind all that states them, where the host does; then nearness
    (:class:`Matcher`), the registry's place, and the host's own name before an alias count. Among equals a hash of both
    names decides, which says nothing. `bound`: the names that only one registry may serve, and that registry's address;
    the embedded one may always. So it is with aliases.
    """
    ranked: list[RankedName] = []
    rejected: list[Decision] = []
    matcher = Matcher(host)  # registries may have ten thousand names
    asked = None if require.name is None else require.name.lower()
    for offer in offers:
        registry = bound.get(offer.name, offer.registry)
        outcome: Accepted | Rejected
        if registry != offer.registry and not offer.embedded:
            outcome = _bound_elsewhere(offer, registry)
        elif asked is not None and offer.name != asked:
            outcome = Rejected(reason=f"the requirement asks for {require.name}")
        else:
            outcome = matcher.match(_with_free_aliases(offer, bound))
        if isinstance(outcome, Accepted):
            ranked.append(RankedName(offer=offer, match=outcome))
        else:
            rejected.append(Decision(name=offer.name, version="*", registry=offer.registry, outcome=outcome))
    ranked.sort(key=lambda item: _nearness(item, host, matcher))
    return ranked, rejected


def choose_version(
    ranked: RankedName,
    entries: Sequence[ShardEntry],
    require: Requirement,
    tvm_version: str | None,
    unusable: Unusable = MappingProxyType({}),
    too_few: TooFew = lambda _: None,
) -> tuple[Chosen | None, list[Decision]]:
    """Take the newest version that is not yanked, satisfies `require`, and has records for `tvm_version`.

    A pre-release is only taken when the requirement allows it or nothing else is left. None as `tvm_version` stands
    for "no TVM here" and takes any; `unusable` has the packages that were tried and failed. `too_few` counts
    attestations: it is asked about a version that would be taken, since it may have to read them.
    """
    offer = ranked.offer
    chosen: Chosen | None = None
    trace: list[Decision] = []
    for entry in sorted(entries, key=_version_order):
        failed = unusable.get((offer.registry, offer.name, entry.version))
        reason = failed or version_problem(entry, require, tvm_version)
        if reason is None:
            reason = too_few(entry) if chosen is None else f"{chosen.entry.version} is preferred"
        if reason is None:
            chosen = Chosen(
                name=offer.name, registry=offer.registry, position=offer.position, entry=entry, match=ranked.match
            )
        outcome = ranked.match if reason is None else Rejected(reason=reason)
        trace.append(Decision(name=offer.name, version=entry.version, registry=offer.registry, outcome=outcome))
    return chosen, trace


def version_problem(entry: ShardEntry, require: Requirement, tvm_version: str | None) -> str | None:
    """Why a version may not be used, or None."""
    if entry.yanked is not None:
        return f"yanked: {entry.yanked or 'no reason given'}"
    if not require.allows(entry.version):
        return f"the requirement asks for {require.specifier}"
    tuners = tuners_of(tvm_version)
    sets = [item for item in entry.record_sets if item.tuner in tuners]
    if not sets:
        return f"it has no {' or '.join(sorted(tuners))} records, only {', '.join(entry.tuners) or 'none'}"
    if tvm_version is not None and not any(tvm_allowed(item.tvm, tvm_version) for item in sets):
        versions = dict.fromkeys(item.tvm for item in sets)
        return f"its records are for TVM {' or '.join(versions)}, installed is {tvm_version}"
    return None


def tuners_of(tvm_version: str | None) -> frozenset[str]:
    """The tuners whose records an installed TVM can use; all that are known when there is no TVM."""
    if tvm_version is None:
        return frozenset(KEY_SCHEMES)
    return LOG_TUNERS if is_relay(tvm_version) else RECORD_TUNERS


def tvm_allowed(specifier: str, version: str) -> bool:
    """Whether the installed TVM lies in a record set's specifier; pre- and post-releases and local builds count."""
    return SpecifierSet(specifier).contains(Version(version), prereleases=True)


def _bound_elsewhere(offer: NameOffer, registry: str) -> Rejected:
    change = f"`tunehub trust bind {offer.name} {offer.registry}` changes that"
    return Rejected(reason=f"the name is bound to {registry}, from where it was first used ({change})")


def _with_free_aliases(offer: NameOffer, bound: Mapping[str, str]) -> TargetDescriptor:
    """The target without aliases that are bound, as names, to another registry."""
    if offer.embedded or not bound:
        return offer.target
    return keep_aliases(offer.target, lambda name: bound.get(name, offer.registry) == offer.registry)


def _nearness(ranked: RankedName, host: TargetDescriptor, matcher: Matcher) -> _Place:
    offer = ranked.offer
    unstated, alias = not matcher.compares_features(offer.target), offer.name != host.name
    tie = hashlib.sha256(f"{host.name} {offer.name}".encode()).digest()
    return (unstated, matcher.nearness(offer.target, ranked.match), offer.position, alias, tie)


def _version_order(entry: ShardEntry) -> tuple[bool, _Reversed]:
    version = Version(entry.version)
    return (version.is_prerelease, _Reversed(version))


@dataclass(frozen=True, slots=True)
class _Reversed:
    """A version that sorts newest first."""

    version: Version

    def __lt__(self, other: _Reversed) -> bool:
        return other.version < self.version


def _fit_text(accepted: Accepted) -> str:
    if accepted.fit == "exact":
        return "made for this model"
    kind = "same architecture family" if accepted.fit == "family" else "same kind of machine"
    return f"{kind}, distance {accepted.distance}"


def _decision_text(decision: Decision) -> str:
    name = f"{decision.name} {decision.version} [{decision.registry}]"
    if isinstance(decision.outcome, Rejected):
        return f"- {name}: {decision.outcome.reason}"
    return f"+ {name}: {_fit_text(decision.outcome)}"


def _decision_json(decision: Decision) -> dict[str, object]:
    row: dict[str, object] = {"name": decision.name, "version": decision.version, "registry": decision.registry}
    if isinstance(decision.outcome, Rejected):
        return {**row, "accepted": False, "reason": decision.outcome.reason}
    return {**row, "accepted": True, "rung": decision.outcome.fit, "distance": decision.outcome.distance}


def _chosen_json(chosen: Chosen) -> dict[str, object]:
    return {
        "name": chosen.name,
        "version": chosen.entry.version,
        "registry": chosen.registry,
        "rung": chosen.match.fit,
        "distance": chosen.match.distance,
        "sha256": chosen.entry.sha256,
        "successor": successor_text(chosen.entry),
    }


def nearest_text(chosen: Chosen | None, machine: str, attested: AttestationSummary | None) -> str | None:
    """What is known of the records of a package on a ``machine`` that it was not made for, and of one without any; None
    for other packages of its own."""
    if chosen is None:
        return None
    exact = chosen.match.fit == "exact" or chosen.name == machine
    if chosen.entry.evidence_alone:
        where = "such a machine" if exact else f"{chosen.name}, not on {machine}"
        return f"measured on {where}: rules are as good, no records are needed"
    if exact:
        return None
    measured = None if attested is None else attested.nearest_text(machine)
    said = measured or "not measured by a machine that you trust (`tunehub attest` measures a sample)"
    return f"made for {chosen.name}; its records on {machine}: {said}"
