"""From a checked work directory of TVM <= 0.19 to the contents of a package: TVM's own lines, untouched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tunehub.registries.key_scheme import KEY_SCHEMES
from tunehub_builder.backends.relay.admission import JudgedRecord, judged_records, record_evidence
from tunehub_builder.backends.relay.network_gate import current, network_journal, record_uses
from tunehub_builder.backends.relay.network_worker import GRAPH
from tunehub_builder.backends.relay.record_files import RECORD_FILES, TVM_VERSIONS
from tunehub_builder.backends.relay.tuner import AUTO_SCHEDULER, AUTOTVM, GRAPH_TUNER
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.backends.relay.workload_gate import static_reason, target_text, verdict_journal
from tunehub_builder.gate.evidence import network_evidence
from tunehub_builder.gate.journal import latest
from tunehub_builder.gate.networks import NetworkVerdict
from tunehub_builder.packing.contents import (
    Contents,
    measured_with,
    nothing_admitted,
    provenance_of,
    sorted_networks,
)
from tunehub_builder.packing.curves import tuning_curve
from tunehub_builder.tuning.best_so_far import BestSoFar
from tunehub_builder.tuning.work_directory import RunFile, WorkDirectory
from tunehub_registry.evidence import Evidence, NetworkEvidence, encode_evidence
from tunehub_registry.legacy_target import descriptor_of_legacy, parse_target
from tunehub_registry.manifest import RecordSet
from tunehub_registry.tuning_curves import TuningCurve
from tunehub_registry.tuning_log import LogLineError, parse_line, scan_log


def relay_contents(directory: WorkDirectory, run: RunFile, measured: Sequence[NetworkEvidence]) -> Contents:
    """The records and graph-level sets that the gate admitted, by workload and by network, and the networks that it
    admitted: nothing is promised of the others.

    ``measured``: end-to-end times; those of networks that were tuned go into the evidence.

    Raises PackingError when there are none, WorkDirectoryError for a damaged file.
    """
    work = RelayWork(directory)
    tasks = list(work.tasks())
    keys = {(task.tuner, task.key) for task in tasks}
    found = [verdict for verdict in latest(verdict_journal(work).entries()) if verdict.subject in keys]
    verdicts = sorted(found, key=lambda verdict: verdict.subject)
    networks = current(network_journal(work), record_uses(work, run, verdicts))
    judged = judged_records(verdicts, networks, tasks, (entry.name for entry in run.networks))
    admitted = {verdict.network for verdict in networks if verdict.admitted}
    published = [record for record in judged if record.published and _is_sound(record)]
    graphs = [verdict for verdict in networks if verdict.variant == GRAPH and verdict.admitted]
    if not published and not graphs:
        raise nothing_admitted(directory, checked=bool(verdicts))
    tuned = _tuned(work)
    evidence = _evidence(judged, networks, _efforts(tuned, tasks))
    sets, files = _record_sets(work, run, published, graphs)
    return Contents(
        target=descriptor_of_legacy(parse_target(target_text(run))),
        record_sets=tuple(sets),
        networks=tuple(entry for entry in sorted_networks(run) if entry.name in admitted),
        provenance=provenance_of(run, sum(map(_lines, work.logs()))),
        files=files,
        evidence=b"".join(map(encode_evidence, [*evidence, *measured_with(run, measured)])),
        counts={
            "records": len(published),
            "rejected": len(verdicts) - len(published),
            "not_checked": len(tasks) - len(verdicts),
            "graphs": len(graphs),
        },
        curves=_curves(published, tuned),
    )


def _is_sound(record: JudgedRecord) -> bool:
    """By today's rules too, which may be stricter than on the day of the verdict."""
    line = record.verdict.line
    try:
        return line is not None and static_reason(parse_line(line.encode())) is None
    except LogLineError:
        return False


def _record_sets(
    work: RelayWork, run: RunFile, published: Sequence[JudgedRecord], graphs: Sequence[NetworkVerdict]
) -> tuple[list[RecordSet], dict[str, bytes]]:
    logs = {AUTOTVM: work.autotvm_log, AUTO_SCHEDULER: work.auto_scheduler_log}
    sets, files = [], {}
    for tuner, file in RECORD_FILES.items():
        lines = [record.verdict.line for record in published if record.verdict.tuner == tuner]
        if lines:
            files[file] = "".join(f"{line}\n" for line in lines).encode()
            sets.append(_record_set(run, tuner, file, len(lines), _lines(logs[tuner])))
    for verdict in graphs:
        log = work.graph_log(verdict.network)
        file = f"records/graph/{log.name}"
        files[file] = log.read_bytes()
        count = sum(bool(line.strip()) and not line.startswith(b"#") for line in files[file].splitlines())
        sets.append(_record_set(run, GRAPH_TUNER, file, count, _lines(work.layout_log)))
    return sets, files


def _record_set(run: RunFile, tuner: str, file: str, count: int, trials: int) -> RecordSet:
    return RecordSet(
        tuner=tuner,
        file=file,
        tvm=TVM_VERSIONS,
        key_scheme=KEY_SCHEMES[tuner],
        count=count,
        provenance=provenance_of(run, trials, tuner),
    )


def _evidence(
    judged: Iterable[JudgedRecord],
    networks: Iterable[NetworkVerdict],
    efforts: Mapping[tuple[str, str], Effort],
) -> list[Evidence]:
    """On every record that was measured, and on the networks whose sets are published."""
    records = [
        msgspec.structs.replace(found, **efforts.get(record.verdict.subject, {}))
        for record in judged
        if (found := record_evidence(record)) is not None
    ]
    return [*records, *filter(None, map(network_evidence, networks))]


Effort = dict[str, int]
Tuning = Mapping[tuple[str, str], BestSoFar]


def _efforts(tuned: Tuning, tasks: Iterable[RelayTask]) -> dict[tuple[str, str], Effort]:
    """The trials and the size of the space of each workload, by tuner and key."""
    return {
        name: {"trials": tuned[name].trials, **({"space": task.space} if task.space else {})}
        for task in tasks
        if (name := (task.tuner, task.key)) in tuned
    }


def _tuned(work: RelayWork) -> Tuning:
    """How the best time of each workload fell, by tuner and key."""
    found: defaultdict[tuple[str, str], BestSoFar] = defaultdict(BestSoFar)
    for log in work.logs():
        with log.open("rb") as stream:
            for _, _, tuned, mean_s in scan_log(stream, lambda bad: None):
                found[tuned.tuner, tuned.key].add(mean_s)
    return found


def _curves(published: Iterable[JudgedRecord], tuned: Tuning) -> tuple[TuningCurve, ...]:
    subjects = {record.verdict.subject for record in published} & tuned.keys()
    return tuple(filter(None, (tuning_curve(key, tuner, tuned[tuner, key]) for tuner, key in sorted(subjects))))


def _lines(path: Path) -> int:
    """How many lines a log has; each is a measurement."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for _ in file)
