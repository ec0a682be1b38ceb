"""Where the workloads of a package's records come from: networks known by name, models and misses in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.exceptions import typed_last_line
from tunehub.options import Precision
from tunehub.registries.key_scheme import LADDER, META_SCHEDULE, TEMPLATE
from tunehub_builder import networks
from tunehub_builder.networks.network import OPEN, Network
from tunehub_builder.tuning.missed import missed_workloads
from tunehub_builder.tuning.tasks import Dims, TuningTask, extract_tasks
from tunehub_registry.manifest import Manifest, NetworkEntry

if TYPE_CHECKING:
    from tunehub.target.types import Target

_OPEN_SIZES = (16,)  # keys do not depend on them
_OPEN_NAME = "_open"


class WorkloadFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files with workloads that no network known by name has, by their paths: users' models, and misses."""

    models: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSource:
    """Workloads by key, each as a module with ``main``, for a tuner's records and a target. ``name`` is for people.

    ``workloads`` raises whatever TVM's importers and passes raise.
    """

    name: str
    workloads: Callable[[str, Any], dict[str, Any]]


def sources(manifest: Manifest, files: WorkloadFiles, missing: Mapping[Any, Any]) -> Iterator[WorkloadSource]:
    """Where workloads of ``missing`` records may come from, as they become fewer: files, then networks that can be
    built by name, those of many records first. One with the name of a network of the package is left out when no record
    missing names it."""
    counts = Counter(name for record in missing.values() for name in record.networks)
    names = {entry.name for entry in manifest.networks}
    known = sorted(filter(lambda entry: is_known(entry.name), manifest.networks), key=lambda entry: -counts[entry.name])
    for name, source in chain(_in_files(files, manifest.target.name), map(_named, known)):
        if name not in names or any(name in record.networks for record in missing.values()):
            yield source


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchedRecord:
    """A record of a tuner with its workload, a module with ``main``, which only clients that keep layouts have if it is
    ``kept``."""

    tuner: str
    record: Any
    mod: Any
    kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Borrowers:
    """Workloads that no record was made for, by what they borrow records by: keys of ``anchors`` blocks, and of the
    operator ``classes`` that traces are transferred within."""

    anchors: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)

    def add(self, mod: Any) -> None:
        """One more workload."""
        from tunehub.tir.keys import anchor_key
        from tunehub.tir.operator_class import anchor_class_of, class_of

        self.anchors.add(anchor_key(mod) or "")
        self.classes.update(found.key for found in (class_of(mod), anchor_class_of(mod)) if found is not None)

    def update(self, other: Borrowers) -> None:
        """The workloads of ``other``, too."""
        self.anchors.update(other.anchors)
        self.classes.update(other.classes)

    def have_use_for(self, tuner: str, record: Any) -> bool:
        """Whether one of them may be served by a record of ``tuner``."""
        moved = {record.op_class, record.anchor_class} if tuner == META_SCHEDULE else set[str]()
        return record.anchor in self.anchors or not moved.isdisjoint(self.classes)


def matched_records(
    manifest: Manifest,
    records: Mapping[str, Mapping[str, Any]],
    files: WorkloadFiles,
    target: Target,
    unread: list[str],
) -> Iterator[MatchedRecord]:
    """The ``records``, by tuner and key, whose workloads some source has, each once; ``unread`` gets why a source has
    none."""
    missing = {(tuner, key): record for tuner, of in records.items() for key, record in of.items()}
    for source in sources(manifest, files, missing):
        for found in matched_in(source, missing, target, unread):
            del missing[found.tuner, found.record.exact]
            yield found


def matched_in(
    source: WorkloadSource,
    records: Mapping[tuple[str, str], Any],
    target: Target,
    unread: list[str],
    borrowers: Borrowers | None = None,
) -> Iterator[MatchedRecord]:
    """The ``records``, by tuner and key, whose workloads ``source`` has, each once and as a client has it if it does;
    ``unread`` gets why it has none. ``borrowers`` get the workloads that none of them is for."""
    found, exact = set[tuple[str, str]](), {key for _, key in records}
    for tuner, kept in _ways({tuner for tuner, _ in records}, target):
        try:
            workloads = source.workloads(tuner, target)
        except Exception as error:  # importers and passes raise anything
            unread.append(f"{Path(source.name).name}: {typed_last_line(error)}")
            continue
        if borrowers is not None and not kept:
            for key in workloads.keys() - exact:
                borrowers.add(workloads[key])
        for about in [about for about in records if about[1] in workloads and about not in found]:
            found.add(about)
            yield MatchedRecord(tuner=about[0], record=records[about], mod=workloads[about[1]], kept=kept)


