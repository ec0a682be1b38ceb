"""Targets: what a package was tuned for, what a machine is, and whether the one serves the other. Pure rules."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Fit = Literal["exact", "family", "generic"]
FITS: tuple[Fit, ...] = ("exact", "family", "generic")

Kind = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._]{0,31}\Z")]
# Hyphens are allowed here (LLVM says "skylake-avx512"): a name is split at its first hyphen, and a kind has none.
Model = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}\Z")]
Arch = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}\Z")]
Alias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ()_.+@-]{0,127}\Z")]
Bound = Annotated[int, Meta(ge=1, le=2**40)]
TargetName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._]{0,31}-[a-z0-9][a-z0-9._-]{0,63}\Z")]

_SM = re.compile(r"sm_([0-9]{1,3})([0-9])([a-z]?)")
# Registers of these decide the tiles of a package: on a machine without them its tiles are made for something else.
_REGISTERS = frozenset({"avx", "avx512f", "amx-tile", "sve"})
# What schedules gain most by: vectors of AVX-512 and products of short types; the rest counts after these.
_WIDE = re.compile(r"avx512.*|avxvnni.*|amx-.*|sve2?|sme2?|dotprod|i8mm|bf16")


class TargetDescriptor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A target: `kind` of TVM (`llvm`, `cuda`), `model` (LLVM's CPU name, or a GPU's short name) and `arch`.

    `arch` is the instruction set of a CPU (`x86_64`, `aarch64`) or the `sm_NN` of a GPU. `features` are all features
    known of the machine, in LLVM's spelling (`avx512vnni`); `required_features` are those that records of a package
    cannot do without (`sm_80` is understood there as "sm_80 or later"). Shared memory is in bytes.
    """

    kind: Kind
    model: Model
    arch: Arch
    features: tuple[Arch, ...] = ()
    required_features: tuple[Arch, ...] = ()
    num_cores: Bound | None = None
    aliases: tuple[Alias, ...] = ()
    max_threads_per_block: Bound | None = None
    max_shared_memory_per_block: Bound | None = None

    @property
    def name(self) -> str:
        """The package name for this target: `<kind>-<model>`."""
        return f"{self.kind}-{self.model}"


