"""What a worker process does with workloads for CPUs: build candidates, compare their outputs, time them.

The candidates are those of one workload at a time. Its default, which TVM makes without a schedule, has number 0;
candidate ``i`` has two: :func:`packed`, with weights in the layout that its kernel reads, as a compile packs them, and
:func:`unpacked`, with the workload's own interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.comparison.difference import difference
from tunehub.comparison.random_arrays import BYTES, random_array
from tunehub.compiler.measure.quiet import Patience, clear_of_the_pool, undisturbed
from tunehub.records.lookup import Candidate, EmptyLookup
from tunehub.tir.nodes import buffer_shapes

if TYPE_CHECKING:
    from tunehub.tir.types import Array, DeviceTensor, IRModule, Module, Schedule
    from tunehub_registry.any_record import AnyRecord

DEFAULT = 0
_SEED = 0
_MOST_BYTES_KEPT = 1 << 30
# What floats are multiplied with until most results in 8 bits are no longer clipped: factors behind sums of products.
_SCALES = (1.0, 2.0**-8, 2.0**-12, 2.0**-16, 2.0**-20)
_CLIPPED = 0.7


def packed(candidate: int) -> int:
    """The number of a candidate whose weights come packed: how it is timed."""
    return 2 * candidate + 1


def unpacked(candidate: int) -> int:
    """The number of a candidate with the workload's own interface: how its output is compared."""
    return 2 * candidate + 2


