"""What `tunehub check` says: of each verdict as it comes, and of all together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from tunehub_builder.gate.journal import GateVerdict
from tunehub_builder.gate.networks import NetworkVerdict
from tunehub_builder.tuning.progress import milliseconds
from tunehub_registry.evidence import Accuracy
from tunehub_registry.printable import plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A record, by its workload or its line, that may not be published."""

    where: str
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkResult:
    """End-to-end medians in seconds of a network (`resnet-18 (graph)`), None where not measured; why it is rejected;
    how far its outputs are from onnxruntime's, where that was compared."""

    network: str
    admitted: bool
    default_s: float | None
    tuned_s: float | None
    reason: str | None
    accuracy: Accuracy | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
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
        for n in self.networks:
            lines.append(_line(n.network, n.admitted, n.default_s, n.tuned_s, n.reason) + accuracy_text(n.accuracy))
        return "\n".join(map(plain, lines))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        rejected = [{"where": item.where, "name": item.name, "reason": item.reason} for item in self.rejected]
        geomean = statistics.geometric_mean(self.speedups) if self.speedups else None
        return {
            "admitted": self.admitted,
            "rejected": rejected,
            "measured": self.measured,
            "geomean_speedup": geomean,
            **({"networks": msgspec.to_builtins(self.networks)} if self.networks else {}),
        }


def network_results(verdicts: Iterable[NetworkVerdict]) -> tuple[NetworkResult, ...]:
    """What a check says of networks."""
    return tuple(
        NetworkResult(
            network=verdict.name,
            admitted=verdict.admitted,
            default_s=_median(verdict.default_s),
            tuned_s=_median(verdict.tuned_s),
            reason=verdict.reason,
            accuracy=verdict.accuracy,
        )
        for verdict in verdicts
    )


def shown_on(stream: TextIO) -> Callable[[GateVerdict, int, int], None]:
    """What tells people about each new verdict: its position, and how many there are."""

    def show(verdict: GateVerdict, position: int, count: int) -> None:
        rungs = verdict.rungs if isinstance(verdict, NetworkVerdict) else {}
        served = ", ".join(f"{rung} {number}" for rung, number in rungs.items())
        times = _median(verdict.default_s), _median(verdict.tuned_s)
        line = _line(verdict.name, verdict.admitted, *times, verdict.reason)
        line += accuracy_text(verdict.accuracy) if isinstance(verdict, NetworkVerdict) else ""
        stream.write(plain(f"[{position}/{count}] {line}{f' ({served})' if served else ''}") + "\n")
        stream.flush()

    return show


def accuracy_text(found: Accuracy | None) -> str:
    """``; 0.004 from onnxruntime, the same class 64 of 64 times``; empty where nothing was compared."""
    if found is None:
        return ""
    same = f"the same class {found.same_class} of {found.rows} times"
    return f"; {found.max_rel_diff:.2g} from onnxruntime on {found.inputs} inputs, {same}"


def _median(samples: Sequence[float]) -> float | None:
    return statistics.median(samples) if samples else None


def _line(name: str, admitted: bool, default_s: float | None, tuned_s: float | None, reason: str | None) -> str:
    times = ""
    if default_s is not None and tuned_s is not None:
        times = f": {milliseconds(default_s)} → {milliseconds(tuned_s)} ({default_s / tuned_s:.2f}×)"
    return f"{'admitted' if admitted else 'rejected'} {name}{times}" + (f", {reason}" if reason else "")
