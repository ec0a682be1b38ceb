"""Small networks, their workloads and records, and a hub that holds given records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.records.lookup import Candidate, FoundLadder, Measured, Neighbour  # noqa: E402
from tunehub.report.model import WorkloadReport  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402
from tunehub_registry.evidence import RecordEvidence  # noqa: E402
from tunehub_registry.ladder_record import LadderRecord  # noqa: E402
from tunehub_registry.record import ScheduleRecord  # noqa: E402

from ...relax_nets import net  # noqa: E402
from ...unoptimised import UNOPTIMISED  # noqa: E402

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="session")
def target() -> Any:
    """A CPU that is described the same way everywhere: keys do not depend on it."""
    return tvm.target.Target(UNOPTIMISED)


class Nets:
    """Relax modules with random weights. `build` takes a function of a block builder and the inputs."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def array(self, *shape: int) -> Array:
        return self.rng.uniform(-1, 1, shape).astype("float32")

    def const(self, *shape: int) -> Any:
        return relax.const(self.array(*shape))

    def var(self, name: str, shape: Iterable[int], dtype: str = "float32") -> Any:
        kind = tensor_class()
        return relax.Var(name, kind(tuple(shape), dtype))

    build = staticmethod(net)

    def conv(self, channels: int = 8, out: int = 16, size: int = 8, *, bias: bool = True, relu: bool = True) -> Any:
        """A 3×3 convolution with bias and relu."""

        def make(b: Any, x: Any) -> Any:
            y = b.emit(relax.op.nn.conv2d(x, self.const(out, channels, 3, 3), padding=1))
            y = b.emit(relax.op.add(y, self.const(1, out, 1, 1))) if bias else y
            return b.emit(relax.op.nn.relu(y)) if relu else y

        return self.build(make, (1, channels, size, size))

    def matmul(self, m: int = 16, n: int = 32, k: int = 24, *, dtype: str = "float32", name: str = "x0") -> Any:
        def make(b: Any, x: Any) -> Any:
            weight = relax.const(self.array(k, n).astype(dtype))
            return b.emit(relax.op.matmul(x, weight))

        return self.build(make, (m, k), names=(name,), dtype=dtype)

    def residual(self, channels: int = 8, size: int = 8) -> Any:
        """conv + batch norm + relu, twice, with a residual connection."""
        op = relax.op

        def make(b: Any, x: Any) -> Any:
            y = x
            for _ in range(2):
                y = b.emit(op.nn.conv2d(y, self.const(channels, channels, 3, 3), padding=1))
                y = b.emit(relax.TupleGetItem(b.emit(self.batch_norm(y, channels)), 0))
                y = b.emit(op.nn.relu(b.emit(op.add(x, y)) if _ else y))
            return y

        return self.build(make, (1, channels, size, size))

    def batch_norm(self, data: Any, channels: int, *, training: bool = False) -> Any:
        statistics = [relax.const(np.abs(self.array(channels)) + 0.5) for _ in range(4)]
        return relax.op.nn.batch_norm(data, *statistics, axis=1, training=training)


@pytest.fixture
def nets() -> Nets:
    return Nets()


@pytest.fixture(scope="module")
def module_nets() -> Nets:
    """As `nets`, for fixtures that are made once a module."""
    return Nets()


_PRODUCTS = ("conv", "dense", "matmul", "attention")  # names of functions that multiply


def _instances_of(record: LadderRecord) -> list[str | None]:
    return [times.exact for times in record.times]


