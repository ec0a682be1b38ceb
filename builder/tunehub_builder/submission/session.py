"""What a worker process does for a submission: it opens workloads, replays records on them, and computes outputs.

All of it is hostile in a review: functions are checked before TVM reads them, records go a client's path, and what
crashes or hangs ends this process only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.comparison.difference import tolerance
from tunehub.compiler.measure.session import CandidateSession
from tunehub.compiler.verify.inputs import Kind, apart, arrays_for, comparable, longest_sum, unwritten
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import buffer_shapes, main_module
from tunehub.tir.symbols import instance, is_symbolic
from tunehub_builder.replay.records import scheduled_by_record
from tunehub_registry.any_record import AnyRecord, encode_any_record
from tunehub_registry.ladder_record import LadderRecord, encode_ladder_record, parse_ladder_record
from tunehub_registry.submission import ArrayDigest, Values

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike

_KINDS: tuple[Kind, ...] = ("signed", "positive")
_MOST_BYTES = 2 << 30  # of all parameters of a workload that is run
_SAMPLES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadFacts:
    """What a function with the key ``exact`` does at least: arithmetic ``operations`` (0 where TVM cannot count them)
    and bytes of its parameters. ``types``: of these; ``tolerance``: the most that outputs of two right schedules
    differ, relative."""

    exact: str
    operations: float
    moved: int
    types: tuple[str, ...]
    tolerance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputedOutputs:
    """What a schedule computed on inputs of a ``kind``; ``inputs`` is their SHA-256. ``apart``: how far it is, in all
    numbers and relative, from what the call before computed on the same inputs of the same workload; None without."""

    kind: Kind
    inputs: str
    outputs: tuple[ArrayDigest, ...]
    apart: float | None = None


class SubmissionSession(CandidateSession):
    """The requests of a worker. ``target`` is TVM's JSON of it, ``line`` a record with its newline, None for TVM's
    default."""

    _before: tuple[tuple[str, Values, Kind], list[Any]] | None = None  # the outputs of the last run, and what was run

    def open(self, exact: str, function: str) -> str:
        """Remember the workload in ``function``, TVM's JSON, as ``exact``; returns its key.

        Raises WorkloadTextError.
        """
        from tunehub.tir.workload import workload_of

        self._modules[exact] = workload_of(function)
        return workload_key(self._modules[exact])

    def facts(self, exact: str, values: Sequence[int] = ()) -> WorkloadFacts:
        """Of a workload; of a symbolic one where its symbols have ``values``."""
        from tunehub_builder.tuning.scheduler.order import operations

        function = self._at(exact, values)
        shapes = buffer_shapes(function)
        types = tuple(sorted({dtype for _, dtype in shapes}))
        return WorkloadFacts(
            exact=workload_key(main_module(function)),
            operations=operations(main_module(function)),
            moved=_bytes_of(shapes),
            types=types,
            tolerance=tolerance(types, "narrow sums", terms=longest_sum(function)),
        )

    def replay(self, exact: str, target: TargetLike, line: bytes) -> str:
        """Apply a record as a client does; returns the SHA-256 of the scheduled function's text. Raises ValueError with
        the client's reason when it would skip the record, and what a step of a ladder raises that does not fit."""
        scheduled = self._scheduled(exact, target, line)["main"]
        return hashlib.sha256(scheduled.script(show_meta=False).encode()).hexdigest()

    def outputs(
        self, exact: str, target: TargetLike, line: bytes | None, values: Values = (), kind: Kind | None = None
    ) -> ComputedOutputs:
        """Run a workload, where its symbols have ``values``, by a record or by TVM's default, on inputs of a ``kind``;
        None: of the first kind that gives numbers. They are kept for the next call.

        Raises ValueError for a workload that is too large, or gives none.
        """
        function = self._at(exact, values)
        if _bytes_of(buffer_shapes(function)) > _MOST_BYTES:
            raise ValueError(f"its parameters have more than {_MOST_BYTES} bytes")
        mod = self._modules[exact] if line is None else self._scheduled(exact, target, line)
        by = main_module(instance(mod["main"], values)) if values else mod
        return self._outputs_of((exact, tuple(values)), by, target, kind)

    def outputs_by_rules(self, exact: str, target: TargetLike, values: Values, kind: Kind) -> ComputedOutputs | None:
        """As :meth:`outputs`, by what a client without records does, where TVM's default takes too long; None where it
        has no schedule of its own."""
        import tvm

        from tunehub.compiler.schedule.ladder import schedule_function
        from tunehub.records.lookup import EmptyLookup

        _, found = schedule_function(self._at(exact, values), tvm.target.Target(target), EmptyLookup())
        return None if found is None else self._outputs_of((exact, values), main_module(found), target, kind)

    def _outputs_of(
        self, workload: tuple[str, Values], mod: Any, target: TargetLike, kind: Kind | None
    ) -> ComputedOutputs:
        """Of a workload that ``mod`` computes. Raises ValueError."""
        function = self._at(*workload)
        library = self._compiled(mod, target)
        for each in _KINDS if kind is None else (kind,):
            arrays = arrays_for(function, each)
            found = self._run_on(library, arrays, buffer_shapes(function), target)
            if comparable(found):
                given = [array for array in arrays if array is not None]
                known, before = self._before or (None, [])
                self._before = ((*workload, each), found)
                return ComputedOutputs(
                    kind=each,
                    inputs=_sha256(given),
                    outputs=tuple(map(array_digest, found)),
                    apart=apart(before, found) if known == self._before[0] else None,
                )
        raise ValueError("it gives no numbers on random inputs")

    def _scheduled(self, exact: str, target: TargetLike, line: bytes) -> Any:
        import tvm

        mod = self._modules[exact]
        if not is_symbolic(mod["main"]):
            return self.scheduled_by(exact, target, line).mod
        with tvm.target.Target(target) as context:
            return scheduled_by_record(parse_ladder_record(line.rstrip(b"\n"), "candidate"), mod, context)

    def _at(self, exact: str, values: Sequence[int]) -> Any:
        function = self._modules[exact]["main"]
        if is_symbolic(function) != bool(values):
            raise ValueError("it has open dimensions" if is_symbolic(function) else "it has no open dimensions")
        return instance(function, values)

    def _run_on(
        self, library: Any, arrays: list[Any], shapes: list[tuple[tuple[int, ...], str]], target: TargetLike
    ) -> Any:
        """The outputs of one run: the parameters that ``arrays`` has no array for."""
        import tvm

        device = tvm.cuda() if tvm.target.Target(target).kind.name == "cuda" else tvm.cpu()
        given = [unwritten(*shape) if array is None else array for array, shape in zip(arrays, shapes, strict=True)]
        tensors = [tvm.runtime.tensor(array, device) for array in given]
        library["main"](*tensors)
        return [tensor.numpy() for tensor, array in zip(tensors, arrays, strict=True) if array is None]


