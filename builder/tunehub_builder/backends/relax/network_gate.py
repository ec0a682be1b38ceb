"""Networks at the gate with current TVM: TVM's default, tunehub without any record, and tunehub with the records.

The records are admitted for a network when it computes the same, is faster than the default beyond the noise, and not
slower than without them.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from tunehub.comparison.difference import difference_reason, tolerance
from tunehub.comparison.protocol import MeasuringPlan, is_faster
from tunehub.deploy.library import found_linker
from tunehub_builder import networks
from tunehub_builder.backends.relax.network_worker import (
    PLAIN,
    TUNED,
    RelaxNetworkCase,
    RelaxNetworkSession,
)
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.accuracy import INPUTS
from tunehub_builder.gate.comparison import BuildLimits
from tunehub_builder.gate.network_session import DEFAULT
from tunehub_builder.gate.network_times import NOT_MEASURED, TOLERANCE, NetworkJob, NetworkVariant, VariantTimes
from tunehub_builder.gate.networks import NetworkVerdict, digest_of, reason_against
from tunehub_builder.networks import Precision, half
from tunehub_builder.tuning.journal import LineJournal
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.machine_profile import MachineProfile
from tunehub_registry.manifest import NetworkEntry

_PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_FILES = "onnx file "  # how the sources of networks from files begin
LIMITS = BuildLimits(build_s=1800.0, run_s=1800.0)
PLAN = MeasuringPlan(rounds=7, sample_s=0.25, warm_up_s=0.25, pause_s=0.05, budget_s=8.0, only_first=True)
_GPU_PLAN = MeasuringPlan(rounds=9, sample_s=0.03, warm_up_s=0.03, budget_s=1.0, only_first=True)
_GROSS = 1.0  # of the largest output: in half precision what is further off is wrong, whatever the default's own error


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFile:
    """Records in a file, for one target: TVM's ``target`` as JSON, and the ``layout`` that they are for.

    ``evidence``: a file of what was measured of them and of rejected ones, which decides what the client leaves to TVM.
    ``profile``: of the machine, which the package brings along: a client's rules go by it, with records and without.
    """

    path: Path
    target: dict[str, Any]
    layout: str
    evidence: Path | None = None
    profile: MachineProfile | None = None

    @property
    def digest(self) -> str:
        """Names these records, with the profile."""
        return digest_of(self.path.read_bytes(), self.profile)


def network_journal(directory: WorkDirectory) -> LineJournal[NetworkVerdict]:
    """The journal of verdicts on networks. Of two on one network the later one counts."""
    return LineJournal(directory.path / "networks.jsonl", NetworkVerdict)


def network_cases(
    entries: Iterable[NetworkEntry], names: Sequence[str], models: Sequence[Path], records: RecordFile
) -> list[RelaxNetworkCase]:
    """What to measure: the standard networks called ``names`` and the ONNX files ``models``, or without either, the
    networks of a run or package, ``entries``. Files of misses, networks of TVM <= 0.19 and those with open dimensions
    are left out of these.

    Raises UnknownNetworkError, and BuilderError when one of ``entries`` came from a file, which has to be given.
    """
    known = {entry.name: entry for entry in entries if networks.OPEN not in entry.source}
    if not names and not models:
        from_file = next((entry.name for entry in known.values() if entry.source.startswith(_FILES)), None)
        if from_file is not None:
            reason = f"the network {from_file!r} was tuned from a file: give it with --model FILE"
            raise BuilderError(f"{reason}, or say which with --network NAME")
        names = [name for name in known if networks.is_known(name)]
    for name in names:
        if not networks.is_known(name):
            raise networks.UnknownNetworkError(name, networks.names())
    found = (networks.get(name) for name in names)
    return [_case(each.name, None, {}, records, each.precision, each.dtype == half.DTYPE) for each in found] + [
        _case(name, path, shapes, records, precision, _is_half(path, shapes))
        for path in models
        for name, precision in _tuned_as(path, known)
        for shapes in [dict(known[name].inputs) if name in known else {}]
    ]


def _tuned_as(path: Path, known: Mapping[str, NetworkEntry]) -> list[tuple[str, Precision]]:
    """The names and precisions in which the model of a file was tuned; its own where it was in none."""
    stem = path.stem
    found = [(f"{stem}_{each}", each) for each in _PRECISIONS if f"{stem}_{each}" in known]
    if stem in known:
        return [(stem, "int8" if known[stem].dtype == "int8" else "float32"), *found]
    return found or [(stem, networks.from_onnx_file(path).precision)]


def _is_half(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the model of a file is in half precision. One that cannot be read is not: opening it says why."""
    try:
        return networks.from_onnx_file(file, shapes=shapes).dtype == half.DTYPE
    except networks.NetworkError:
        return False


