"""``tunehub check --end-to-end``: whole networks with a set of records, against TVM's default and against no records.

A record that wins alone can lose in a network: it meets other layouts around it, other caches, and other records. Here
TVM's default, tunehub without records and tunehub with them run in one process, in turns. The records are admitted for
a network when it computes the same, is faster than the default beyond the noise, and not slower than without them.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from tunehub.measure.difference import difference_reason
from tunehub.measure.protocol import interquartile_range, noise_reason
from tunehub_builder.backends.relax.network_worker import (
    DEFAULT,
    PLAIN,
    TUNED,
    NetworkCase,
    NetworkSampleOptions,
    NetworkSession,
)
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.evidence import NetworkEvidence
from tunehub_registry.manifest import NetworkEntry

_FILES = "onnx file "  # how the sources of networks from files begin


@dataclass(frozen=True, kw_only=True, slots=True)
class EndToEndOptions:
    """What a network must show, and how it is measured. Limits in seconds, for one build and for all samples."""

    tolerance: float = 1e-4
    min_speedup: float = 1.02
    max_slowdown: float = 1.02
    build_limit_s: float = 1800.0
    run_limit_s: float = 1800.0
    samples: NetworkSampleOptions = field(
        default_factory=lambda: NetworkSampleOptions(
            rounds=7, sample_s=0.25, warm_up_s=0.25, default_budget_s=8.0, patience_s=20.0
        )
    )


class NetworkVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one network: a line of ``networks.jsonl``.

    ``digest`` names the records. ``default_s``, ``plain_s`` (without records) and ``tuned_s`` are samples in seconds,
    ``rungs`` the workloads that each rung served with the records.
    """

    network: str
    digest: str
    threads: int
    admitted: bool
    reason: str | None = None
    default_s: tuple[float, ...] = ()
    plain_s: tuple[float, ...] = ()
    tuned_s: tuple[float, ...] = ()
    difference: float | None = None
    rungs: dict[str, int] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFile:
    """Records in a file, for one target: TVM's ``target`` as JSON, and the ``layout`` that they are for.

    ``evidence``: a file of what was measured of them and of rejected ones, which decides what the client leaves to TVM.
    """

    path: Path
    target: dict[str, Any]
    layout: str
    evidence: Path | None = None

    @property
    def digest(self) -> str:
        """Names these records."""
        return digest_of(self.path.read_bytes())


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """What is known of one way to compile a network; ``reason`` says why it is not measured to the end."""

    run_s: tuple[float, ...] = ()
    difference: float | None = None
    reason: str | None = None
    rungs: Mapping[str, int] = field(default_factory=dict)


def digest_of(records: bytes) -> str:
    """Names the lines of a file of records."""
    return hashlib.sha256(records).hexdigest()[:16]


def network_journal(directory: WorkDirectory) -> LineJournal[NetworkVerdict]:
    """The journal of verdicts on networks. Of two on one network the later one counts."""
    return LineJournal(directory.path / "networks.jsonl", NetworkVerdict)


def cases(
    entries: Iterable[NetworkEntry], names: Sequence[str], models: Sequence[Path], records: RecordFile
) -> list[NetworkCase]:
    """What to measure: the standard networks called ``names`` and the ONNX files ``models``, or without either, the
    networks of a run or package, ``entries``. Files of misses and networks of TVM <= 0.19 are left out of those.

    Raises UnknownNetworkError, and BuilderError when one of ``entries`` came from a file, which has to be given.
    """
    from tunehub_builder import networks

    known = {entry.name: entry for entry in entries}
    if not names and not models:
        from_file = next((entry.name for entry in known.values() if entry.source.startswith(_FILES)), None)
        if from_file is not None:
            reason = f"the network {from_file!r} was tuned from a file: give it with --model FILE"
            raise BuilderError(f"{reason}, or say which with --network NAME")
        names = [name for name in known if name in networks.names()]
    for name in names:
        if name not in networks.names():
            raise networks.UnknownNetworkError(name, networks.names())
    files = [(path.stem, path) for path in models]
    return [_case(name, None, {}, records) for name in names] + [
        _case(name, path, dict(known[name].inputs) if name in known else {}, records) for name, path in files
    ]


def _case(name: str, file: Path | None, shapes: dict[str, tuple[int, ...]], records: RecordFile) -> NetworkCase:
    return NetworkCase(
        name=name,
        file=None if file is None else str(file),
        shapes=shapes,
        target=records.target,
        records=str(records.path),
        layout=records.layout,
        evidence=None if records.evidence is None else str(records.evidence),
    )


def judge_networks(
    found: Iterable[NetworkCase],
    records: RecordFile,
    *,
    threads: int,
    log: str | None,
    options: EndToEndOptions | None = None,
) -> Iterator[NetworkVerdict]:
    """Yield a verdict for each network, measured in a process of its own. Raises TuningError when it cannot load."""
    chosen = options or EndToEndOptions()
    digest = records.digest
    for case in found:
        worker = Worker(PoolOptions(workers=1, threads=threads, log=log), NetworkSession)
        try:
            measured = _measure(worker, case, chosen)
        finally:
            worker.stop(at_once=True)
        yield decide(case.name, digest, measured, threads, chosen)


