"""`tunehub check`: the publish gate on a work directory or on a file of records, and what it says."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tunehub.records.key_scheme import TEMPLATE
from tunehub_builder.exceptions import BuilderError, WorkDirectoryError
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.gate.workloads import Verdict, check_directory, judge_all, options_for, static_reason
from tunehub_builder.tuning.progress import milliseconds, native_output_to
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.workers import worker_pool
from tunehub_builder.tuning.target import tvm_versions
from tunehub_builder.tuning.trial_record import as_trial, candidate_of
from tunehub_builder.tuning.work_directory import RunFile, WorkDirectory
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.template_record import BadLine, TemplateRecord

if TYPE_CHECKING:
    from tunehub_builder.backends.relay.check import RelayOutcome

_BUSY = 0.7  # load that other programs may put on the machine before we say that it is busy


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A record, by its workload or its line, that may not be published."""

    where: str
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkResult:
    """End-to-end medians in seconds of a network (`resnet-18 (graph)`), None where not measured; why it is rejected."""

    network: str
    admitted: bool
    default_s: float | None
    tuned_s: float | None
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a check found. `measured` is False when only formats and traces were looked at. `networks` are those that
    were judged end to end."""

    admitted: int
    rejected: tuple[Rejection, ...]
    measured: bool
    speedups: tuple[float, ...] = ()
    networks: tuple[NetworkResult, ...] = ()

    def text(self) -> str:
        """For people: every rejection, then the counts."""
        lines = [f"rejected {item.name} ({item.where}): {item.reason}" for item in self.rejected]
        how = "" if self.measured else " by format and trace only; give --work DIR to measure them"
        if self.admitted or self.rejected or not self.networks:
            lines.append(f"{self.admitted} admitted, {len(self.rejected)} rejected{how}")
        if self.speedups:
            mean = statistics.geometric_mean(self.speedups)
            lines.append(f"admitted records are {mean:.1f} times faster than the default (geometric mean)")
        lines += map(network_line, self.networks)
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        rejected = [{"where": item.where, "name": item.name, "reason": item.reason} for item in self.rejected]
        geomean = statistics.geometric_mean(self.speedups) if self.speedups else None
        return {
            "admitted": self.admitted,
            "rejected": rejected,
            "measured": self.measured,
            "geomean_speedup": geomean,
            **({"networks": [asdict(network) for network in self.networks]} if self.networks else {}),
        }


def check_work_directory(
    path: Path,
    resources: Resources,
    models: Sequence[Path] = (),
    *,
    end_to_end: bool = False,
    networks: Sequence[str] = (),
) -> Outcome:
    """Judge the finalists in a work directory, and with ``end_to_end`` its networks with the records then admitted.

    ``models``: the ONNX files that were tuned; ``networks``: only these of the standard ones. With TVM <= 0.19 networks
    are always judged. Raises WorkDirectoryError, TuningError, and for networks as ``network_gate.check_networks``.
    """
    with WorkDirectory(path).locked() as directory:
        run = directory.existing_run()
        _check_versions(directory, run)
        with native_output_to(directory.log) as stream:
            _warn_if_busy(stream)
            if run.relay_target is not None:
                from tunehub_builder.backends.relay.check import check_relay_directory

                return _relay_outcome(check_relay_directory(directory, resources, models, stream))
            outcome = _outcome(check_directory(directory, resources, _Shown(stream).show))
            if end_to_end:
                from tunehub_builder.gate.network_report import check_networks

                judged = check_networks(directory, resources, networks, models, stream)
                outcome = replace(outcome, networks=judged)
    return outcome


def check_file(path: Path, work: Path | None, resources: Resources) -> Outcome:
    """Judge a file of records; with ``work``, whose workloads they are for, also by building and measuring.

    Raises WorkDirectoryError when ``path`` or ``work`` cannot be read, TuningError as :func:`check_work_directory`.
    """
    records, rejected = _read(path)
    if work is None:
        return Outcome(admitted=len(records), rejected=tuple(rejected), measured=False)
    with WorkDirectory(work).locked() as directory:
        run = directory.existing_run()
        _check_versions(directory, run)
        entries, unknown = _entries(directory, run, records)
        with native_output_to(directory.log) as stream:
            _warn_if_busy(stream)
            verdicts = list(_measured(directory, run, entries, resources, stream))
    outcome = _outcome(verdicts)
    return Outcome(
        admitted=outcome.admitted,
        rejected=(*rejected, *unknown, *outcome.rejected),
        measured=True,
        speedups=outcome.speedups,
    )


class _Shown:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, verdict: Verdict, position: int, count: int) -> None:
        self._stream.write(f"[{position}/{count}] {describe(verdict)}\n")
        self._stream.flush()


def describe(verdict: Verdict) -> str:
    """One line on a verdict."""
    times = ""
    if verdict.winner is not None and verdict.default_s:
        default_s = statistics.median(verdict.default_s)
        tuned_s = statistics.median(verdict.finalists[verdict.winner].run_s)
        times = f": {milliseconds(default_s)} → {milliseconds(tuned_s)} ({verdict.speedup:.1f}×)"
    return f"{'admitted' if verdict.admitted else 'rejected'} {verdict.name}{times}" + (
        f", {verdict.reason}" if verdict.reason else ""
    )


def _measured(
    directory: WorkDirectory, run: RunFile, entries: Sequence[Distilled], resources: Resources, stream: TextIO
) -> Iterator[Verdict]:
    shown = _Shown(stream)
    with worker_pool(directory, run, workers=resources.workers, threads=resources.threads) as pool:
        verdicts = judge_all(entries, pool.workers, run.target, resources.threads, options_for(run.target))
        for position, verdict in enumerate(verdicts, 1):
            shown.show(verdict, position, len(entries))
            yield verdict


def _read(path: Path) -> tuple[list[AnyRecord], list[Rejection]]:
    """The records of a file whose format and trace or knobs are good, and the others."""
    good: list[AnyRecord] = []
    bad: list[Rejection] = []
    try:
        with path.open("rb") as file:
            for number, record in enumerate(read_any_records(file, str(path)), 1):
                where = f"{path.name}:{number}"
                if isinstance(record, BadLine):
                    bad.append(Rejection(where=where, name=f"line {number}", reason=record.reason))
                elif reason := static_reason(candidate_of(record)):
                    bad.append(Rejection(where=where, name=record.op, reason=reason))
                else:
                    good.append(record)
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror}; give a work directory or a file of records") from error
    return good, bad


def _entries(
    directory: WorkDirectory, run: RunFile, records: Sequence[AnyRecord]
) -> tuple[list[Distilled], list[Rejection]]:
    tasks = {task.exact: task for task in directory.tasks()}
    entries, unknown = [], []
    for record in records:
        if record.exact in tasks and isinstance(record, TemplateRecord) == (run.tuner == TEMPLATE):
            trial = as_trial(record)
            entries.append(Distilled(task=tasks[record.exact], best=(trial,), trials=1))
        else:
            reason = f"{directory.path} has no such workload"
            unknown.append(Rejection(where=record.exact, name=record.op, reason=reason))
    return entries, unknown


def _outcome(verdicts: Sequence[Verdict]) -> Outcome:
    rejected = [
        Rejection(where=verdict.exact, name=verdict.name, reason=verdict.reason or "")
        for verdict in verdicts
        if not verdict.admitted
    ]
    speedups = tuple(verdict.speedup for verdict in verdicts if verdict.admitted and verdict.speedup)
    return Outcome(admitted=len(speedups), rejected=tuple(rejected), measured=True, speedups=speedups)


def _relay_outcome(found: RelayOutcome) -> Outcome:
    published = [record.verdict for record in found.records if record.published]
    return Outcome(
        admitted=len(published),
        rejected=tuple(
            Rejection(where=record.verdict.key, name=record.verdict.name, reason=record.reason)
            for record in found.records
            if record.reason is not None
        ),
        measured=True,
        speedups=tuple(verdict.speedup for verdict in published if verdict.speedup),
        networks=tuple(
            NetworkResult(
                network=verdict.label,
                admitted=verdict.admitted,
                default_s=statistics.median(verdict.default_s) if verdict.default_s else None,
                tuned_s=statistics.median(verdict.tuned_s) if verdict.tuned_s else None,
                reason=verdict.reason,
            )
            for verdict in found.networks
        ),
    )


def network_line(result: NetworkResult) -> str:
    """One line on a network."""
    times = ""
    if result.default_s is not None and result.tuned_s is not None:
        ratio = result.default_s / result.tuned_s
        times = f": {milliseconds(result.default_s)} → {milliseconds(result.tuned_s)} ({ratio:.2f}×)"
    word = "admitted" if result.admitted else "rejected"
    return f"{word} {result.network}{times}" + (f", {result.reason}" if result.reason else "")


def _check_versions(directory: WorkDirectory, run: RunFile) -> None:
    """The default schedule is TVM's: another TVM may have a faster or a slower one."""
    found = tvm_versions()
    expected = (run.tvm_version, run.tvm_ffi_version)
    if found != expected:
        reason = f"was tuned with TVM {' and apache-tvm-ffi '.join(expected)}, this is {' and '.join(found)}"
        raise WorkDirectoryError(directory.path, reason, "check it with the same versions")


def _warn_if_busy(stream: TextIO) -> None:
    load = os.getloadavg()[0] if sys.platform != "win32" else 0.0
    if load > _BUSY:
        stream.write(f"warning: other programs are at work here (load {load:.1f}): times will be noisy\n")