def model_name(name: str) -> str:
    """`name` in the characters that the `model` of a descriptor may have."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "generic"


def own_names(host: TargetDescriptor) -> set[str]:
    """The names that a package for this very machine may have."""
    aliases = (alias.lower() for alias in host.aliases)
    return {host.name, *(f"{host.kind}-{alias}" for alias in aliases if model_name(alias) == alias)}


class Accepted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The package serves the host, so well; `distance` counts the features that only one of them has, and of GPUs how
    far apart their architectures are. `Matcher.nearness` is the order."""

    fit: Fit
    distance: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The package does not serve the host, because of `reason`."""

    reason: str


def match(package: TargetDescriptor, host: TargetDescriptor) -> Accepted | Rejected:
    """Decide whether the records of `package` may be used on `host`.

    Legality (required features, GPU limits) holds for every fit: a virtual machine can hide features of the very
    model. Then: the same model is `exact`, unless both name their features and these differ: a virtual machine that
    hides its model goes by another one's name. A CPU that the package names as an alias has to have the features that
    the package names. The same architecture with no feature that the host lacks is `family`; what is left, of the same
    architecture (CPU) or kind (GPU), is `generic`.
    """
    return Matcher(host).match(package)


class Matcher:
    """`match` for one host and many packages: what it needs of the host is worked out once."""

    def __init__(self, host: TargetDescriptor) -> None:
        self._host = host
        self._kind = host.kind
        self._sm = _sm(host.arch)
        self._arch = host.arch.lower()
        self._features = frozenset(host.features)
        self._model = host.model.lower()
        self._names = frozenset((self._model, *(name.lower() for name in host.aliases)))
        self._other_kinds: dict[str, Rejected] = {}
        self._by_arch: dict[tuple[str, tuple[str, ...]], Accepted | Rejected] = {}  # many packages have the same
        self._by_features: dict[tuple[str, ...], tuple[int, ...]] = {}

    def match(self, package: TargetDescriptor) -> Accepted | Rejected:
        """As the function `match`."""
        if package.kind != self._kind:
            reason = f"the package is for kind {package.kind!r}, this machine is {self._host.kind!r}"
            return self._other_kinds.setdefault(package.kind, Rejected(reason=reason))
        illegal = self._illegal(package)
        if illegal is not None:
            return Rejected(reason=illegal)
        if self._is_exact(package):
            return Accepted(fit="exact", distance=0)
        package_sm = _sm(package.arch)
        if package_sm is None or self._sm is None:
            known = self._by_arch.get((package.arch, package.features))
            return known or self._by_arch.setdefault((package.arch, package.features), self._match_by_arch(package))
        distance = self._distance(package) + abs(self._sm - package_sm)
        family = package_sm <= self._sm and package_sm // 10 == self._sm // 10 and not self._missing(package.features)
        return Accepted(fit="family" if family else "generic", distance=distance)

    def nearness(self, package: TargetDescriptor, accepted: Accepted) -> tuple[int, ...]:
        """The order of packages that serve the host: the smallest is nearest.

        Exact ones come first. Of others for CPUs first those whose registers the host all has, then those that leave
        least of what it has unused (AVX-512, VNNI, AMX and the like before the rest), then those that have least
        besides. Of others for GPUs those of the host's family, then by distance.
        """
        if accepted.fit == "exact":
            return (0,)
        if self._sm is not None:
            return (FITS.index(accepted.fit), accepted.distance)
        known = self._by_features.get(package.features)
        return known or self._by_features.setdefault(package.features, self._by_use(frozenset(package.features)))

    def _by_use(self, features: frozenset[str]) -> tuple[int, ...]:
        unused, missing = self._features - features, features - self._features
        wide = sum(_WIDE.fullmatch(feature) is not None for feature in unused)
        return (1, len(missing & _REGISTERS), wide, len(unused), len(missing))

    def _match_by_arch(self, package: TargetDescriptor) -> Accepted | Rejected:
        if package.arch.lower() != self._arch:
            reason = f"the package is for architecture {package.arch!r}, this machine is {self._host.arch!r}"
            return Rejected(reason=reason)
        fit: Fit = "generic" if self._missing(package.features) else "family"
        return Accepted(fit=fit, distance=self._distance(package))

    def _distance(self, package: TargetDescriptor) -> int:
        return len(self._features.symmetric_difference(package.features))

    def compares_features(self, package: TargetDescriptor) -> bool:
        """Whether it can be known how alike the features are: not where the host names some and the package none. Of
        GPUs the model says it all."""
        return self._sm is not None or bool(package.features) or not self._features

    def _is_exact(self, package: TargetDescriptor) -> bool:
        """The same model with the same features, as far as both name them; an alias counts only with features."""
        named = package.model.lower() in self._names
        if not named and not (package.aliases and self._model in [name.lower() for name in package.aliases]):
            return False
        if self._sm is not None or not self._features:
            return True
        return self._features == frozenset(package.features) if package.features else named

    def _illegal(self, package: TargetDescriptor) -> str | None:
        missing = package.required_features and self._missing(package.required_features)
        if missing:
            return f"this machine lacks the required features {', '.join(missing)}"
        threads, memory = package.max_threads_per_block, package.max_shared_memory_per_block
        if threads is None and memory is None:
            return None
        limits = (
            ("threads per block", threads, self._host.max_threads_per_block),
            ("bytes of shared memory per block", memory, self._host.max_shared_memory_per_block),
        )
        for what, needs, has in limits:
            if needs is not None and has is not None and needs > has:
                return f"the package may use {needs} {what}, this machine allows {has}"
        return None

    def _missing(self, features: tuple[str, ...]) -> list[str]:
        if self._features.issuperset(features):
            return []
        return sorted(
            feature
            for feature in set(features) - self._features
            if not (self._sm is not None and _is_plain_sm(feature) and (_sm(feature) or 0) <= self._sm)
        )


def _is_plain_sm(feature: str) -> bool:
    """`sm_90` runs on every later GPU; `sm_90a` (architecture-specific) only where the host lists it."""
    found = _SM.fullmatch(feature)
    return found is not None and not found[3]


def _sm(arch: str) -> int | None:
    """The number of `sm_NN` (90 for `sm_90a`), or None for other architectures."""
    found = _SM.fullmatch(arch) if arch.startswith("sm_") else None
    return None if found is None else 10 * int(found[1]) + int(found[2])
