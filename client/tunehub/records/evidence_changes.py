"""What an upgrade of a package makes faster, slower, or loses, by the evidence of both versions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence

Change = Literal["lost", "slower", "faster", "new", "same"]
ORDER: tuple[Change, ...] = ("lost", "slower", "faster", "new", "same")
NOISE = 1.03
"""By so much two measurements of the same may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceChange:
    """What became of a network or a workload: seconds `before` and `after`, None where a version has none. `name` is
    the network's, or the key of a workload; `op` and `tuner` are a workload's. `without_s` is what a lost one takes
    without its record, where that was measured; `reason` why it was lost, where the new version says it. `conditions`
    say what else differs between the two measurements."""

    name: str
    before_s: float | None
    after_s: float | None
    op: str = ""
    tuner: str = ""
    without_s: float | None = None
    reason: str | None = None
    conditions: str | None = None

    @property
    def ratio(self) -> float | None:
        """The time after over that before."""
        return self.after_s / self.before_s if self.before_s and self.after_s else None

    @property
    def change(self) -> Change:
        """What the two times say."""
        if self.before_s is None or self.after_s is None:
            return "new" if self.before_s is None else "lost"
        ratio = self.after_s / self.before_s
        return "slower" if ratio > NOISE else "faster" if ratio < 1 / NOISE else "same"


def network_changes(before: Iterable[Evidence], after: Iterable[Evidence]) -> tuple[EvidenceChange, ...]:
    """Networks of either version, what is lost and slower first."""
    old, new = (_networks(each) for each in (before, after))
    return _sorted(
        EvidenceChange(
            name=name,
            before_s=old[name].tuned_s if name in old else None,
            after_s=new[name].tuned_s if name in new else None,
            conditions=_conditions(old.get(name), new.get(name)),
        )
        for name in {**old, **new}
    )


def workload_changes(
    before: Iterable[Evidence], after: Iterable[Evidence], ops: Mapping[str, str]
) -> tuple[EvidenceChange, ...]:
    """Workloads that a record of either version serves, by key and tuner. `ops` are the operators of keys."""
    old, new = (_records(each) for each in (before, after))
    served = [key for key in {**old, **new} if any(key in each and each[key].admitted for each in (old, new))]
    return _sorted(_workload(key, old.get(key), new.get(key), ops) for key in served)


def _workload(
    key: tuple[str, str], old: RecordEvidence | None, new: RecordEvidence | None, ops: Mapping[str, str]
) -> EvidenceChange:
    exact, tuner = key
    serves = new is not None and new.admitted
    return EvidenceChange(
        name=exact,
        op=ops.get(exact, ""),
        tuner=tuner,
        before_s=old.tuned_s if old is not None and old.admitted else None,
        after_s=new.tuned_s if new is not None and serves else None,
        without_s=None if serves or old is None else old.without_s or old.default_s,
        reason=None if serves or new is None else new.reason,
    )


def _networks(evidence: Iterable[Evidence]) -> dict[str, NetworkEvidence]:
    return {line.network: line for line in evidence if isinstance(line, NetworkEvidence)}


def _records(evidence: Iterable[Evidence]) -> dict[tuple[str, str], RecordEvidence]:
    return {(line.exact, line.tuner or ""): line for line in evidence if isinstance(line, RecordEvidence)}


def _conditions(old: NetworkEvidence | None, new: NetworkEvidence | None) -> str | None:
    """What else than the records may have changed a network's time."""
    if old is None or new is None:
        return None
    if old.threads != new.threads:
        return f"{old.threads} threads, then {new.threads}"
    if not old.default_s or not new.default_s:
        return None
    ratio = new.default_s / old.default_s
    return f"TVM's default took {ratio:.2f} of its time, too" if not 1 / NOISE < ratio < NOISE else None


def _sorted(changes: Iterable[EvidenceChange]) -> tuple[EvidenceChange, ...]:
    return tuple(sorted(changes, key=lambda each: (ORDER.index(each.change), -(each.ratio or 0.0), each.name)))
