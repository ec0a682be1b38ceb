"""`tunehub check --again`: the rows of a package beside what rules have today, measured on this machine.

Each row, its workload's default and what a client has without the row are built and timed in turns, as at the gate.
What comes out is evidence, a line for each row, from which `tunehub pack --judged` makes the package's next version
(docs/adr/0076-rows-that-stay-true.md). For a GPU all of it may be built ahead, by processes that need none.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tunehub.kernels.template_fit import published_rates
from tunehub.target.descriptors import as_tvm_target
from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.again_measured import MeasuredRow, Measuring, again_places, again_pool, candidates_of
from tunehub_builder.gate.again_networks import judged_networks
from tunehub_builder.gate.again_rows import Looking, MatchedRow, PackagedRow, drawn, in_order, matched_row
from tunehub_builder.gate.apart import PROCESSES
from tunehub_builder.gate.disturbance import UNJUDGED, until_undisturbed
from tunehub_builder.gate.judged import Judged, read_judged, write_judged
from tunehub_builder.gate.networks import NetworkVerdict
from tunehub_builder.gate.packages import evidence_of, opened, published_profile
from tunehub_builder.gate.places import judge_at_once
from tunehub_builder.gate.report import CheckResult, NetworkResult, Rejection, network_results, shown_on
from tunehub_builder.gate.workloads import stop_workers
from tunehub_builder.replay.records import Record, records_by_tuner
from tunehub_builder.replay.workloads import WorkloadFiles, matched_records
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import Worker
from tunehub_builder.tuning.target import TuningTarget
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.printable import plain

if TYPE_CHECKING:
    from tunehub.target.types import Target

_BUILD_LIMIT_S = 600.0  # of one row


@dataclass(frozen=True, kw_only=True, slots=True)
class AgainRequest:
    """Which rows are judged: at most ``count`` are measured (None: all; 0 needs no machine), drawn by the hashes of
    their keys; of workloads that are in no network known by name, ``files`` have some. ``names``: only rows of these
    networks, those named first before the others. ``end_to_end``: networks are run, too: these, if any, and the models
    of ``files``, in so many ``processes`` with the records and by rules each. ``ahead``: what is to be measured is only
    built."""

    count: int | None = None
    names: Sequence[str] = ()
    end_to_end: bool = False
    processes: int = PROCESSES
    ahead: bool = False
    files: WorkloadFiles = field(default_factory=WorkloadFiles)


@dataclass(frozen=True, kw_only=True, slots=True)
class _MatchedRows:
    """Rows, of all ``records`` of a package, in the order in which they are judged, where they are measured, if
    anywhere, and how they are looked at."""

    records: Mapping[str, Mapping[str, Record]]
    target: TuningTarget | None
    rows: Sequence[MatchedRow]
    looking: Looking


def check_again(path: Path, request: AgainRequest, output: Path, resources: Resources, stream: TextIO) -> CheckResult:
    """Judge rows of the package ``path``, and its networks where that is asked for, and append their evidence to
    ``output``; those that it has stay as they are. What is built ahead lies beside it.

    What other programs disturbed is judged again behind all else, three times at most; then it gets none, and the next
    call judges it.

    Raises BuilderError for a package that cannot be read, or without a row whose workload is at hand;
    NoSuchTargetError and UnsuitableTargetError for one of another machine, PackageError and FormatError for a damaged
    one, TuningError when a worker cannot be started, OSError where nothing can be written.
    """
    done, folder = read_judged(output), output.with_suffix(".built")
    matched = _matched(path, request, done, folder, resources)
    if request.ahead:
        _build_ahead(matched, stream)
        return _result(matched.records, done)
    left = 0
    for some in [matched.rows] if request.count is not None else matched.looking.kept_first(matched.rows):
        rows = matched.looking.rows(some)
        same = [line for row in rows if (line := row.as_rules) is not None]
        stream.write(f"{len(same)} of {len(rows)} rows have the very schedule of rules: nothing of them is measured\n")
        others = drawn([row for row in rows if row.as_rules is None], request.count)
        for line in chain(same, _measured(others, matched.looking, matched.target, resources, stream)):
            write_judged(output, line)
            done.add(line)
        unjudged = sum((row.tuner, row.record.exact) not in done.rows for row in others)
        left += 0 if matched.target is None else unjudged
    if left:
        reason = "other programs disturbed their times, or they do not run"
        stream.write(f"{left} of the rows have no verdict: {reason}; the same call judges them again\n")
    result = _result(matched.records, done)
    if not request.end_to_end:
        return result
    return replace(result, networks=_networks(path, request, done, output, resources, stream))


def _matched(path: Path, request: AgainRequest, done: Judged, folder: Path, resources: Resources) -> _MatchedRows:
    with opened(path) as package:
        manifest, records = package.manifest, records_by_tuner(package)
        known, published = evidence_of(package), published_profile(package)
    measures = request.count != 0 and not request.ahead
    target = find_relax_target(manifest.name) if measures else None  # said before minutes of work
    if request.ahead and not manifest.name.startswith("cuda-"):
        raise BuilderError(f"{path}: only what is measured on a GPU is built ahead")
    if manifest.evidence_alone:
        raise BuilderError(f"{path}: it has evidence alone, and no row to judge")
    wanted = {tuner: _asked(tuner, of, done, request.names) for tuner, of in records.items()}
    unread: list[str] = []
    own = as_tvm_target(manifest.name) if target is None else _tvm_target(target)
    with published_rates(published):
        found = matched_records(manifest, wanted, request.files, own, unread)
        matched = [matched_row(each, known.get((each.tuner, each.record.exact))) for each in found]
    if not matched and not done.rows and not request.end_to_end:
        reason = "; ".join(["no row has a workload at hand", *unread])
        raise BuilderError(f"{path}: {reason}; give --model or --from-misses")
    config = _config_of(own) if target is None else target.config
    kept = folder if own.kind.name == "cuda" and (request.ahead or folder.is_dir()) else None
    looking = Looking(target=config, published=published, workers=resources.workers, folder=kept)
    rows = in_order(matched, request.names)
    return _MatchedRows(records=records, target=target, rows=rows, looking=looking)


def _asked(tuner: str, records: Mapping[str, Record], done: Judged, names: Sequence[str]) -> dict[str, Record]:
    """The records of a tuner that are not ``done``, and of networks with these names, if any."""
    return {
        key: record
        for key, record in records.items()
        if (tuner, key) not in done.rows and (not names or {*names} & {*record.networks})
    }


def _config_of(target: Target) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(str(target))
    return found


def _tvm_target(target: TuningTarget) -> Target:
    import tvm

    return tvm.target.Target(target.config)


def _measured(
    rows: Sequence[PackagedRow],
    looking: Looking,
    target: TuningTarget | None,
    resources: Resources,
    stream: TextIO,
) -> Iterator[RecordEvidence]:
    """The evidence on each row, as it comes; on those that other programs disturbed behind all others."""
    if not rows or target is None:
        return
    kind = str(target.config.get("kind"))
    with (
        tempfile.TemporaryDirectory() as work,
        again_pool(target, Path(work), looking.published, resources, looking.folder) as pool,
    ):
        measuring = Measuring(target=target, threads=resources.threads, places=again_places(kind, pool))
        show = shown_on(stream)

        def unjudged(found: MeasuredRow) -> list[int]:
            return [id(found.row)] if found.verdict.reason == UNJUDGED else []

        for found, position, count in until_undisturbed(rows, lambda row: [id(row)], measuring.rows, unjudged):
            show(found.verdict, position, count)
            if found.line is not None:
                yield found.line


def _build_ahead(matched: _MatchedRows, stream: TextIO) -> None:
    """Look at rows, and build what is to be measured of each."""
    looking, total = matched.looking, len(matched.rows)

    def built(some: Iterable[MatchedRow], workers: Sequence[Worker]) -> Iterator[tuple[MatchedRow, Sequence[str]]]:
        (worker,) = workers
        for each in some:
            row = looking.row(each, worker)
            if row.as_rules is not None:
                yield each, ()
                continue
            request = "build_ahead", row.task.exact, looking.target, candidates_of(row)
            kind, errors = worker.ask(request, _BUILD_LIMIT_S)
            yield each, list(filter(None, errors)) if kind == "ok" else [str(errors)]

    with looking.pool(max(1, min(looking.workers, total))) as pool:
        places = [[worker] for worker in pool.workers]
        found = judge_at_once(matched.rows, places, built, partial(stop_workers, places))
        for position, (row, errors) in enumerate(found, 1):
            said = f"not built: {'; '.join(dict.fromkeys(errors))}" if errors else "built"
            stream.write(plain(f"[{position}/{total}] {row.task.name}: {said}") + "\n")
            stream.flush()


def _networks(
    path: Path, request: AgainRequest, done: Judged, output: Path, resources: Resources, stream: TextIO
) -> tuple[NetworkResult, ...]:
    """What was found of whole networks in this call, each appended to ``output`` as it comes."""
    models = [Path(model) for model in request.files.models]
    verdicts: dict[str, NetworkVerdict] = {}  # of those that were disturbed the last
    judged = judged_networks(path, request.names, models, done.networks, resources, stream, processes=request.processes)
    for verdict, line in judged:
        verdicts[verdict.network] = verdict
        if line is not None:
            write_judged(output, line)
    return network_results(verdicts.values())


def _result(records: Mapping[str, Mapping[str, Any]], done: Judged) -> CheckResult:
    names = {(tuner, key): record.op for tuner, of in records.items() for key, record in of.items()}
    own = {about: line for about, line in done.rows.items() if about in names}
    rejected = tuple(
        Rejection(where=about[1], name=names[about], reason=line.reason or "")
        for about, line in own.items()
        if not line.admitted
    )
    speedups = tuple(line.speedup for line in own.values() if line.admitted)
    return CheckResult(admitted=len(speedups), rejected=rejected, measured=True, speedups=speedups)
