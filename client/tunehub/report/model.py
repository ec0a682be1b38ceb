"""What the hub did for each workload, and the figures of it: :mod:`tunehub.report.text` has the table for people.

Times are in seconds. A time is *predicted* when a record says it (that of the machine the record was tuned on, or what
is expected of it on other shapes), *measured* when ``hub.profile`` timed it in place. Where there is neither, it is
unknown, and nothing here guesses it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tunehub.report.ladder import Check, StepRejected
from tunehub.report.origin import Origin

if TYPE_CHECKING:
    from tunehub_registry.trust.attestations import AttestationSummary

RUNGS = (
    *("measured", "user", "exact", "anchor", "family", "reference", "transfer", "template"),
    *("dlight", "plain", "default"),
)
HIT_RUNGS = frozenset({"measured", "user", "exact", "anchor", "family"})
OWN_RECORD = frozenset({"measured", "user", "exact", "family"})
_TVMS_OWN = frozenset({"dlight", "default"})
_BOTTLENECKS = 3
_OPERANDS = {"bf16": "bfloat16", "int8": "uint8"}  # of products, by precision

WrongFor = Literal["nan", "infinity", "far_from_zero", "subnormal", "large_divisor", "halfway"]  # see docs/compile.md


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """An implementation of an operator that was not chosen: its record's time in seconds, None without a record."""

    implementation: str
    run_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadReport:
    """One workload of a compiled module.

    `rung` (one of `RUNGS`) says what serves it, `package` where its record came from, `exact` and `anchor` are its
    keys (None when not needed). `run_s` and `default_s` are the record's measured times in seconds on the machine it
    was tuned on; without a record, `default_s` is the time that tuning found nothing to beat. `count` is the number of
    calls. `skipped` says why what was tried did not serve, `passed_over` why each better rung did not (TVM 0.25 and
    newer). `template` names the template that schedules it: with a record's knobs, or on the rung `template` with those
    of its own rule. `source` names the workload that the record was made for, where that has other shapes;
    `predicted_s` is then the time in seconds that is expected of a call. `module` is the number of the compiled module,
    from 1. `measured_s` is the mean time of a call in seconds where the module was profiled. On the rung `measured`
    this compile tried `trials` candidates; `unmeasured_s` is the time of what it would have used without measuring.
    `verified` says how the schedule that serves was verified, `run` beside the plain schedule or by its text alone
    (`static`), and None when it was not; `not_run` is why it was not run where it should have been, or at which sizes
    it was not and why. `refused` are the schedules that did not pass. `symbols` are the names of its open dimensions.
    Where a record serves these, `sizes` says which sizes, and the times are those at a typical one. `scalar_remainders`
    is what TVM had against vectors for what is left over at the end of rows, which is computed one by one then. `types`
    are those of the operands and sums of its product, where they are not all one: `uint8 × int8 → int32`. `stale` says
    of a record that serves that it was judged beside other rules than this tunehub has, `locked` how far what serves is
    what a lock file asks for. `nodes` are the names of the
    model's own nodes that each call computes, in the order of the calls, as far as they are known, and `calls_s` the
    measured seconds of each.

    For Relay, `tuner` made the record, `implementation` is the one that TVM chose for the operator, and `rejected` are
    the others; `trials` were spent on a space of `space` configurations, where that is known.
    """

    name: str
    op: str
    rung: str
    package: str | None = None
    exact: str | None = None
    anchor: str | None = None
    run_s: float | None = None
    default_s: float | None = None
    count: int = 1
    skipped: tuple[str, ...] = ()
    template: str | None = None
    source: str | None = None
    predicted_s: float | None = None
    passed_over: tuple[str, ...] = ()
    module: int = 1
    measured_s: float | None = None
    unmeasured_s: float | None = None
    tuner: str | None = None
    implementation: str | None = None
    rejected: tuple[Alternative, ...] = ()
    trials: int | None = None
    space: int | None = None
    verified: Check | None = None
    not_run: str | None = None
    refused: tuple[StepRejected, ...] = ()
    symbols: tuple[str, ...] = ()
    sizes: str | None = None
    scalar_remainders: str | None = None
    types: str | None = None
    stale: str | None = None
    locked: str | None = None
    nodes: tuple[tuple[str, ...], ...] = ()
    calls_s: tuple[float, ...] = ()

    @property
    def hit(self) -> bool:
        """Whether a record serves it."""
        return self.rung in HIT_RUNGS

    @property
    def expected_s(self) -> float | None:
        """The time of a call in seconds by its record, or the default's where that was found best; None without."""
        if self.rung in _TVMS_OWN:
            return self.default_s
        return self.predicted_s if self.run_s is None else self.run_s

    @property
    def total_s(self) -> float | None:
        """The time of all its calls in seconds, measured if it was, else expected; None when it is not known."""
        each = self.expected_s if self.measured_s is None else self.measured_s
        return None if each is None else each * self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherCalls:
    """What a profiled module calls besides workloads: a function of the VM, or a copy. `seconds` of all its calls."""

    name: str
    calls: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A profiled run: `run_s` is the median time of a run that nothing watched, `runs` how many were timed call by
    call. `others` are the calls of no workload, the longest first."""

    run_s: float
    runs: int
    others: tuple[OtherCalls, ...] = ()

    @property
    def others_s(self) -> float:
        """The time in seconds of all calls of no workload."""
        return sum(item.seconds for item in self.others)


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """What one rung serves: `calls` of `workloads`, and their known time; `unknown_calls` have none.

    `call_share` and `time_share` are parts of all calls and of all known time, 0 to 1.
    """

    rung: str
    workloads: int
    calls: int
    seconds: float
    unknown_calls: int
    call_share: float
    time_share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedRatio:
    """Evidence on a template: the median of (time with default knobs ÷ time with tuned ones) over `count` workloads."""

    median: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkAccuracy:
    """Evidence of the package on a network in `precision`, beside onnxruntime on so many random `inputs`: the largest
    `difference` of outputs, relative, and in how many of the `rows` of outputs the class is the same."""

    network: str
    precision: str
    inputs: int
    rows: int
    same_class: int
    difference: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """What tuning a workload would gain: `factor` in speed, `seconds` of all calls; None where it is not known.

    `reason` says what that is taken from, or why it is unknown.
    """

    factor: float | None = None
    seconds: float | None = None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WrongOperator:
    """An operator of a compiled module that TVM computes wrongly for some data (`wrong_for`), and tunehub leaves so:
    its name in Relax, the number of its `calls`, and that of the `module`."""

    operator: str
    wrong_for: WrongFor
    calls: int
    module: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """The workloads of all modules that a hub compiled, with what the hub had to say.

    `package` is the resolved package or None, `attestations` what machines that the user trusts measured of it,
    `nearest` what is known of it here where it was made for another machine. `notes` are warnings and remarks.
    `profile` is there when the modules of the report, or the only one of them, were profiled. `tuning` is evidence by
    the name of a template. `functions`
    give the text of workloads without a record of their own, and the TVM that wrote it, by exact key: what
    `save_misses` writes.
    `wrong_operators` are what is known to be computed wrongly for some data. `accuracy` is the package's evidence on
    networks. `origin` is which packages were looked through, and by which lock file.
    """

    target: str
    package: str | None
    workloads: tuple[WorkloadReport, ...] = ()
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    tuning: Mapping[str, TunedRatio] = field(default_factory=dict)
    functions: Mapping[str, Callable[[], tuple[str, str]]] = field(default_factory=dict, repr=False, compare=False)
    wrong_operators: tuple[WrongOperator, ...] = ()
    accuracy: tuple[NetworkAccuracy, ...] = ()
    attestations: AttestationSummary | None = None
    nearest: str | None = None
    origin: Origin = field(default_factory=Origin)

    def serving(self) -> dict[str, int]:
        """How many workloads each package or file of records serves, by its label: most first."""
        return dict(Counter(item.package for item in self.workloads if item.package is not None).most_common())

    def hits(self) -> tuple[WorkloadReport, ...]:
        """The workloads that records serve."""
        return tuple(item for item in self.workloads if item.hit)

    def misses(self) -> tuple[WorkloadReport, ...]:
        """The workloads without a record: on templates' default knobs, or on TVM's default schedules."""
        return tuple(item for item in self.workloads if not item.hit)

    def rung_counts(self) -> dict[str, int]:
        """The number of workloads on each rung."""
        counts = Counter(item.rung for item in self.workloads)
        return {rung: counts[rung] for rung in RUNGS}

    def coverage(self) -> tuple[Coverage, ...]:
        """What each rung serves, by count and by time; rungs that serve nothing are left out."""
        calls = sum(item.count for item in self.workloads)
        total = sum(item.total_s or 0.0 for item in self.workloads)
        by_rung = {rung: [item for item in self.workloads if item.rung == rung] for rung in RUNGS}
        return tuple(_coverage(rung, items, calls, total) for rung, items in by_rung.items() if items)

    def bottlenecks(self, limit: int = _BOTTLENECKS) -> tuple[WorkloadReport, ...]:
        """The workloads with the greatest known time of all calls; before profiling those of misses are not known."""
        known = [item for item in self.workloads if item.total_s is not None]
        return tuple(sorted(known, key=lambda item: -(item.total_s or 0.0))[:limit])

    def share(self, item: WorkloadReport) -> float | None:
        """The part of the known time, 0 to 1, that `item` takes; None when its time is not known.

        The known time is that of all workloads, and of all other calls of a profiled module.
        """
        total = sum(other.total_s or 0.0 for other in self.workloads)
        total += self.profile.others_s if self.profile else 0.0
        return item.total_s / total if item.total_s is not None and total else None

    def gain(self, item: WorkloadReport) -> Gain:
        """What tuning `item` would gain, as far as measurements say; never a guess."""
        if item.rung in OWN_RECORD:
            return Gain(factor=1.0, seconds=0.0, reason="it has a record of its own")
        if item.rung in _TVMS_OWN and item.default_s is not None:
            return Gain(factor=1.0, seconds=0.0, reason="tuning found nothing faster than the default")
        evidence = self.tuning.get(item.template or "") if item.rung == "template" else None
        if evidence is None:
            return Gain(reason=_unknown(item))
        factor = max(1.0, evidence.median)
        seconds = None if item.total_s is None else item.total_s * (1.0 - 1.0 / factor)
        reason = f"the median of {evidence.count} tuned workloads of the template {item.template}"
        return Gain(factor=factor, seconds=seconds, reason=reason)

    def narrow_accuracy(self) -> tuple[NetworkAccuracy, ...]:
        """The evidence on networks in the precisions, other than float32, that the workloads have."""
        types = {(item.types or "").partition(" ")[0] for item in self.workloads}
        own = {precision for precision, operand in _OPERANDS.items() if operand in types}
        return tuple(item for item in self.accuracy if item.precision in own)

    def refused(self) -> int:
        """How many schedules were verified and refused."""
        return sum(len(item.refused) for item in self.workloads)

    def to_json(self) -> dict[str, object]:
        """The report in JSON's types."""
        return {
            "target": self.target,
            "package": self.package,
            "packages": self._packages(),
            "lock_sha256": self.origin.lock_sha256,
            "rules_sha256": self.origin.rules_sha256,
            "nearest": self.nearest,
            "attestations": None if self.attestations is None else self.attestations.to_json(),
            "rungs": self.rung_counts(),
            "hits": len(self.hits()),
            "misses": len(self.misses()),
            "coverage": [asdict(item) for item in self.coverage()],
            "bottlenecks": [self._bottleneck(item) for item in self.bottlenecks()],
            "profile": None if self.profile is None else asdict(self.profile),
            "notes": list(self.notes),
            "accuracy": [asdict(item) for item in self.accuracy],
            "wrong_operators": [asdict(item) for item in self.wrong_operators],
            "workloads": [{**asdict(item), "share": self.share(item)} for item in self.workloads],
        }

    def _packages(self) -> list[dict[str, object]]:
        """The packages that were looked through, and how many workloads each one serves."""
        serving = self.serving()
        return [
            {**msgspec.structs.asdict(each), "workloads": serving.get(each.label, 0)} for each in self.origin.packages
        ]

    def _bottleneck(self, item: WorkloadReport) -> dict[str, object]:
        gain = asdict(self.gain(item))
        share = self.share(item)
        return {"name": item.name, "module": item.module, "total_s": item.total_s, "share": share, "gain": gain}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON. Raises OSError."""
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")


def _coverage(rung: str, items: Sequence[WorkloadReport], calls: int, total: float) -> Coverage:
    """What ``items`` are of ``calls`` and of ``total`` seconds."""
    own = sum(item.count for item in items)
    seconds = sum(item.total_s or 0.0 for item in items)
    return Coverage(
        rung=rung,
        workloads=len(items),
        calls=own,
        seconds=seconds,
        unknown_calls=sum(item.count for item in items if item.total_s is None),
        call_share=own / calls if calls else 0.0,
        time_share=seconds / total if total else None,
    )


def _unknown(item: WorkloadReport) -> str:
    """Why nobody can say what tuning `item` would gain."""
    if item.rung in ("anchor", "transfer"):
        return "unknown: its record was made for another workload"
    if item.rung == "template":
        return f"unknown: the package has no evidence on the knobs of the template {item.template}"
    return "unknown: the package has no tuned workload of this kind"