def decide(
    network: str, digest: str, measured: Mapping[str, Variant], threads: int, options: EndToEndOptions
) -> NetworkVerdict:
    """The verdict on a network, from what its three variants showed. Pure."""
    default, plain, tuned = (measured.get(name, Variant(reason="was not measured")) for name in (DEFAULT, PLAIN, TUNED))
    reason = default.reason or tuned.reason
    if reason is None:
        reason = noise_reason(default.run_s, tuned.run_s, options.min_speedup)
    if reason is None and plain.reason is None:
        reason = _slower(plain.run_s, tuned.run_s, options.max_slowdown)
    return NetworkVerdict(
        network=network,
        digest=digest,
        threads=threads,
        admitted=reason is None,
        reason=reason,
        default_s=default.run_s,
        plain_s=plain.run_s,
        tuned_s=tuned.run_s,
        difference=tuned.difference,
        rungs=dict(tuned.rungs),
    )


def judge_due(
    directory: WorkDirectory,
    found: Sequence[NetworkCase],
    records: RecordFile,
    threads: int,
    show: Callable[[NetworkVerdict], None],
    options: EndToEndOptions | None = None,
) -> list[NetworkVerdict]:
    """Judge the networks of a work directory that have no verdict on these very records; return all verdicts.

    The caller holds the directory locked. Raises WorkDirectoryError and TuningError; what was written stays.
    """
    journal = network_journal(directory)
    journal.heal()
    known = current(journal.entries(), records.digest, threads)
    due = [case for case in found if case.name not in known]
    for verdict in judge_networks(due, records, threads=threads, log=str(directory.log), options=options):
        journal.append(verdict)
        known[verdict.network] = verdict
        show(verdict)
    return [known[case.name] for case in found]


def current(verdicts: Iterable[NetworkVerdict], digest: str, threads: int | None = None) -> dict[str, NetworkVerdict]:
    """The latest verdict on each network that is about the records ``digest`` (and this number of threads)."""
    latest = {verdict.network: verdict for verdict in verdicts if threads in (None, verdict.threads)}
    return {name: verdict for name, verdict in latest.items() if verdict.digest == digest}


def as_evidence(verdict: NetworkVerdict) -> NetworkEvidence | None:
    """An admitted verdict as a line of a package's evidence; None for another one."""
    if not verdict.admitted or verdict.difference is None:
        return None
    return NetworkEvidence(
        network=verdict.network,
        default_s=statistics.median(verdict.default_s),
        tuned_s=statistics.median(verdict.tuned_s),
        repeats=len(verdict.tuned_s),
        threads=verdict.threads,
        output_max_rel_diff=verdict.difference,
    )


def _slower(plain_s: Sequence[float], tuned_s: Sequence[float], most: float) -> str | None:
    """Why a network is better off without the records, or None when it is not, or not beyond the noise."""
    plain, tuned = statistics.median(plain_s), statistics.median(tuned_s)
    noise = max(interquartile_range(plain_s), interquartile_range(tuned_s))
    if tuned <= most * plain or tuned - plain <= noise:
        return None
    return f"takes {tuned * 1e3:.4g} ms with the records and {plain * 1e3:.4g} ms without any"


def _measure(worker: Worker, case: NetworkCase, options: EndToEndOptions) -> dict[str, Variant]:
    """Build, compare and time the variants. A crash ends it, with the reason at the variant that was at work."""
    worker.load(case.name, msgspec.json.encode(case).decode())
    measured: dict[str, Variant] = {}
    for variant in (DEFAULT, PLAIN, TUNED):
        measured[variant] = _built(worker, variant, options)
        if not worker.alive:
            return measured
    running = [variant for variant, found in measured.items() if found.reason is None]
    if DEFAULT not in running or TUNED not in running:
        return measured
    kind, samples = worker.ask(("sample", running, options.samples), options.run_limit_s)
    if kind != "ok":
        return {**measured, TUNED: Variant(reason=f"cannot be timed: {samples}")}
    return {**measured, **{variant: replace(measured[variant], run_s=times) for variant, times in samples.items()}}


def _built(worker: Worker, variant: str, options: EndToEndOptions) -> Variant:
    """Build one variant and compare its outputs with the default's."""
    kind, value = worker.ask(("build", variant), options.build_limit_s)
    if kind != "ok":
        return Variant(reason=f"does not build ({variant}): {value}")
    rungs = dict(value)
    kind, value = worker.ask(("difference", variant), options.run_limit_s)
    if kind != "ok":
        return Variant(reason=f"does not run ({variant}): {value}", rungs=rungs)
    return Variant(difference=value, reason=difference_reason(value, options.tolerance), rungs=rungs)