class CandidateSession:
    """What a worker remembers between requests: modules by task, built candidates by number.

    Its public methods are the requests. A candidate stays built until it is dropped.
    """

    def __init__(self, patience_s: float = 3.0) -> None:
        """``patience_s``: spent on repeating disturbed measurements until candidates are dropped."""
        self._patience_s = patience_s
        self._modules: dict[str, IRModule] = {}
        self._built: dict[int, tuple[Module, list[DeviceTensor]]] = {}
        self._arguments: dict[tuple[tuple[int, ...], str], _Kept] = {}
        self._reference: tuple[int, list[Array], list[Array]] | None = None
        self._patience = Patience(left=self._patience_s)

    def warm_up(self, target: str) -> None:
        """Import TVM and make its target."""
        import tvm

        tvm.target.Target(target)

    def task(self, task: str, module: str) -> None:
        """Remember the workload ``task``, an IRModule as TVM's JSON."""
        import tvm

        self._modules[task] = tvm.ir.load_json(module)

    def build_default(self, number: int, task: str, target: str) -> None:
        """Build the workload as TVM compiles what has no record."""
        self._keep(number, self.default(task, target), target)

    def default(self, task: str, target: str) -> IRModule:
        """The workload as TVM compiles what has no record: without a schedule."""
        del target
        return self._modules[task]

    def build_record(self, candidate: int, task: str, target: str, line: bytes) -> None:
        """Build both forms of a candidate by a record, a line of a file of records, as a compile does it."""
        from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

        from tunehub.tir.layout_guard import changes_layout

        schedule = self.scheduled_by(task, target, line)
        self._keep(unpacked(candidate), schedule.mod, target)
        if changes_layout(schedule.trace):
            by_packed = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=False)(schedule.mod)
            self._keep(packed(candidate), by_packed, target)
        else:
            self._built[packed(candidate)] = self._built[unpacked(candidate)]

    def scheduled_by(self, task: str, target: str, line: bytes) -> Schedule:
        """The schedule by a record along the client's path: it is read, found by its key, checked and applied.

        Raises ValueError with the client's reason when it would skip the record.
        """
        import tvm

        from tunehub.compiler.schedule.ladder import schedule_module
        from tunehub.report.text import rejection_text

        outcome = schedule_module(self._modules[task], tvm.target.Target(target), _one_record(line))
        if outcome.schedule is None:
            said = [rejection_text(item) for item in outcome.rejected]
            raise ValueError(said[0] if said else f"the client's key of this workload is {outcome.exact}")
        return outcome.schedule

    def time(self, number: int, runs: int) -> float:
        """Mean seconds of ``runs`` runs of a candidate, which stays built."""
        import tvm

        library, arguments = self._built[number]
        timer = library.time_evaluator("main", tvm.cpu(), number=runs, repeat=1)
        with clear_of_the_pool():
            return undisturbed(lambda: (float(timer(*arguments).results[0]),), self._patience)[0]

    def refer(self, number: int) -> None:
        """Run a candidate with random inputs: the next ones are compared with its outputs."""
        if self._reference is None or self._reference[0] != number:
            self._reference = (number, *self._reference_run(number))

    def difference(self, number: int, reference: int, runs: int = 1) -> float:
        """Largest difference of the outputs of two candidates on the same input, relative to the reference's largest.

        The largest of several ``runs``: threads that write over each other do not do so every time. Both need the
        workload's own interface. Infinite when an output of one of them is not finite.
        """
        self.refer(reference)
        assert self._reference is not None
        _, inputs, expected = self._reference
        outputs = (self._outputs(number, inputs) for _ in range(runs))
        return max((difference(found, expected) for found in outputs), default=0.0)

    def drop(self) -> None:
        """Forget all candidates."""
        self._built.clear()
        self._reference = None
        self._patience = Patience(left=self._patience_s)

    def _compiled(self, mod: IRModule, target: str) -> Module:
        import tvm

        return tvm.tirx.build(mod, target=tvm.target.Target(target))

    def _keep(self, number: int, mod: IRModule, target: str) -> None:
        library = self._compiled(mod, target)
        library["main"]  # LLVM makes machine code when a function is first asked for: here, beside the other workers
        self._built[number] = (library, [self._argument(*shape) for shape in buffer_shapes(mod["main"])])

    def _reference_run(self, number: int) -> tuple[list[Array], list[Array]]:
        """Inputs, and what the candidate makes of them. Signed ones first; roots and logarithms need positive ones."""
        import numpy as np

        shapes = [(tuple(map(int, array.shape)), str(array.dtype)) for array in self._built[number][1]]
        eight_bits = any(dtype in BYTES for _, dtype in shapes)
        tries = [(positive, scale) for scale in (_SCALES if eight_bits else _SCALES[:1]) for positive in (False, True)]
        first = None
        for positive, scale in tries:
            rng = np.random.default_rng(_SEED)
            inputs = [_scaled(random_array(rng, *each, positive, whole=True), scale) for each in shapes]
            outputs = self._outputs(number, inputs)
            if all(np.isfinite(output).all() for output in outputs):
                first = first or (inputs, outputs)
                if not any(map(_is_clipped, inputs, outputs)):
                    return inputs, outputs
        return first or (inputs, outputs)

    def _outputs(self, number: int, inputs: list[Array]) -> list[Array]:
        """All buffers after a run. What the candidate does not write keeps its random content, and so differs."""
        import tvm

        tensors = [tvm.runtime.tensor(array) for array in inputs]
        self._built[number][0]["main"](*tensors)
        return [tensor.numpy() for tensor in tensors]

    def _argument(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        """An array of random numbers, kept for the next candidate of the same task."""
        import numpy as np
        import tvm

        if (shape, dtype) not in self._arguments:
            if sum(array.nbytes for array in self._arguments.values()) > _MOST_BYTES_KEPT:
                self._arguments.clear()
            values = random_array(np.random.default_rng(_SEED), shape, dtype, positive=True, whole=True)
            self._arguments[shape, dtype] = _Kept(tvm.runtime.tensor(values), values.nbytes)
        return self._arguments[shape, dtype].tensor


def _scaled(array: Array, scale: float) -> Array:
    return array if scale == 1.0 or array.dtype.kind in "iub" else (array * scale).astype(array.dtype)


def _is_clipped(before: Array, after: Array) -> bool:
    """Whether most of a result in 8 bits is its least or its largest number, so that little of it would show."""
    import numpy as np

    if str(after.dtype) not in BYTES or after.size < 2 or np.array_equal(before, after):
        return False
    at_ends = (after == after.min()) | (after == after.max())
    return bool(at_ends.mean() > _CLIPPED)


@dataclass(frozen=True, slots=True)
class _Kept:
    tensor: DeviceTensor
    nbytes: int


def _one_record(line: bytes) -> _OneRecord:
    """A lookup with the record in a line, newline included. Raises RegistryError for what is none."""
    from tunehub_registry.any_record import parse_any_record
    from tunehub_registry.record import ScheduleRecord
    from tunehub_registry.trace_rules import validate_trace

    record = parse_any_record(line.rstrip(b"\n"), "candidate")
    if isinstance(record, ScheduleRecord):
        validate_trace(record.trace)
    return _OneRecord(record)


class _OneRecord(EmptyLookup):
    """A lookup with a single record."""

    def __init__(self, record: AnyRecord) -> None:
        self._record = record

    def by_exact(self, key: str) -> Candidate | None:
        """As the port says."""
        found = Candidate(record=self._record, rung="exact", package="candidate")
        return found if key == self._record.exact else None