def sizes_to_run(record: AnyRecord | LadderRecord) -> tuple[Values, ...]:
    """The values of the symbols where outputs are computed: for each step of a ladder the smallest and the largest that
    were measured, as far as they are there; those of no symbols for a static workload."""
    if not isinstance(record, LadderRecord):
        return ((),)
    measured = [sorted((times.size, times.at) for times in step.times) for step in record.ladder if step.times]
    return tuple(dict.fromkeys(at for sizes in measured for _, at in (sizes[0], sizes[-1])))


def record_line(record: AnyRecord | LadderRecord) -> bytes:
    """The record as a line, as the requests take it."""
    return encode_ladder_record(record) if isinstance(record, LadderRecord) else encode_any_record(record)


def array_digest(array: Any) -> ArrayDigest:
    """An output as a submission states it."""
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    places = np.unique(np.linspace(0, flat.size - 1, min(_SAMPLES, flat.size)).astype(np.int64))
    chosen = [float(number) for number in flat[places].astype("float64")]
    magnitudes = np.abs(flat.astype("float64"))
    finite = magnitudes[np.isfinite(magnitudes)]
    return ArrayDigest(
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        sha256=_sha256([array]),
        largest=float(finite.max()) if finite.size else 0.0,
        samples=tuple(number if math.isfinite(number) else None for number in chosen),
    )


def samples_apart(found: ArrayDigest, expected: ArrayDigest) -> float:
    """How far the stated numbers of two outputs are apart, relative to the largest of ``expected``; infinite where one
    is finite and the other is not, or shapes or types differ."""
    if (found.shape, found.dtype, len(found.samples)) != (expected.shape, expected.dtype, len(expected.samples)):
        return math.inf
    pairs = list(zip(found.samples, expected.samples, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return math.inf
    most = max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)
    return most / expected.largest if expected.largest else most


def _bytes_of(shapes: Sequence[tuple[tuple[int, ...], str]]) -> int:
    import tvm

    return sum(math.prod(shape) * max(1, tvm.DataType(dtype).bits // 8) for shape, dtype in shapes)


def _sha256(arrays: Sequence[Any]) -> str:
    """Of the bytes of arrays in the order of memory, little-endian."""
    import numpy as np

    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