def _ways(tuners: Collection[str], target: Target) -> list[tuple[str, bool]]:
    """As whose a network's workloads are made, a client's own way first; a GPU has them either way."""
    if all(tuner == META_SCHEDULE for tuner in tuners):
        return [(META_SCHEDULE, False)]
    kept = [(META_SCHEDULE, target.kind.name != "cuda")] if META_SCHEDULE in tuners else []
    return [(TEMPLATE, False), *kept]


def is_known(name: str) -> bool:
    """Whether a package's network of this name can be built by it."""
    return networks.is_known(name.removesuffix(_OPEN_NAME))


def is_at_hand(record: Any) -> bool:
    """Whether all networks of a record can be built by name."""
    return bool(record.networks) and all(map(is_known, record.networks))


def other_sources(manifest: Manifest, target: Target) -> Iterator[WorkloadSource]:
    """The networks known by name that a package does not name, in all precisions of its kind of machine."""
    precisions = ("", "_fp16") if target.kind.name == "cuda" else ("", "_bf16", "_int8")
    every = dict.fromkeys(f"{name}{precision}" for precision in precisions for name in networks.names())
    named = {entry.name for entry in manifest.networks}
    for name in every:
        if name not in named and is_known(name):
            yield WorkloadSource(name=name, workloads=_OfNetwork(name=name))


def _named(entry: NetworkEntry) -> tuple[str, WorkloadSource]:
    return entry.name, WorkloadSource(name=entry.name, workloads=_OfNetwork(name=entry.name, source=entry.source))


def _in_files(files: WorkloadFiles, target: str) -> Iterator[tuple[str, WorkloadSource]]:
    """The files by the names of the networks that they would be of; of misses those for the target with this name."""
    for path in map(Path, files.models):
        yield path.stem, WorkloadSource(name=str(path), workloads=_OfModel(path))
    for path in map(Path, files.misses):
        yield path.stem, WorkloadSource(name=str(path), workloads=_OfMisses(path, target))


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfNetwork:
    name: str
    source: str = ""

    def __call__(self, tuner: str, target: Target) -> dict[str, Any]:
        dims: dict[str, tuple[int, ...]] = {}
        if OPEN in self.source:
            dims = {name.strip(): _OPEN_SIZES for name in self.source.partition(OPEN)[2].split(",")}
        network, module = _built(self.name.removesuffix(_OPEN_NAME), tuple(dims.items()))
        return _extracted(network.name, module, tuner, target, dims=network.dims or None, precision=network.compiled_in)


@lru_cache(maxsize=1)  # its workloads are made in two ways, one after the other
def _built(name: str, dims: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[Network, Any]:
    network = networks.get_open(name, dict(dims))
    return network, network.relax_module()


@dataclass(frozen=True, slots=True)
class _OfModel:
    path: Path

    def __call__(self, tuner: str, target: Target) -> dict[str, Any]:
        module = networks.open_model_file(self.path).imported().module
        return _extracted(self.path.stem, module, tuner, target, dims={})


@dataclass(frozen=True, slots=True)
class _OfMisses:
    path: Path
    target: str

    def __call__(self, _tuner: str, _target: Any) -> dict[str, Any]:
        return _by_key(missed_workloads(self.path).tasks(self.target)[0])


def _extracted(
    name: str, module: Any, tuner: str, target: Target, *, dims: Dims | None, precision: Precision = "float32"
) -> dict[str, Any]:
    """The workloads of a module as the tuner had them."""
    by_knobs, cuda = tuner in (TEMPLATE, LADDER), target.kind.name == "cuda"
    tasks = extract_tasks(
        [(name, module)], target, layout="auto" if by_knobs and not cuda else "keep", dims=dims,
        channels_last=by_knobs and cuda, precision=precision,
    )  # fmt: skip
    return _by_key(tasks)


def _by_key(tasks: Sequence[TuningTask]) -> dict[str, Any]:
    return {task.exact: task.mod for task in tasks}
