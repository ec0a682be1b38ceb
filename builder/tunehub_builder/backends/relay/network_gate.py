"""Networks at the gate with TVM <= 0.19: TVM's default, the best record of each workload, and graph-level records.

A set is admitted for a network only when the network is faster with it beyond the noise and computes the same.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from tunehub.comparison.protocol import MeasuringPlan, is_faster
from tunehub_builder.backends.relay.network_worker import (
    AUTO_SCHEDULER,
    GRAPH,
    HISTORY,
    RelayNetworkCase,
    RelayNetworkSession,
)
from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.run_place import RunPlace, kind_of, places_by_device
from tunehub_builder.backends.relay.tuner import AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.backends.relay.workload_gate import (
    RelayVerdict,
    overruled,
    target_text,
    template_modules,
    tolerance_of,
)
from tunehub_builder.gate.comparison import BuildLimits
from tunehub_builder.gate.journal import latest
from tunehub_builder.gate.network_session import DEFAULT
from tunehub_builder.gate.network_times import NOT_MEASURED, TOLERANCE, NetworkJob, NetworkVariant, VariantTimes
from tunehub_builder.gate.networks import NetworkVerdict, digest_of, reason_against
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.work_directory import RunFile, WorkDirectory

LIMITS = BuildLimits(build_s=3600.0, run_s=300.0)
PLAN = MeasuringPlan(rounds=11, sample_s=0.25, warm_up_s=0.25, pause_s=0.05)
_OF_GPU = MeasuringPlan(rounds=11, sample_s=0.05, warm_up_s=0.05, budget_s=2.0, only_first=True)
_AT_ONCE = 10  # networks that are built while one is measured on each GPU: each takes a core
_one_definition = threading.Lock()  # TVM makes modules in this process


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
        return digest_of("\n".join(self.lines).encode())


def network_journal(work: RelayWork) -> LineJournal[NetworkVerdict]:
    """The journal of network verdicts. Of two on a network and a variant the later one counts."""
    return LineJournal(work.path / "relay_networks.jsonl", NetworkVerdict)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkUses:
    """The sets to try on a network."""

    network: str
    uses: tuple[RecordUse, ...]

    @property
    def digests(self) -> dict[Hashable, str]:
        """By network and variant."""
        return {(self.network, use.variant): use.digest for use in self.uses}


def record_uses(work: RelayWork, run: RunFile, verdicts: Sequence[RelayVerdict]) -> list[NetworkUses]:
    """The sets to try on each network of ``run``: what was admitted of the workloads that it calls, and its
    graph-level records. Raises WorkDirectoryError for a damaged file of tasks."""
    beaten = overruled(verdicts)
    winners = {verdict.subject: verdict for verdict in verdicts if verdict.admitted and verdict.subject not in beaten}
    tasks, names = list(work.tasks()), [entry.name for entry in run.networks]
    return [NetworkUses(network=n, uses=tuple(_uses_of(n, tasks, winners, work.graph_log(n)))) for n in names]


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
            most = max(tolerance_of(f"{verdict.name} {verdict.line}") for verdict in used)
            found.append(RecordUse(variant=variant, lines=lines, keys=tuple(called), tolerance=most))
    if graph.exists():
        text = graph.read_text(encoding="utf-8")
        found.append(RecordUse(variant=GRAPH, lines=tuple(text.splitlines()), tolerance=tolerance_of(text)))
    return found


def current(journal: LineJournal[NetworkVerdict], cases: Sequence[NetworkUses]) -> list[NetworkVerdict]:
    """The latest verdicts that are about these very lines, by network and variant.

    Raises WorkDirectoryError for a damaged file.
    """
    wanted = {subject: digest for case in cases for subject, digest in case.digests.items()}
    found = [verdict for verdict in latest(journal.entries()) if wanted.get(verdict.subject) == verdict.digest]
    return sorted(found, key=lambda verdict: verdict.subject)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayNetworks:
    """Networks and the sets to try on them as the gate's backend. ``network_of`` gives a network by name; it raises
    NetworkError and BuilderError."""

    run: RunFile
    network_of: Callable[[str], RelayNetwork]
    plan: MeasuringPlan = PLAN
    limits: BuildLimits = LIMITS
    places: Sequence[RunPlace] = (RunPlace(),)

    @classmethod
    def here(cls, directory: WorkDirectory, run: RunFile, network_of: Callable[[str], RelayNetwork]) -> RelayNetworks:
        """As they are measured on this machine: on a CPU one after the other, on all GPUs several at once."""
        target = target_text(run)
        if kind_of(target) != "cuda":
            return cls(run=run, network_of=network_of)
        by_device = places_by_device(target, directory.path, min(_AT_ONCE, len(run.networks)))
        places = [place for of_device in by_device.values() for place in of_device]
        return cls(run=run, network_of=network_of, plan=_OF_GPU, places=places)

    @property
    def sessions(self) -> Sequence[Callable[[], RelayNetworkSession]]:
        """As the port says."""
        return [partial(RelayNetworkSession, place) for place in self.places]

    def wanted(self, case: NetworkUses) -> Mapping[Hashable, str]:
        """As the port says."""
        return case.digests

    @contextmanager
    def opened(self, case: NetworkUses) -> Iterator[NetworkJob]:
        """As the port says: the module and the weights are in files, since weights can be large."""
        variants = [
            NetworkVariant(name=use.variant, arguments=(use.lines,), tolerance=use.tolerance) for use in case.uses
        ]
        with tempfile.TemporaryDirectory() as folder:
            with _one_definition:
                described = _saved(self.network_of(case.network), Path(folder), self.run)
            yield NetworkJob(name=case.network, case=described, variants=[NetworkVariant(name=DEFAULT), *variants])

    def verdicts(
        self, case: NetworkUses, measured: Mapping[str, VariantTimes], threads: int
    ) -> Sequence[NetworkVerdict]:
        """As the port says."""
        default_s = measured.get(DEFAULT, NOT_MEASURED).run_s
        verdicts: dict[str, NetworkVerdict] = {}
        for use in case.uses:
            times = measured.get(use.variant, NOT_MEASURED)
            reason = reason_against(measured, use.variant)
            if reason is None and use.variant != HISTORY and HISTORY in verdicts:  # clients prefer the other sets
                reason = _slower_than_history(verdicts[HISTORY], times.run_s)
            verdicts[use.variant] = NetworkVerdict(
                network=case.network,
                variant=use.variant,
                digest=use.digest,
                threads=threads,
                admitted=reason is None,
                reason=reason,
                default_s=default_s,
                tuned_s=times.run_s,
                difference=times.difference,
                tolerance=use.tolerance,
                keys=use.keys,
            )
        return list(verdicts.values())


def _slower_than_history(history: NetworkVerdict, run_s: Sequence[float]) -> str | None:
    """Why another set is no good beside the history that is published too, or None."""
    if not history.admitted or not is_faster(history.tuned_s, run_s, 1.0):
        return None
    takes, best = statistics.median(run_s), statistics.median(history.tuned_s)
    return f"takes {takes:.3g} s, and the best records of the single workloads {best:.3g} s"


def _saved(network: RelayNetwork, folder: Path, run: RunFile) -> str:
    """The network as a worker takes it."""
    import tvm
    from tvm import relay

    module, weights = network.module()
    (folder / "module.json").write_text(str(tvm.ir.save_json(module)), encoding="utf-8")
    (folder / "weights.bin").write_bytes(relay.save_param_dict(weights))
    case = RelayNetworkCase(
        module=str(folder / "module.json"),
        weights=str(folder / "weights.bin"),
        inputs=dict(network.inputs),
        target=target_text(run),
        templates=template_modules(run),
    )
    return msgspec.json.encode(case).decode()
