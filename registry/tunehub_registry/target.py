"""Targets: what a package was tuned for, what a machine is, and whether the one serves the other. Pure rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Rung = Literal["exact", "family", "generic"]
RUNGS: tuple[Rung, ...] = ("exact", "family", "generic")

Kind = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._]{0,31}\Z")]
# Hyphens are allowed here (LLVM says "skylake-avx512"): a name is split at its first hyphen, and a kind has none.
Model = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}\Z")]
Arch = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}\Z")]
Alias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ()_.+@-]{0,127}\Z")]
Bound = Annotated[int, Meta(ge=1, le=2**40)]
TargetName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._]{0,31}-[a-z0-9][a-z0-9._-]{0,63}\Z")]

_SM = re.compile(r"sm_([0-9]{1,3})([0-9])([a-z]?)")


class TargetDescriptor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """The package serves the host on this rung; among packages of one rung the smallest distance is nearest."""

    rung: Rung
    distance: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """The package does not serve the host, because of `reason`."""

    reason: str


def match(package: TargetDescriptor, host: TargetDescriptor) -> Accepted | Rejected:
    """Decide whether the records of `package` may be used on `host`.

    Legality (required features, GPU limits) holds on every rung: a virtual machine can hide features of the very
    model. Then: the same model is `exact`; the same architecture with no feature that the host lacks is `family`;
    what is left, of the same architecture (CPU) or kind (GPU), is `generic`.
    """
    if package.kind != host.kind:
        return Rejected(reason=f"the package is for kind {package.kind!r}, this machine is {host.kind!r}")
    illegal = _illegal(package, host)
    if illegal is not None:
        return Rejected(reason=illegal)
    if _same_model(package, host):
        return Accepted(rung="exact", distance=0)
    distance = len(set(package.features) ^ set(host.features))
    package_sm, host_sm = _sm(package.arch), _sm(host.arch)
    if package_sm is None or host_sm is None:
        return _match_by_arch(package, host, distance)
    family = package_sm <= host_sm and package_sm // 10 == host_sm // 10 and not _missing(package.features, host)
    return Accepted(rung="family" if family else "generic", distance=distance + abs(host_sm - package_sm))


def _match_by_arch(package: TargetDescriptor, host: TargetDescriptor, distance: int) -> Accepted | Rejected:
    if package.arch.lower() != host.arch.lower():
        return Rejected(reason=f"the package is for architecture {package.arch!r}, this machine is {host.arch!r}")
    return Accepted(rung="generic" if _missing(package.features, host) else "family", distance=distance)


def _same_model(package: TargetDescriptor, host: TargetDescriptor) -> bool:
    package_names = {name.lower() for name in (package.model, *package.aliases)}
    host_names = {name.lower() for name in (host.model, *host.aliases)}
    return package.model.lower() in host_names or host.model.lower() in package_names


def _illegal(package: TargetDescriptor, host: TargetDescriptor) -> str | None:
    missing = _missing(package.required_features, host)
    if missing:
        return f"this machine lacks the required features {', '.join(missing)}"
    limits = (
        ("threads per block", package.max_threads_per_block, host.max_threads_per_block),
        ("bytes of shared memory per block", package.max_shared_memory_per_block, host.max_shared_memory_per_block),
    )
    for what, needs, has in limits:
        if needs is not None and has is not None and needs > has:
            return f"the package may use {needs} {what}, this machine allows {has}"
    return None


def _missing(features: tuple[str, ...], host: TargetDescriptor) -> list[str]:
    host_sm = _sm(host.arch)
    return sorted(
        feature
        for feature in set(features) - set(host.features)
        if not (host_sm is not None and _is_plain_sm(feature) and (_sm(feature) or 0) <= host_sm)
    )


def _is_plain_sm(feature: str) -> bool:
    """`sm_90` runs on every later GPU; `sm_90a` (architecture-specific) only where the host lists it."""
    found = _SM.fullmatch(feature)
    return found is not None and not found[3]


def _sm(arch: str) -> int | None:
    """The number of `sm_NN` (90 for `sm_90a`), or None for other architectures."""
    found = _SM.fullmatch(arch)
    return None if found is None else 10 * int(found[1]) + int(found[2])
