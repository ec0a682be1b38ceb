"""What may be published of a checked work directory of TVM <= 0.19: the verdicts on records and networks together.

Pure: a record needs to be faster than its default, to win against the other ways to compute its operator, and to be in
a set that makes one of the networks faster that call it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tunehub_builder.backends.relay.gate import WINOGRAD_TOLERANCE, RelayVerdict, overruled
from tunehub_builder.backends.relay.measure_network import AUTO_SCHEDULER, GRAPH, HISTORY
from tunehub_builder.backends.relay.network_gate import NetworkVerdict
from tunehub_builder.backends.relay.tuner import AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask
from tunehub_builder.gate.samples import timed_evidence
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence

_VARIANTS = {AUTOTVM: HISTORY, AUTO_SCHEDULER: AUTO_SCHEDULER}
_BASELINES = {
    AUTOTVM: "the template's default configuration",
    AUTO_SCHEDULER: "the graph without a schedule: what TVM runs with the auto-scheduler on and no record",
}
_END_TO_END = "outputs compared end to end, in the networks that call it"


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRecord:
    """A record with the last word on it: published when ``reason`` is None. ``difference`` of outputs, relative;
    ``end_to_end`` when it is that of the networks."""

    verdict: RelayVerdict
    reason: str | None
    difference: float | None
    end_to_end: bool

    @property
    def published(self) -> bool:
        """True when the record goes into a package."""
        return self.reason is None


def judged_records(
    verdicts: Sequence[RelayVerdict],
    networks: Mapping[tuple[str, str], NetworkVerdict],
    tasks: Iterable[RelayTask],
    known_networks: Iterable[str],
) -> list[JudgedRecord]:
    """The last word on each record, in the order of ``verdicts``.

    ``networks``: the verdicts that are about the present winners, by network and variant. ``known_networks``: the
    names of all networks of the run; a workload that none of them calls, such as that of a user's own template, stands
    for itself.
    """
    names = set(known_networks)
    callers = {(task.tuner, task.key): sorted(names.intersection(task.counts)) for task in tasks}
    beaten = overruled(verdicts)
    found = []
    for verdict in verdicts:
        called_by = callers.get((verdict.tuner, verdict.key), [])
        variant = _VARIANTS[verdict.tuner]
        used = [networks.get((name, variant)) for name in called_by]
        measured = [_difference_in(use, verdict.key) for use in used]
        compared = [difference for difference in measured if difference is not None]
        difference = verdict.difference if verdict.difference is not None else max(compared, default=None)
        reason = verdict.reason or beaten.get((verdict.tuner, verdict.key))
        if reason is None:
            reason = _network_reason(called_by, used) if called_by else _own_reason(verdict)
        end_to_end = verdict.difference is None
        found.append(JudgedRecord(verdict=verdict, reason=reason, difference=difference, end_to_end=end_to_end))
    return found


def published_graphs(networks: Mapping[tuple[str, str], NetworkVerdict]) -> list[NetworkVerdict]:
    """The networks whose graph-level records may be published, by name."""
    return [networks[key] for key in sorted(networks) if key[1] == GRAPH and networks[key].admitted]


def record_evidence(judged: JudgedRecord) -> RecordEvidence | None:
    """A line of a package's evidence; None when nothing was measured that could be stated."""
    verdict = judged.verdict
    if not verdict.run_s or not verdict.default_s or (judged.published and judged.difference is None):
        return None
    baseline = _BASELINES[verdict.tuner]
    if judged.end_to_end and judged.difference is not None:
        limit = f", within {WINOGRAD_TOLERANCE:g} because it is a Winograd algorithm" if _winograd(verdict) else ""
        baseline = f"{baseline}; {_END_TO_END}{limit}"
    return timed_evidence(
        verdict.key,
        verdict.default_s,
        verdict.run_s,
        difference=judged.difference,
        threads=verdict.threads,
        admitted=judged.published,
        reason=judged.reason,
        tuner=verdict.tuner,
        baseline=baseline,
    )


def network_evidence(verdict: NetworkVerdict) -> NetworkEvidence | None:
    """As :func:`record_evidence`, for a network that was measured to the end."""
    if not verdict.tuned_s or not verdict.default_s or verdict.difference is None:
        return None
    return NetworkEvidence(
        network=verdict.label,
        default_s=statistics.median(verdict.default_s),
        tuned_s=statistics.median(verdict.tuned_s),
        repeats=len(verdict.tuned_s),
        threads=verdict.threads,
        output_max_rel_diff=verdict.difference,
    )


def _difference_in(network: NetworkVerdict | None, key: str) -> float | None:
    """How far the outputs of a network are from the default's, when this record was among those that it ran with."""
    return network.difference if network is not None and key in network.keys else None


def _winograd(verdict: RelayVerdict) -> bool:
    return "winograd" in verdict.name


def _network_reason(names: Sequence[str], used: Sequence[NetworkVerdict | None]) -> str | None:
    """Why no network that calls a record vouches for it, or None when one does."""
    if any(use is not None and use.admitted for use in used):
        return None
    said = [
        f"{name}: {'not checked end to end yet' if use is None else use.reason}"
        for name, use in zip(names, used, strict=True)
    ]
    return "no network gets faster with it; " + "; ".join(said)


def _own_reason(verdict: RelayVerdict) -> str | None:
    if verdict.difference is not None:
        return None
    return "its output cannot be compared with the default's, and no network calls it"
