"""What `tunehub check` says: of each verdict as it comes, and of all together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

import msgspec

from tunehub_builder.gate.disturbance import UNJUDGED
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
    """End-to-end medians in seconds of a network (`resnet-18 (graph)`), None where not measured; `plain_s` by rules
    alone. Why it is rejected; how far its outputs are from onnxruntime's, where that was compared; in how many
    `processes` each it was timed with the records and by rules."""

    network: str
    admitted: bool
    default_s: float | None
    tuned_s: float | None
    reason: str | None
    accuracy: Accuracy | None = None
    plain_s: float | None = None
    processes: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What a check found. `measured` is False when only formats and traces were looked at. `networks` are those that
    were judged end to end, `unjudged` records whose times other programs disturbed."""

    admitted: int
    rejected: tuple[Rejection, ...]
    measured: bool
    speedups: tuple[float, ...] = ()
    networks: tuple[NetworkResult, ...] = ()
    unjudged: tuple[Rejection, ...] = ()

    def text(self) -> str:
        """For people: every rejection, then the counts."""
        lines = [f"rejected {item.name} ({item.where}): {item.reason}" for item in self.rejected]
        lines += [f"not judged: {item.name} ({item.where}): {item.reason}" for item in self.unjudged]
        how = "" if self.measured else " by format and trace only; give --work DIR to measure them"
        if self.admitted or self.rejected or not self.networks:
            others = f", {len(self.unjudged)} not judged" if self.unjudged else ""
            lines.append(f"{self.admitted} admitted, {len(self.rejected)} rejected{others}{how}")
        if self.speedups:
            mean = statistics.geometric_mean(self.speedups)
            lines.append(f"admitted records are {mean:.1f} times faster than the default (geometric mean)")
        for n in self.networks:
            line = _line(n.network, n.admitted, n.default_s, n.tuned_s, n.reason)
            lines.append(line + _beside_rules(n.plain_s, n.tuned_s, n.processes) + accuracy_text(n.accuracy))
        return "\n".join(map(plain, lines))

    def as_json(self) -> dict[str, object]:
        """For programs."""
        rejected, unjudged = (
            [{"where": item.where, "name": item.name, "reason": item.reason} for item in some]
            for some in (self.rejected, self.unjudged)
        )
        geomean = statistics.geometric_mean(self.speedups) if self.speedups else None
        return {
            "admitted": self.admitted,
            "rejected": rejected,
            "measured": self.measured,
            "geomean_speedup": geomean,
            **({"unjudged": unjudged} if unjudged else {}),
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
            plain_s=_median(verdict.plain_s),
            processes=verdict.processes,
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
        if isinstance(verdict, NetworkVerdict):
            line += _beside_rules(_median(verdict.plain_s), times[1], verdict.processes)
            line += accuracy_text(verdict.accuracy)
        stream.write(plain(f"[{position}/{count}] {line}{f' ({served})' if served else ''}") + "\n")
        stream.flush()

    return show


def _beside_rules(plain_s: float | None, tuned_s: float | None, processes: int) -> str:
    if plain_s is None or tuned_s is None:
        return ""
    each = f" ({processes} processes each)" if processes > 1 else ""
    return f"; {plain_s / tuned_s:.3f} times as fast as by rules{each}"


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
    said = "not judged:" if reason == UNJUDGED else "admitted" if admitted else "rejected"
    return f"{said} {name}{times}" + (f", {reason}" if reason else "")
