"""What the pages show: frozen values, made of a registry's data by pure functions. Times are in seconds."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from msgspec import UNSET, UnsetType

from tunehub.registries.embedded import EMBEDDED, license_text
from tunehub.registries.successors import successor_text
from tunehub.site.attested import AttestationsView, attestations_view
from tunehub.site.beside import Beside
from tunehub.site.contents import PackageContents, VersionLine
from tunehub.site.curves import CurveView, curve_views
from tunehub.site.names import slug
from tunehub.site.provenance import MadeView, made_views
from tunehub.site.releases import releases_of
from tunehub.site.replays import ReleaseCoverage, ReplaysView, network_coverages, replays_view
from tunehub.site.trust import PublisherView
from tunehub_registry.compat import Compat
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence
from tunehub_registry.index import ShardEntry
from tunehub_registry.printable import plain
from tunehub_registry.target import TargetDescriptor

SIGNED = "signed by the publisher to whom the name is delegated (TUF)"
PEERS = {
    "tuned_graphs_s": "tunehub, CUDA graphs",
    "onnxruntime_s": "onnxruntime",
    "openvino_s": "OpenVINO",
    "llama_cpp_s": "llama.cpp",
    "torch_s": "PyTorch",
    "torch_graphs_s": "PyTorch, CUDA graphs",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionView:
    """One published version; `sets` are its tuners with their TVM versions, `yanked` the reason why it is hidden.

    `successor` says what to use instead, `successor_name` only which package; `documents` are the kinds beside.
    """

    version: str
    published: str
    size: int
    sha256: str
    sets: tuple[tuple[str, str], ...]
    yanked: str | None
    license: str
    successor: str
    successor_name: str
    documents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTime:
    """What else was measured in the same run."""

    name: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EndToEndTimes:
    """One network, end to end. `variant` says which record set was used, where the evidence does; `path` is empty where
    the manifest does not list the network, which then has no page. `over_rules`: how many times as fast as without
    records, where that was measured."""

    network: str
    path: str
    variant: str
    dtype: str
    default_s: float | None
    tuned_s: float
    peers: tuple[PeerTime, ...]
    threads: int
    repeats: int
    difference: float
    conditions: str
    same_class: str
    over_rules: float | None

    @property
    def gain(self) -> float | None:
        """How many times as fast as TVM's default, if that was measured; with CUDA graphs, where these were, too, and
        are faster."""
        return self.default_s and self.default_s / min(
            [self.tuned_s, *(p.seconds for p in self.peers if p.name == PEERS["tuned_graphs_s"])]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadTimes:
    """One record's evidence: an operator's times, and why it was refused where it was."""

    op: str
    key: str
    tuner: str
    networks: tuple[str, ...]
    default_s: float
    tuned_s: float
    spread: float
    repeats: int
    threads: int
    trials: int | None
    difference: float | None
    admitted: bool
    reason: str

    @property
    def gain(self) -> float:
        """How many times as fast as the default schedule."""
        return self.default_s / self.tuned_s


@dataclass(frozen=True, kw_only=True, slots=True)
class SetView:
    """A record set: how many records of which tuner, for which TVM."""

    tuner: str
    tvm: str
    count: int
    key_scheme: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedNetwork:
    """A network that a package has records for. `records` is None where they do not name their networks."""

    name: str
    path: str
    dtype: str
    source: str
    inputs: tuple[tuple[str, str], ...]
    coverage: tuple[ReleaseCoverage, ...]
    records: int | None
    gain: float | None

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases of TVM that there are records for, without those on which all of them fail."""
        return tuple(item.release for item in self.coverage if item.usable)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentsView:
    """What the package's file says; `gain` is the geometric mean over the admitted workloads."""

    sets: tuple[SetView, ...]
    made: tuple[MadeView, ...]
    tuned: tuple[TunedNetwork, ...]
    networks: tuple[EndToEndTimes, ...]
    workloads: tuple[WorkloadTimes, ...]
    curves: tuple[CurveView, ...]
    admitted: int
    refused: int
    gain: float | None
    network_gain: float | None
    bad_lines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageView:
    """A name with its versions. `contents` is None where the file was not read; `problem` says why, if it failed.

    `publisher` is None where nobody signs. `replays` and `attestations` are None where there are none, or where they
    were not read; `beside_problems` says why, if that failed.
    """

    name: str
    path: str
    target: TargetDescriptor
    target_path: str
    registry: str
    trust: str
    publisher: PublisherView | None
    current: VersionView
    older: tuple[VersionView, ...]
    lock: str
    contents: ContentsView | None
    problem: str
    replays: ReplaysView | None
    attestations: AttestationsView | None
    beside_problems: tuple[str, ...]

    @property
    def signed(self) -> bool:
        """Whether its registry is."""
        return self.trust == SIGNED

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases of TVM that the current version has records for, without those on which all of them fail."""
        failing = self.replays.failing if self.replays else ()
        return tuple(each for each in releases_of(tvm for _, tvm in self.current.sets) if each not in failing)


def package_view(
    line: VersionLine,
    path: str,
    contents: PackageContents | None,
    beside: Beside,
    publisher: PublisherView | None,
    *,
    problem: str = "",
) -> PackageView:
    """The page of a name; `path` is its folder in the site."""
    current = _version(line.current, line.registry.address)
    signed = bool(getattr(line.registry, "signed", False))
    names = contents.names if contents else {}
    stated = releases_of(tvm for _, tvm in current.sets)
    return PackageView(
        name=line.name,
        path=path,
        target=line.target,
        target_path=target_path(line.name),
        registry=plain(line.registry.address),
        trust=_trust(line.registry.address, signed),
        publisher=publisher,
        current=current,
        older=tuple(_version(entry, line.registry.address) for entry in line.versions if entry is not line.current),
        lock=lock_command(line.name, line.current.version, line.registry.address),
        contents=None if contents is None else contents_view(contents, beside.compat),
        problem=plain(problem),
        replays=None if beside.compat is None else replays_view(beside.compat, names, stated),
        attestations=None if beside.attestations is None else attestations_view(beside.attestations),
        beside_problems=tuple(map(plain, beside.problems)),
    )


def lock_command(name: str, version: str, registry: str) -> str:
    """What pins a version from a registry."""
    where = "" if registry == EMBEDDED else f" --registry {shlex.quote(plain(registry))}"
    return f"tunehub lock '{name}=={version}'{where}"


def network_path(name: str) -> str:
    """The folder of a network's page."""
    return f"network/{slug(name)}"