@dataclass
class FakeHub:
    """A hub with given records; what it is told is kept."""

    records: list[ScheduleRecord] = field(default_factory=list)
    host: Any = field(default_factory=lambda: SimpleNamespace(kind="llvm"))
    workloads: list[WorkloadReport] = field(default_factory=list)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layout: str = "keep"
    winograd: bool = False
    check_indices: bool = True
    precision: str = "float32"
    published_profile: Any = None
    measuring: Any = None
    verification: Any = None
    choices: Any = None
    evidence: list[RecordEvidence] = field(default_factory=list)
    wrong_operators: list[Any] = field(default_factory=list)
    of_symbols: list[LadderRecord] = field(default_factory=list)

    @property
    def lookup(self) -> FakeHub:
        return self

    def by_exact(self, key: str) -> Candidate | None:
        found = (Candidate(record=r, rung="exact", package="p 1") for r in self.records if r.exact == key)
        return next(found, None)

    def by_anchor(self, key: str) -> tuple[Candidate, ...]:
        same = [r for r in self.records if r.anchor == key]
        return tuple(Candidate(record=r, rung="anchor", package="p 1", anchored=True) for r in same)

    def by_class(self, key: str) -> tuple[Neighbour, ...]:
        same = [self._neighbour(record, False) for record in self.records if record.op_class == key]
        anchored = [self._neighbour(record, True) for record in self.records if record.anchor_class == key]
        return tuple(same + anchored)

    def ladders(self, by: str, key: str) -> tuple[FoundLadder, ...]:
        rung: Any = "transfer" if by == "instance" else by
        keys = {"exact": lambda r: [r.exact], "anchor": lambda r: [r.anchor], "instance": _instances_of}[by]
        return tuple(FoundLadder(record=r, rung=rung, package="p 1") for r in self.of_symbols if key in keys(r))

    def measured(self, tuner: str, key: str) -> Measured | None:
        of_tuner = (e for e in self.evidence if (e.tuner or "meta_schedule") == tuner and e.exact == key)
        return next((Measured(evidence=e, package="p 1") for e in of_tuner), None)

    def _neighbour(self, record: Any, anchored: bool) -> Neighbour:
        return Neighbour(
            extents=record.anchor_extents if anchored else record.extents,
            run_s=record.mean_s,
            default_s=record.default_s,
            knobs=hasattr(record, "knobs"),
            package="p 1",
            read=lambda: Candidate(record=record, rung="transfer", package="p 1", anchored=anchored),
            anchored=anchored,
        )

    def begin_module(self) -> int:
        return 1

    def add(self, workload: WorkloadReport, _function: Any = None) -> None:
        self.workloads.append(workload)

    def step(self, name: str) -> None:
        """Nobody is told."""

    def failed(self, step: str, error: BaseException) -> None:
        self.failures.append((step, error))

    def refused(self, workload: str, reason: str) -> None:
        self.failures.append((workload, ValueError(reason)))

    def leaves_wrong(self, operators: Any) -> None:
        self.wrong_operators += operators

    def lost_vectors(self, functions: Any, reason: str) -> None:
        self.notes += [f"{name}: {reason}" for name in functions]

    def fall_back(self, reason: str) -> None:
        self.notes.append(reason)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def check_products(self) -> None:
        """Convolutions, products and attention: none is left to TVM or is plain loops, and nothing failed before."""
        found = [each for each in self.workloads if any(kind in each.name for kind in _PRODUCTS)]
        plain = [each for each in found if each.rung == "default" or each.template == "loops" or each.skipped]
        left = [(each.name, each.rung, each.template, each.skipped) for each in plain]
        assert found
        assert not left

    def rungs(self) -> list[str]:
        return [workload.rung for workload in self.workloads]


@pytest.fixture
def make_hub() -> type[FakeHub]:
    return FakeHub


@pytest.fixture(scope="session")
def tasks_of(target: Any) -> Callable[[Any], list[Any]]:
    """The workloads of a Relax module, as the builder sees them."""
    from tunehub_builder.tuning.tasks import extract_tasks

    return lambda mod: extract_tasks([("net", mod)], target)


@pytest.fixture(scope="session")
def sketch_traces() -> Callable[[Any], list[Any]]:
    """The traces of all sketches for a workload, with packed weights, as records hold them."""
    from tvm.s_tir import meta_schedule as ms

    from tunehub.tir.traces import export_trace
    from tunehub_builder.tuning.space import register_tiles as sketch

    def traces(mod: Any) -> list[Any]:
        loops = sketch.loops_of(mod)
        assert loops is not None
        found = []
        for knobs in sketch.register_tiles(loops, 16):
            schedule = sketch.apply(mod, loops, knobs)
            assert ms.postproc.RewriteLayout().apply(schedule)
            found.append(export_trace(schedule.trace))
        return found

    return traces


@pytest.fixture(scope="session")
def make_record() -> Callable[..., ScheduleRecord]:
    """A record of a task with a trace."""

    def record(task: Any, trace: Any, **changes: Any) -> ScheduleRecord:
        values: dict[str, Any] = {
            "exact": task.exact, "anchor": task.anchor, "op": task.name, "trace": (trace[0], trace[1]),
            "run_s": (1e-3,), "default_s": 1e-1, "source": "sketch", **task.classes, **changes,
        }  # fmt: skip
        return ScheduleRecord(**values)

    return record


@pytest.fixture(scope="session")
def record_for(tasks_of: Any, sketch_traces: Any, make_record: Any) -> Callable[[Any], list[ScheduleRecord]]:
    """A record by sketch for every workload of a module that a sketch fits."""
    from tunehub_builder.tuning.space import register_tiles as sketch

    def records(mod: Any) -> list[ScheduleRecord]:
        tasks = [task for task in tasks_of(mod) if sketch.loops_of(task.mod) is not None]
        return [make_record(task, sketch_traces(task.mod)[0]) for task in tasks]

    return records


@pytest.fixture(scope="session")
def run() -> Callable[..., Array]:
    """Run an executable of a Relax module on arrays."""

    def call(executable: Any, *arrays: Array) -> Array:
        machine = relax.VirtualMachine(executable, tvm.cpu())
        result: Array = machine["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()
        return result

    return call
