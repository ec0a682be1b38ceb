"""Making lock files: from what is asked for, and what a lock already pins, to a lock without holes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import structs
from packaging.specifiers import SpecifierSet

from tunehub.exceptions import RegistryUnreadableError, RequirementError
from tunehub.registries.embedded import EMBEDDED
from tunehub.registries.ordered import Registries
from tunehub.registries.requirement import Requirement, parse_requirement
from tunehub.registries.resolution import Chosen, Decision, Resolution, version_problem
from tunehub.registries.successors import deprecation
from tunehub_registry import __version__
from tunehub_registry.lock import Lock, LockedPackage
from tunehub_registry.stores.open import open_store, split_unsigned
from tunehub_registry.target import Accepted, TargetDescriptor, match

_PACKAGE = re.compile(r"\s*[a-z0-9][a-z0-9._]*-[A-Za-z0-9._-]*[A-Za-z0-9]\s*[<>=!~,].*")
_CONDITION = re.compile(r"\s*(?:[<>=!~]|attested(?![\w.-])).*")
_PLACE = "TARGET or NAME==VERSION"
_ANY = Requirement()
_MAX_REASONS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """What is asked for: targets in words, packages by name, and versions and attestations of what the targets get."""

    targets: tuple[str, ...] = ()
    packages: Mapping[str, Requirement] = field(default_factory=dict)
    whatever: Requirement = _ANY


@dataclass(frozen=True, kw_only=True, slots=True)
class Hole:
    """A target or package that no version serves with a TVM version (None: any), and why."""

    wanted: str
    tvm: str | None
    reason: str

    def __str__(self) -> str:
        return f"no package for {self.wanted}{f' with TVM {self.tvm}' if self.tvm else ''}: {self.reason}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        tvm = f"; or lock without TVM {self.tvm}: name the others with --tvm" if self.tvm else ""
        return f"`tunehub list` shows what there is, --registry names another registry{tvm}"


def parse_demands(words: Iterable[str]) -> Demands:
    """Sort words: `llvm-znver5>=1.2,<2` is a package, `>=0.1` and `attested>=2` are for whatever there is, anything
    else is a target.

    What is asked of one package several times all holds. Raises RequirementError.
    """
    targets: list[str] = []
    packages: dict[str, Requirement] = {}
    whatever = _ANY
    for word in words:
        if not _PACKAGE.fullmatch(word) and not _CONDITION.fullmatch(word):
            targets.append(word)
            continue
        found = parse_requirement(word, _PLACE)
        if found.name is None:
            whatever = whatever.narrowed(found)
        else:
            name = found.name.lower()
            packages[name] = packages.get(name, Requirement(name=name)).narrowed(found)
    return Demands(targets=tuple(targets), packages=packages, whatever=whatever)


class Locker:
    """Finds a pin for everything that is asked for. What `before` pins stays, unless it is in `upgrade`."""

    def __init__(
        self, registries: Registries, before: Lock | None, tvm: Sequence[str], upgrade: frozenset[str]
    ) -> None:
        """`tvm`: the TVM versions that every target has to be served with; none stands for any.

        Raises RequirementError when `upgrade` has a name that is not pinned.
        """
        self._registries = registries
        self._before = before
        self._tvm = tuple(tvm)
        self._versions: tuple[str | None, ...] = self._tvm or (None,)
        self._kept = {name: before.pins(name) for name in before.names if name not in upgrade} if before else {}
        self._requires = _requirements(before)
        self._offers: dict[str, TargetDescriptor] | None = None
        self._pins: list[LockedPackage] = []
        self.holes: list[Hole] = []
        self.notes: list[str] = []  # of new pins that are deprecated
        unknown = sorted(upgrade - set(before.names if before else ()))
        if unknown:
            pinned = ", ".join(sorted(before.names)) if before else "nothing"
            reason = f"is not in the lock file, which pins {pinned}"
            raise RequirementError(unknown[0], reason, place="--upgrade", remedy="name a pinned package")

    def lock(self, demands: Demands, hosts: Sequence[TargetDescriptor]) -> Lock:
        """A lock for `hosts` (the targets of `demands`, described), the packages asked for, and what was pinned.

        Whatever has no package is in `holes`: then the lock is not to be written. Raises RegistryUnreadableError.
        """
        self._requires |= demands.packages
        for host in hosts:
            for version in self._versions:
                self._pin_target(host, demands.whatever, version)
        asked = demands.packages
        names = dict.fromkeys((*asked, *(self._before.names if self._before else ())))
        missing = [(name, tvm) for name in names for tvm in self._versions if not self._keep_name(name, tvm)]
        found = [(each, self._pin_name(*each, asked=each[0] in asked)) for each in missing]
        for (name, tvm), hole in found:  # after everything has its pins: those of another name may serve its target
            if hole is not None and hole not in self.holes and (name in asked or not self._served(name, tvm)):
                self.holes.append(hole)
        models = self._before.models if self._before else ()
        return Lock(created_by=f"tunehub {__version__}", tvm=self._tvm, packages=self._merged(), models=models)

    def lost(self, lock: Lock) -> Iterator[str]:
        """What a compile without the lock would look through besides, of pins that nothing bounds: locks of tunehub up
        to 0.2 hold the nearest package alone. Nothing where the registries cannot be read."""
        for pin in (lock.pins(name)[-1] for name in lock.names):
            others = (target for name, target in lock.names.items() if name != pin.name)
            if pin.requires is not None or any(isinstance(match(each, pin.target), Accepted) for each in others):
                continue
            with suppress(RegistryUnreadableError):
                found = self._found_behind(pin, pin.target, _ANY, self._versions[0])
                if found is not None:
                    text = f"a compile without this lock looks through {found.label}, too, behind {pin.label}"
                    yield f"{text}: `tunehub lock {pin.name}` adds it"

    def published(self) -> Mapping[str, TargetDescriptor]:
        """Every name of the registries, the nearest registry's target."""
        if self._offers is None:
            self._offers = {}
            for offer in self._registries.offers():
                self._offers.setdefault(offer.name, offer.target)
        return self._offers

    def find(self, name: str) -> TargetDescriptor | None:
        """What a name is for, by the nearest registry that has it."""
        known = self.published().get(name)
        named = (offer.target for offer in self._registries.offers({name}) if offer.name == name)
        return known or next(named, None)

    def _pin_target(self, host: TargetDescriptor, require: Requirement, tvm: str | None) -> None:
        """Pin the nearest package; a pinned version of it that fits stays."""
        found = self._exact(host, require, tvm)
        if found is None:
            resolution = self._registries.resolve(host, require, tvm)
            if resolution.chosen is None:
                self.holes.append(Hole(wanted=host.name, tvm=tvm, reason=_reasons(resolution.trace)))
                return
            name = resolution.chosen.name
            self._require(name, require)
            found = self._keep(name, tvm) or self._pin_bound(host, name, tvm)
            if found is None:
                return
        self._require(found.name, require)
        self._pins.append(found)
        self._pin_behind(host, require, tvm, found)

    def _pin_behind(self, host: TargetDescriptor, require: Requirement, tvm: str | None, pin: LockedPackage) -> None:
        """Pin what a compile without a lock looks through behind a package for this very model; a pin that may be that
        stays. Where the registries cannot be read and the package was pinned before, a note says so."""
        if any(self._behind(name, host, tvm) for name in self._kept if name != pin.name):
            return
        try:
            found = self._found_behind(pin, host, require, tvm)
        except RegistryUnreadableError as error:
            if pin not in self._kept.get(pin.name, ()):
                raise
            self.notes.append(f"what serves behind {pin.label} is not known: {error}")
            return
        if found is not None:
            self._require(found.name, require)
            bound = self._registries.resolve(host, self._required(found.name), tvm).chosen
            self._pins += [self._pin(bound)] if bound is not None else []

    def _found_behind(
        self, pin: LockedPackage, host: TargetDescriptor, require: Requirement, tvm: str | None
    ) -> Chosen | None:
        """What the registries have behind a pin for a host. Raises RegistryUnreadableError."""
        fit = match(pin.target, host)
        if not isinstance(fit, Accepted):
            return None
        chosen = Chosen(name=pin.name, registry=pin.registry, position=0, entry=pin.entry(), match=fit)
        return self._registries.behind(Resolution(host=host, chosen=chosen), require, tvm)

    def _behind(self, name: str, host: TargetDescriptor, tvm: str | None) -> bool:
        """Whether a name that is pinned serves a host."""
        target = self._kept[name][-1].target
        return isinstance(match(target, host), Accepted) and self._keep(name, tvm) is not None

    def _pin_bound(self, host: TargetDescriptor, name: str, tvm: str | None) -> LockedPackage | None:
        """A new pin of the name that is nearest to a host, within what its pins are bound to; without one, a hole."""
        bound = self._required(name)
        resolution = self._registries.resolve(host, bound, tvm)
        if resolution.chosen is not None:
            return self._pin(resolution.chosen)
        trace = [item for item in resolution.trace if item.name == name]
        self.holes.append(Hole(wanted=str(bound), tvm=tvm, reason=_reasons(trace)))
        return None

    def _keep_name(self, name: str, tvm: str | None) -> bool:
        """Pin what a package has pinned already, if that serves; whether it does."""
        kept = self._keep(name, tvm)
        if kept is not None:
            self._pins.append(kept)
        return kept is not None

    def _pin_name(self, name: str, tvm: str | None, *, asked: bool) -> Hole | None:
        """Pin the newest version of a package that fits, unless what it serves is served; the hole if none does."""
        if not asked and name in self._kept and self._served(name, tvm):
            return None
        target, require = self.find(name), self._required(name)
        if target is None:
            return Hole(wanted=str(require), tvm=tvm, reason="no registry has it")
        resolution = self._registries.resolve(target, require, tvm)
        if resolution.chosen is None:
            trace = [item for item in resolution.trace if item.name == name]
            return Hole(wanted=str(require), tvm=tvm, reason=_reasons(trace))
        self._pins.append(self._pin(resolution.chosen))
        return None

    def _exact(self, host: TargetDescriptor, require: Requirement, tvm: str | None) -> LockedPackage | None:
        """A pin made for this very model: nothing can be nearer, so that no registry need be asked."""
        for name, pins in self._kept.items():
            outcome = match(pins[-1].target, host)
            if isinstance(outcome, Accepted) and outcome.fit == "exact":
                return self._keep(name, tvm, require)
        return None

    def _keep(self, name: str, tvm: str | None, besides: Requirement = _ANY) -> LockedPackage | None:
        """The newest pin of a name that stays and serves; a version that was yanked since does."""
        require = self._required(name).narrowed(besides)
        fitting = (
            self._attested(item, require.attested, tvm)
            for item in reversed(self._kept.get(name, ()))
            if version_problem(item.entry(), require, tvm) is None
        )
        return next((item for item in fitting if item is not None), None)

    def _attested(self, pin: LockedPackage, asked: int, tvm: str | None) -> LockedPackage | None:
        """A pin that was found under as much, or with what attests the same bytes by now; None when too few do."""
        if pin.attested >= asked:
            return pin
        require = Requirement(name=pin.name, specifier=SpecifierSet(f"=={pin.version}"), attested=asked)
        chosen = self._registries.resolve(pin.target, require, tvm).chosen
        return self._pin(chosen) if chosen is not None and chosen.entry.sha256 == pin.sha256 else None

    def _served(self, name: str, tvm: str | None) -> bool:
        """Whether a pin of another name serves the target of a pinned one."""
        target = self._before.names.get(name) if self._before else None
        return target is not None and any(
            version_problem(pin.entry(), _ANY, tvm) is None and isinstance(match(pin.target, target), Accepted)
            for pin in self._pins
            if pin.name != name
        )

    def _required(self, name: str) -> Requirement:
        return self._requires.get(name, Requirement(name=name))

    def _require(self, name: str, besides: Requirement) -> None:
        self._requires[name] = self._required(name).narrowed(besides)

    def _pin(self, chosen: Chosen) -> LockedPackage:
        registry, entry = self._registries.sources[chosen.position], chosen.entry
        self.notes += filter(None, [deprecation(chosen.label, entry)])
        return LockedPackage(
            name=chosen.name,
            version=entry.version,
            registry=registry.address,
            url=None if registry.address == EMBEDDED else _as_url(registry.url(entry.file)),
            size=entry.size,
            sha256=entry.sha256,
            published=entry.published,
            license=entry.license or None,
            target=self._target_of(chosen),
            record_sets=entry.record_sets,
            documents=entry.documents or (),
        )

    def _target_of(self, chosen: Chosen) -> TargetDescriptor:
        target = self._registries.sources[chosen.position].find(chosen.name)
        assert target is not None  # it was chosen by it
        return target

    def _merged(self) -> tuple[LockedPackage, ...]:
        """Every pin once, with the requirement it was found under, and one target for all versions of a name."""
        pins = {(item.name, item.version): item for item in self._pins}
        targets = {item.name: item.target for item in self._pins if item not in self._kept.get(item.name, ())}
        return tuple(
            structs.replace(
                item,
                requires=str(self._required(item.name).specifier) or None,
                attested=self._required(item.name).attested,
                target=targets.get(item.name, item.target),
            )
            for item in pins.values()
        )


