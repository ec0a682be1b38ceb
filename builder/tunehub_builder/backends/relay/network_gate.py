"""The publish gate's second half for TVM <= 0.19: whole networks, end to end, with a set of records and without.

The default and every set are compiled and timed in one process, in turns. A set is admitted for a network only when the
network is faster with it beyond the noise and computes the same.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tunehub.measure.difference import difference_reason
from tunehub.measure.protocol import is_lost_in_noise, noise_reason
from tunehub_builder.backends.relay.gate import (
    TOLERANCE,
    RelayGateOptions,
    RelayVerdict,
    digest_of,
    overruled,
    target_text,
    template_modules,
    tolerance,
)
from tunehub_builder.backends.relay.measure_network import (
    AUTO_SCHEDULER,
    DEFAULT,
    GRAPH,
    HISTORY,
    NetworkCase,
    NetworkSampleOptions,
    NetworkSession,
)
from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.tuner import AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import PoolOptions, Worker
from tunehub_builder.tuning.work_directory import RunFile


class NetworkVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gate's decision on one network with one set of records: a line of ``relay_networks.jsonl``.

    ``variant``: ``history`` (the best record of each workload), ``graph`` or ``auto_scheduler``. ``digest`` names the
    lines that were used, ``keys`` their workloads (none for a graph). ``default_s`` and ``tuned_s`` are samples in
    seconds. ``tolerance`` is the most that ``difference`` may be.
    """

    network: str
    variant: str
    digest: str
    threads: int
    admitted: bool
    reason: str | None = None
    default_s: tuple[float, ...] = ()
    tuned_s: tuple[float, ...] = ()
    difference: float | None = None
    tolerance: float = TOLERANCE
    keys: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``resnet-18 (graph)``."""
        return f"{self.network} ({self.variant})"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordUse:
    """A set of records to compile a network with: lines in TVM's own format."""

    variant: str
    lines: tuple[str, ...]
    keys: tuple[str, ...] = ()
    tolerance: float = TOLERANCE

    @property
    def digest(self) -> str:
        """Names these lines."""
        return digest_of(line.encode() for line in self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantTimes:
    """What is known about one variant after measuring; ``reason`` says why it is not measured to the end."""

    run_s: tuple[float, ...] = ()
    difference: float | None = None
    reason: str | None = None


def network_journal(work: RelayWork) -> LineJournal[NetworkVerdict]:
    """The journal of network verdicts. Of two on a network and a variant the later one counts."""
    return LineJournal(work.path / "relay_networks.jsonl", NetworkVerdict)


def record_uses(work: RelayWork, run: RunFile, verdicts: Sequence[RelayVerdict]) -> dict[str, list[RecordUse]]:
    """The sets to try on each network of ``run``: what was admitted of the workloads that it calls, and its
    graph-level records. Raises WorkDirectoryError for a damaged file of tasks."""
    beaten = overruled(verdicts)
    winners = {(v.tuner, v.key): v for v in verdicts if v.admitted and (v.tuner, v.key) not in beaten}
    tasks = list(work.tasks())
    return {entry.name: _uses_of(entry.name, tasks, winners, work.graph_log(entry.name)) for entry in run.networks}


def _uses_of(
    network: str, tasks: Sequence[RelayTask], winners: Mapping[tuple[str, str], RelayVerdict], graph: Path
) -> list[RecordUse]:
    found = []
    for variant, tuner in ((HISTORY, AUTOTVM), (AUTO_SCHEDULER, AUTO_SCHEDULER)):
        called = sorted(
            {t.key for t in tasks if t.tuner == tuner and network in t.counts and (tuner, t.key) in winners}
        )
        used = [winners[tuner, key] for key in called]
        lines = tuple(verdict.line for verdict in used if verdict.line is not None)
        if lines:
            most = max(tolerance(verdict.name) for verdict in used)
            found.append(RecordUse(variant=variant, lines=lines, keys=tuple(called), tolerance=most))
    if graph.exists():
        text = graph.read_text(encoding="utf-8")
        found.append(RecordUse(variant=GRAPH, lines=tuple(text.splitlines()), tolerance=tolerance(text)))
    return found


def current(
    uses: Mapping[str, Sequence[RecordUse]], verdicts: Iterable[NetworkVerdict], threads: int | None = None
) -> dict[tuple[str, str], NetworkVerdict]:
    """The latest verdicts, by network and variant, that are about these very lines (and this number of threads)."""
    latest = {(verdict.network, verdict.variant): verdict for verdict in verdicts}
    digests = {(network, use.variant): use.digest for network, found in uses.items() for use in found}
    return {
        key: verdict
        for key, verdict in latest.items()
        if digests.get(key) == verdict.digest and threads in (None, verdict.threads)
    }


def check_networks(
    work: RelayWork,
    run: RunFile,
    resources: Resources,
    network_of: Callable[[str], RelayNetwork],
    uses: Mapping[str, Sequence[RecordUse]],
    show: Callable[[NetworkVerdict, int, int], None],
    options: RelayGateOptions,
) -> list[NetworkVerdict]:
    """Judge each network with the sets in ``uses``, all sets of a network anew when one of them is due: it is not
    judged yet, or was lost in the noise.

    ``network_of`` gives a network by name. ``show`` gets each new verdict with the position of its network and how
    many there are. Raises WorkDirectoryError, NetworkError and TuningError; what was written stays.
    """
    journal = network_journal(work)
    journal.heal()
    known = current(uses, journal.entries(), resources.threads)
    known = {
        key: verdict
        for key, verdict in known.items()
        if not is_lost_in_noise(verdict.default_s, verdict.tuned_s, options.min_speedup)
    }
    due = [name for name, found in uses.items() if any((name, use.variant) not in known for use in found)]
    for position, name in enumerate(due, 1):
        for verdict in _judge(network_of(name), uses[name], run, resources, str(work.directory.log), options):
            journal.append(verdict)
            known[name, verdict.variant] = verdict
            show(verdict, position, len(due))
    return list(known.values())


def decide(
    network: str, uses: Sequence[RecordUse], measured: Mapping[str, VariantTimes], threads: int, min_speedup: float
) -> list[NetworkVerdict]:
    """The verdicts on one network, from the times of the default and of the variants."""
    default = measured[DEFAULT]
    verdicts: dict[str, NetworkVerdict] = {}
    for use in uses:
        times = measured.get(use.variant, VariantTimes(reason="was not measured"))
        reason = default.reason or times.reason
        if reason is None:
            reason = noise_reason(default.run_s, times.run_s, min_speedup)
        if reason is None and use.variant == GRAPH and HISTORY in verdicts:
            reason = _slower_than_history(verdicts[HISTORY], times.run_s)
        verdicts[use.variant] = NetworkVerdict(
            network=network,
            variant=use.variant,
            digest=use.digest,
            threads=threads,
            admitted=reason is None,
            reason=reason,
            default_s=default.run_s,
            tuned_s=times.run_s,
            difference=times.difference,
            tolerance=use.tolerance,
            keys=use.keys,
        )
    return list(verdicts.values())


def _slower_than_history(history: NetworkVerdict, graph_s: Sequence[float]) -> str | None:
    """Why graph-level records are no good beside the history that is published too, or None."""
    if not history.admitted or noise_reason(graph_s, history.tuned_s, 1.0) is not None:
        return None
    graph, best = statistics.median(graph_s), statistics.median(history.tuned_s)
    return f"takes {graph:.3g} s, and the best records of the single workloads {best:.3g} s"


def _judge(
    network: RelayNetwork,
    uses: Sequence[RecordUse],
    run: RunFile,
    resources: Resources,
    log: str,
    options: RelayGateOptions,
) -> list[NetworkVerdict]:
    with tempfile.TemporaryDirectory() as folder:
        case = _saved(network, Path(folder), run)
        worker = Worker(PoolOptions(workers=1, threads=resources.threads, log=log), NetworkSession)
        try:
            measured = _measure_all(worker, network.name, case, uses, options)
        finally:
            worker.stop(at_once=True)
    return decide(network.name, uses, measured, resources.threads, options.min_speedup)


def _saved(network: RelayNetwork, folder: Path, run: RunFile) -> str:
    """The network as a worker takes it: its module and its weights in files, since weights can be large."""
    import tvm
    from tvm import relay

    module, weights = network.module()
    (folder / "module.json").write_text(str(tvm.ir.save_json(module)), encoding="utf-8")
    (folder / "weights.bin").write_bytes(relay.save_param_dict(weights))
    case = NetworkCase(
        module=str(folder / "module.json"),
        weights=str(folder / "weights.bin"),
        inputs=dict(network.inputs),
        target=target_text(run),
        templates=template_modules(run),
    )
    return msgspec.json.encode(case).decode()


def _measure_all(
    worker: Worker, name: str, case: str, uses: Sequence[RecordUse], options: RelayGateOptions
) -> dict[str, VariantTimes]:
    """Measure all variants; those that end the process are left out of the next attempt."""
    failed: dict[str, VariantTimes] = {}
    while True:
        alive = [use for use in uses if use.variant not in failed]
        measured = _attempt(worker, name, case, alive, options)
        failed |= {variant: times for variant, times in measured.items() if times.reason is not None}
        if worker.alive or DEFAULT in failed or len(failed) == len(uses):
            return {DEFAULT: VariantTimes(), **measured, **failed}


def _attempt(
    worker: Worker, name: str, case: str, uses: Sequence[RecordUse], options: RelayGateOptions
) -> dict[str, VariantTimes]:
    """Build, compare and time; ends early when the process does, with the reason at the variant that was at work."""
    worker.load(name, case)
    measured: dict[str, VariantTimes] = {}
    for use in (RecordUse(variant=DEFAULT, lines=()), *uses):
        measured[use.variant] = _built(worker, use, options)
        if not worker.alive or (use.variant == DEFAULT and measured[DEFAULT].reason):
            return measured
    running = [variant for variant, times in measured.items() if times.reason is None]
    sampling = NetworkSampleOptions(
        rounds=options.rounds,
        sample_s=options.network_sample_s,
        warm_up_s=options.warm_up_s,
        patience_s=options.network_patience_s,
    )
    kind, samples = worker.ask(("sample", running, sampling), options.network_limit_s)
    if kind != "ok":
        return {variant: VariantTimes(reason=f"cannot be timed: {samples}") for variant in running}
    return measured | {variant: replace(measured[variant], run_s=times) for variant, times in samples.items()}


def _built(worker: Worker, use: RecordUse, options: RelayGateOptions) -> VariantTimes:
    """Build one variant and run it once."""
    kind, error = worker.ask(("build", use.variant, list(use.lines)), options.network_limit_s)
    if kind != "ok":
        return VariantTimes(reason=f"does not build: {error}")
    kind, value = worker.ask(("difference", use.variant), options.run_limit_s)
    if kind != "ok":
        return VariantTimes(reason=f"does not run: {value}")
    return VariantTimes(difference=value, reason=difference_reason(value, use.tolerance))