def target_path(name: str) -> str:
    """The folder of a target's page."""
    return f"target/{slug(name)}"


def contents_view(contents: PackageContents, compat: Compat | None) -> ContentsView:
    """The evidence and provenance of a package, with its replays."""
    types = {entry.name: entry.dtype for entry in contents.manifest.networks}
    networks = tuple(_network(item, types) for item in sorted(contents.networks, key=lambda item: item.network))
    workloads = sorted((_workload(item, contents) for item in contents.records), key=_workload_order)
    admitted = [item.gain for item in workloads if item.admitted]
    gains = [item.gain for item in networks if item.gain]
    return ContentsView(
        sets=tuple(
            SetView(tuner=item.tuner, tvm=item.tvm, count=item.count, key_scheme=plain(item.key_scheme))
            for item in contents.manifest.record_sets
        ),
        made=made_views(contents),
        tuned=tuple(_tuned(contents, networks, compat)),
        networks=networks,
        workloads=tuple(workloads),
        curves=curve_views(contents.curves, contents.names),
        admitted=len(admitted),
        refused=len(workloads) - len(admitted),
        gain=geometric_mean(admitted) if admitted else None,
        network_gain=geometric_mean(gains) if gains else None,
        bad_lines=contents.bad_lines,
    )


def _trust(address: str, signed: bool) -> str:
    if signed:
        return SIGNED
    return "comes with tunehub itself" if address == EMBEDDED else "unsigned: who can write to the registry decides"