def _requirements(lock: Lock | None) -> dict[str, Requirement]:
    """What the pins of each name were found under."""
    pins = lock.packages if lock else ()
    return {
        item.name: Requirement(name=item.name, specifier=SpecifierSet(item.requires or ""), attested=item.attested)
        for item in pins
        if item.requires is not None or item.attested
    }


def _reasons(trace: Sequence[Decision]) -> str:
    shown = [f"{item.name} {item.version}: {item.reason}" for item in trace if item.reason]
    more = f"; and {len(shown) - _MAX_REASONS} more" if len(shown) > _MAX_REASONS else ""
    return ("; ".join(shown[:_MAX_REASONS]) or "the registries offer none") + more


def presign(lock: Lock, seconds: int, now: datetime) -> Lock:
    """The lock with presigned URLs for what lies in buckets: whoever has the file can read those packages until then.

    Raises StoreError when there are no credentials, or boto3 is not installed.
    """
    expires = now.replace(microsecond=0) + timedelta(seconds=seconds)
    return structs.replace(lock, packages=tuple(_presigned(item, seconds, expires) for item in lock.packages))


def _presigned(pin: LockedPackage, seconds: int, expires: datetime) -> LockedPackage:
    address, _ = split_unsigned(pin.registry)
    if not address.startswith("s3://"):
        return pin
    from tunehub_registry.stores.s3 import S3Store

    store = open_store(address)
    assert isinstance(store, S3Store)
    place = urlsplit(pin.url or "").path
    path = next((path for path in pin.paths if place.endswith(f"/{path}")), pin.paths[0])
    return structs.replace(pin, url=store.presigned_url(path, seconds), url_expires=expires)


def _as_url(place: str) -> str | None:
    """What a registry says of where a file is, as a URL of the schemes that lock files have."""
    if place.startswith(("http://", "https://", "s3://")):
        return place
    path = Path(place)
    return path.as_uri() if path.is_absolute() else None
