"""The layers of records that a compile looks through: the user's own, the nearest package's, what is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunehub.exceptions import HubError, PackageUnusableError, RegistryUnreadableError, TunehubError
from tunehub.options import Layout, Options
from tunehub.policy import Policy
from tunehub.records.indexing_budget import IndexingBudget
from tunehub.records.log_lookup import IndexLogs, LayeredLogs, LogLookup
from tunehub.records.lookup import IndexLookup, IsCurrent, LayeredLookup, RecordLookup
from tunehub.records.package_records import open_package_logs, open_package_records, open_user_logs, open_user_records
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub.registries.ordered import Registries
from tunehub.registries.requirement import Requirement
from tunehub.registries.resolution import Chosen, Resolution
from tunehub.registries.successors import deprecation, first_time
from tunehub.target.tvm_generation import is_relay
from tunehub_registry.target import TargetDescriptor

Layer: TypeAlias = IndexLookup | IndexLogs


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRequest:
    """What layers are opened for, and with; `policy` hears of what goes wrong, `is_current` knows the
    templates of this client, `indexing` is what may be spent on packages that have no index yet."""

    host: TargetDescriptor
    options: Options
    requirement: Requirement
    tvm_version: str | None
    cache: BlobCache
    policy: Policy
    is_current: IsCurrent
    indexing: IndexingBudget

    @property
    def relay(self) -> bool:
        """Whether they are for TVM up to 0.19."""
        return is_relay(self.tvm_version)


class RecordLayers:
    """The opened layers of records, the user's first; of one generation of TVM."""

    def __init__(self, *, relay: bool) -> None:
        """`relay`: for TVM up to 0.19."""
        self.relay = relay
        self._layers: list[Any] = []

    def add(self, layer: Layer | None) -> None:
        """Put a layer behind those that are there; None is none."""
        self._layers += [layer] if layer else []

    def layout(self) -> Layout:
        """The layouts that the records are for: traces are for those that modules have, all others for chosen ones.

        The first layer that has records decides. Without any, templates with default knobs serve chosen layouts best.
        """
        tuners = next((layer.tuners for layer in self._layers if isinstance(layer, IndexLookup) and layer.tuners), None)
        return "keep" if tuners == frozenset({META_SCHEDULE}) else "auto"

    def foreign(self) -> bool:
        """Whether some records for current TVM are neither the user's own nor came with tunehub."""
        return any(isinstance(layer, IndexLookup) and layer.is_foreign for layer in self._layers)

    def lookup(self, first: RecordLookup | None) -> RecordLookup | None:
        """The records for current TVM, None without any; what is measured comes `first`."""
        layers = self._layers if first is None else [first, *self._layers]
        return LayeredLookup(layers) if layers and not self.relay else None

    def logs(self) -> LogLookup | None:
        """The records for TVM up to 0.19, None without any."""
        return LayeredLogs(self._layers) if self._layers and self.relay else None


def open_user_layer(request: LayerRequest) -> Layer | None:
    """The user's own records. A file that cannot be read is a problem."""
    options, policy = request.options, request.policy
    try:
        # What is to be measured needs no file yet.
        given = options.records_given and not options.measure
        if request.relay:
            return open_user_logs(
                options.records, request.cache, host=request.host, given=given, on_problem=policy.problem
            )
        return open_user_records(
            options.records, request.cache, host=request.host, given=given, on_problem=policy.problem,
            is_current=request.is_current,
        )  # fmt: skip
    except HubError as error:
        policy.problem(error)
        return None


def open_nearest_layer(request: LayerRequest, registries: Registries) -> tuple[Resolution, Layer | None]:
    """Open the nearest package; one that cannot be opened is a problem, and the next is tried."""
    requirement, tvm_version, policy = request.requirement, request.tvm_version, request.policy
    unusable: dict[tuple[str, str, str], str] = {}
    while True:
        resolution = registries.resolve(request.host, requirement, tvm_version, unusable)
        chosen = resolution.chosen
        if chosen is None:
            policy.problem(registries.nothing_found(resolution, requirement, tvm_version, unusable))
            return resolution, None
        try:
            with _costing_itself(chosen):
                return resolution, _open_package(request, registries, chosen)
        except (PackageUnusableError, RegistryUnreadableError) as error:
            policy.problem(error)
            unusable[chosen.registry, chosen.name, chosen.entry.version] = error.reason


@contextmanager
def _costing_itself(chosen: Chosen) -> Iterator[None]:
    """What a package raises that nobody thought of costs that package, and no other."""
    try:
        yield
    except (TunehubError, Warning):  # warnings that the user makes errors stay what they are
        raise
    except Exception as error:
        reason = f"{chosen.label} cannot be opened: {type(error).__name__}: {str(error)[:200]}"
        raise PackageUnusableError(reason, remedy="please report it; another package is tried") from error


def _open_package(request: LayerRequest, registries: Registries, chosen: Chosen) -> Layer:
    """A package, with what is to be said of it."""
    policy = request.policy
    registry, version, on_problem = registries.sources[chosen.position], request.tvm_version, policy.problem
    package: IndexLookup | IndexLogs
    if request.relay:
        package = open_package_logs(
            chosen, registry, request.cache, host=request.host, tvm_version=version, on_problem=on_problem,
            indexing=request.indexing,
        )  # fmt: skip
    else:
        package = open_package_records(
            chosen, registry, request.cache, host=request.host, tvm_version=version, on_problem=on_problem,
            is_current=request.is_current, indexing=request.indexing,
        )  # fmt: skip
    for remark in (registries.bind(chosen), package.mask):
        if remark is not None:
            policy.note(str(remark))
    old = deprecation(chosen.label, chosen.entry)
    if old is not None:
        (policy.warn if first_time(old) else policy.note)(old)
    return package


def open_layer_behind(
    request: LayerRequest, registries: Registries, resolution: Resolution
) -> tuple[Chosen, Layer] | None:
    """Open what is behind the nearest package (`Registries.behind`): its records serve as they would without the first.
    None where there is nothing, or it cannot be opened."""
    chosen, policy = resolution.chosen, request.policy
    behind = registries.behind(resolution, request.requirement, request.tvm_version)
    if chosen is None or behind is None:
        return None
    try:
        with _costing_itself(behind):
            package = open_package_records(
            behind, registries.sources[behind.position], request.cache, host=resolution.host,
            tvm_version=request.tvm_version, on_problem=policy.problem, is_current=request.is_current,
                indexing=request.indexing,
        )  # fmt: skip
        if package.mask is not None:
            policy.note(str(package.mask))
        return behind, package
    except (PackageUnusableError, RegistryUnreadableError) as error:
        policy.note(f"{behind.label}, behind {chosen.label}, cannot be opened: {error.reason}")
        return None