def _case(
    name: str, file: Path | None, shapes: dict[str, tuple[int, ...]], records: RecordFile, precision: Precision,
    in_half: bool,
) -> RelaxNetworkCase:  # fmt: skip
    return RelaxNetworkCase(
        name=name,
        file=None if file is None else str(file),
        shapes=shapes,
        target=records.target,
        records=str(records.path),
        layout=records.layout,
        precision=precision,
        half=in_half,
        evidence=None if records.evidence is None else str(records.evidence),
        profile=records.profile,
    )


def _most(case: RelaxNetworkCase) -> float:
    """How far outputs may be from the default's, which computes in float32 all along."""
    if case.half:
        return _GROSS
    if case.precision == "bf16":
        return tolerance(["bfloat16"])
    return tolerance(["quantised"], "narrow sums") if case.precision == "int8" else TOLERANCE


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaxNetworks:
    """Networks with the records whose ``digest`` this is, as the gate's backend; with them and without any they are
    timed in so many ``processes`` each."""

    digest: str
    processes: int = 1
    plan: MeasuringPlan = PLAN
    limits: BuildLimits = LIMITS
    sessions = (RelaxNetworkSession,)

    @classmethod
    def of(cls, file: RecordFile, processes: int = 1) -> RelaxNetworks:
        """With the records of a file, measured as its kind of target asks for: runs on a GPU are short and steady, in
        one process as in another. Without a linker nothing can be handed to other processes: there is one, too."""
        if file.target.get("kind") == "cuda":
            return cls(digest=file.digest, plan=_GPU_PLAN)
        return cls(digest=file.digest, plan=PLAN, processes=processes if found_linker() else 1)

    def wanted(self, case: RelaxNetworkCase) -> Mapping[Hashable, str]:
        """As the port says."""
        return {(case.name, ""): self.digest}

    @contextmanager
    def opened(self, case: RelaxNetworkCase) -> Iterator[NetworkJob]:
        """As the port says."""
        yield NetworkJob(
            name=case.name,
            case=msgspec.json.encode(case).decode(),
            variants=[NetworkVariant(name=name, tolerance=_most(case)) for name in (DEFAULT, PLAIN, TUNED)],
            needed=frozenset({DEFAULT, TUNED}),
            compared={TUNED: INPUTS} if case.target.get("kind") == "llvm" else {},
            apart=(PLAIN, TUNED),
            processes=self.processes,
        )

    def verdicts(
        self, case: RelaxNetworkCase, measured: Mapping[str, VariantTimes], threads: int
    ) -> Sequence[NetworkVerdict]:
        """As the port says."""
        default, plain, tuned = (measured.get(name, NOT_MEASURED) for name in (DEFAULT, PLAIN, TUNED))
        most = _most(case)
        reason = reason_against(measured, TUNED)
        if reason is None and case.half:
            others = (each.difference or 0.0 for each in (default, plain) if each.reason is None)
            most = max(tolerance([half.DTYPE]), *others)
            reason = difference_reason(tuned.difference or 0.0, most)
        if reason is None and plain.reason is None and is_faster(plain.run_s, tuned.run_s):
            tuned_ms, plain_ms = (statistics.median(times.run_s) * 1e3 for times in (tuned, plain))
            reason = f"takes {tuned_ms:.4g} ms with the records and {plain_ms:.4g} ms without any"
        return [
            NetworkVerdict(
                network=case.name,
                digest=self.digest,
                threads=threads,
                admitted=reason is None,
                reason=reason,
                default_s=default.run_s,
                plain_s=plain.run_s,
                tuned_s=tuned.run_s,
                difference=tuned.difference,
                tolerance=most,
                rungs=tuned.told or {},
                precision=case.precision,
                accuracy=tuned.accuracy,
                processes=self.processes,
            )
        ]