def _version(entry: ShardEntry, address: str) -> VersionView:
    return VersionView(
        version=entry.version,
        published=entry.published,
        size=entry.size,
        sha256=entry.sha256,
        sets=tuple(dict.fromkeys((item.tuner, item.tvm) for item in entry.record_sets)),
        yanked=None if entry.yanked is None else plain(entry.yanked) or "no reason given",
        license=plain(license_text(_set(entry.license) or None, address)),
        successor=plain(successor_text(entry) or ""),
        successor_name=entry.successor.name if entry.successor else "",
        documents=tuple(document.kind for document in entry.documents or ()),
    )


def _network(item: NetworkEvidence, types: Mapping[str, str]) -> EndToEndTimes:
    name, _, variant = item.network.partition(" (")
    peers = {title: getattr(item, field) for field, title in PEERS.items()}
    about = (_set(item.conditions), _set(item.device), item.driver and f"driver {_set(item.driver)}")
    accuracy = _set(item.accuracy)
    return EndToEndTimes(
        network=plain(name),
        path=network_path(name) if name in types else "",
        variant=plain(variant.removesuffix(")")),
        dtype=plain(
            _set(item.precision) or types.get(name, "float32" if item.onnxruntime_s or _set(item.openvino_s) else "")
        ),
        default_s=item.default_s,
        tuned_s=item.tuned_s,
        peers=tuple(PeerTime(name=title, seconds=_set(value)) for title, value in peers.items() if _set(value)),
        threads=item.threads,
        repeats=item.repeats,
        difference=item.output_max_rel_diff,
        conditions=plain("; ".join(text for text in about if text)),
        same_class="" if accuracy is None else f"{accuracy.same_class} of {accuracy.rows}",
        over_rules=_set(item.over_rules),
    )


def _workload(item: RecordEvidence, contents: PackageContents) -> WorkloadTimes:
    known = contents.names.get(item.exact)
    tuner = _set(item.tuner) or "meta_schedule"
    template = _set(item.template)
    return WorkloadTimes(
        op=plain(known.op) if known else "",
        key=item.exact,
        tuner=f"{tuner}: {template}" if template else tuner,
        networks=tuple(plain(name) for name in known.networks) if known else (),
        default_s=item.default_s,
        tuned_s=item.tuned_s,
        spread=item.spread,
        repeats=item.repeats,
        threads=item.threads,
        trials=_set(item.trials),
        difference=item.output_max_rel_diff,
        admitted=item.admitted,
        reason=plain(item.reason or ""),
    )


def _workload_order(item: WorkloadTimes) -> tuple[Any, ...]:
    """Admitted ones first, by what they save."""
    return (not item.admitted, item.tuned_s - item.default_s, item.op, item.key, item.tuner)


def _tuned(contents: PackageContents, times: Iterable[EndToEndTimes], compat: Compat | None) -> Iterable[TunedNetwork]:
    """The networks of the manifest."""
    gains: dict[str, list[float]] = {}
    for item in times:
        gains.setdefault(item.path, []).extend([item.gain] if item.gain else [])
    coverages = network_coverages(contents, compat)
    for entry in sorted(contents.manifest.networks, key=lambda entry: entry.name):
        path = network_path(entry.name)
        yield TunedNetwork(
            name=plain(entry.name),
            path=path,
            dtype=plain(entry.dtype),
            source=plain(entry.source),
            inputs=tuple((plain(name), " × ".join(map(str, shape))) for name, shape in entry.inputs.items()),
            coverage=coverages[entry.name],
            records=sum(len(item.networks.get(entry.name, ())) for item in contents.sets) or None,
            gain=max(gains.get(path, ()), default=None),
        )


def _set(value: Any | UnsetType | None) -> Any:
    return None if value is UNSET else value
