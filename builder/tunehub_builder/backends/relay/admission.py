"""What may be published of a checked work directory of TVM <= 0.19: the verdicts on records and networks together.

Pure: a record needs to be faster than its default, to win against the other ways to compute its operator, and to be in
a set that makes one of the networks faster that call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunehub_builder.backends.relay.network_worker import AUTO_SCHEDULER, HISTORY
from tunehub_builder.backends.relay.tuner import AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask
from tunehub_builder.backends.relay.workload_gate import RelayVerdict, overruled, tolerance_of
from tunehub_builder.gate.evidence import timed_evidence
from tunehub_builder.gate.networks import NetworkVerdict
from tunehub_registry.evidence import RecordEvidence

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
    networks: Iterable[NetworkVerdict],
    tasks: Iterable[RelayTask],
    known_networks: Iterable[str],
) -> list[JudgedRecord]:
    """The last word on each record, in the order of ``verdicts``.

    ``networks``: the verdicts that are about the present winners. ``known_networks``: the names of all networks of the
    run; a workload that none of them calls, such as that of a user's own template, stands for itself.
    """
    names = set(known_networks)
    judged = {verdict.subject: verdict for verdict in networks}
    callers = {(task.tuner, task.key): sorted(names.intersection(task.counts)) for task in tasks}
    beaten = overruled(verdicts)
    found = []
    for verdict in verdicts:
        called_by = callers.get(verdict.subject, [])
        variant = _VARIANTS[verdict.tuner]
        used = [judged.get((name, variant)) for name in called_by]
        measured = [_difference_in(use, verdict.key) for use in used]
        compared = [difference for difference in measured if difference is not None]
        difference = verdict.difference if verdict.difference is not None else max(compared, default=None)
        reason = verdict.reason or beaten.get(verdict.subject)
        if reason is None:
            reason = _network_reason(called_by, used) if called_by else _own_reason(verdict)
        end_to_end = verdict.difference is None
        found.append(JudgedRecord(verdict=verdict, reason=reason, difference=difference, end_to_end=end_to_end))
    return found


def record_evidence(judged: JudgedRecord) -> RecordEvidence | None:
    """A line of a package's evidence; None when nothing was measured that could be stated."""
    verdict = judged.verdict
    if not verdict.tuned_s or not verdict.default_s or (judged.published and judged.difference is None):
        return None
    baseline = _BASELINES[verdict.tuner]
    if judged.end_to_end and judged.difference is not None:
        baseline = f"{baseline}; {_END_TO_END}"
        if "winograd" in verdict.name:
            baseline += f", within {tolerance_of(verdict.name):g} because it is a Winograd algorithm"
    return timed_evidence(
        verdict.key,
        verdict.default_s,
        verdict.tuned_s,
        difference=judged.difference,
        threads=verdict.threads,
        admitted=judged.published,
        reason=judged.reason,
        tuner=verdict.tuner,
        baseline=baseline,
    )


def _difference_in(network: NetworkVerdict | None, key: str) -> float | None:
    """How far the outputs of a network are from the default's, when this record was among those that it ran with."""
    return network.difference if network is not None and key in network.keys else None


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
