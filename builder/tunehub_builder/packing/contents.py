"""What goes into a package, and what packing says of every work directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tunehub_builder.exceptions import PackingError
from tunehub_builder.tuning.work_directory import RunFile, WorkDirectory
from tunehub_registry.evidence import NetworkEvidence
from tunehub_registry.manifest import NetworkEntry, Provenance, RecordSet
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_curves import TuningCurve


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What goes into a package, before it has a version. ``files`` by their names in it, without the evidence
    and the tuning ``curves``; ``counts``: records, and workloads that were rejected or not checked; ``license``: an
    SPDX expression, None for not stated."""

    target: TargetDescriptor
    record_sets: tuple[RecordSet, ...]
    networks: tuple[NetworkEntry, ...]
    provenance: Provenance
    files: Mapping[str, bytes]
    evidence: bytes
    counts: dict[str, int]
    curves: tuple[TuningCurve, ...] = ()
    license: str | None = None


def nothing_admitted(directory: WorkDirectory, *, checked: bool) -> PackingError:
    """The error for a directory without anything to publish."""
    reason = "the gate admitted no record" if checked else "nothing is checked yet"
    return PackingError(f"{directory.path}: {reason}; run `tunehub check {directory.path}` first")


def sorted_networks(run: RunFile) -> tuple[NetworkEntry, ...]:
    """The networks of a run by name."""
    return tuple(sorted(run.networks, key=lambda network: network.name))


def measured_with(run: RunFile, measured: Iterable[NetworkEvidence]) -> list[NetworkEvidence]:
    """The times of networks that were tuned in a run. What is behind a network's name in parentheses, as the length of
    a prompt, is no part of it."""
    tuned = {network.name for network in run.networks}
    return [item for item in measured if {item.network, item.network.partition(" (")[0]} & tuned]


def provenance_of(run: RunFile, trials: int, tuner: str | None = None) -> Provenance:
    """How the records were made, those of ``tuner`` if given.

    Options and machine are those of the last run, the commands those of all.
    """
    runs = [each for each in run.runs if tuner is None or each.options.get("tuner") == tuner]
    runs = runs or list(run.runs)
    last = runs[-1]
    seeds = sorted({each.seed for each in runs})
    commands = dict.fromkeys(each.command for each in runs)
    return Provenance(
        machine=last.machine,
        tvm_version=run.tvm_version,
        tvm_ffi_version=run.tvm_ffi_version,
        tuner_options={**last.options, "sittings": len(runs), "seeds": ", ".join(map(str, seeds))},
        trials=trials,
        seed=last.seed,
        command="\n".join(commands),
        started=runs[0].started,
        finished=last.updated,
        threads=last.threads,
    )
