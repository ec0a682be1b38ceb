"""A small matmul, right and wrong schedules of it, and verifiers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relax")

from tvm import te, tirx  # noqa: E402

from tunehub.compiler.hub import Hub  # noqa: E402
from tunehub.compiler.verify.limits import VerifyLimits  # noqa: E402
from tunehub.compiler.verify.memory import RememberingVerifier, VerdictMemory  # noqa: E402
from tunehub.compiler.verify.port import ScheduledFunction, ScheduleVerifier, TrustingVerifier  # noqa: E402
from tunehub.compiler.verify.static import StaticVerifier  # noqa: E402
from tunehub.compiler.verify.workers import WorkerVerifier  # noqa: E402
from tunehub.exceptions import HubError  # noqa: E402
from tunehub.report.model import WorkloadReport  # noqa: E402
from tunehub.tir.cuda.fault import Fault  # noqa: E402
from tunehub.tir.keys import workload_key  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402
from tunehub.tir.workload import workload_text  # noqa: E402

from ..conftest import (  # noqa: E402
    make_record,
    module_nets,
    nets,
    record_for,
    run,
    sketch_traces,
    tasks_of,
)

__all__ = ["make_record", "module_nets", "nets", "record_for", "run", "sketch_traces", "tasks_of"]

LIMITS = VerifyLimits(run_s=20.0)


@pytest.fixture(scope="session")
def target() -> Any:
    """As users have it: what cannot be built is refused with LLVM's words, which differ without optimising."""
    return tvm.target.Target({"kind": "llvm", "num-cores": 2})


def matmul(size: int = 8) -> tuple[Any, Any, Any]:
    """A product of two matrices as tensor expressions: both operands, and the sum."""
    a, b = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size), name="k")
    return a, b, te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")


def _right() -> Any:
    schedule = tvm.s_tir.Schedule(main_module(te.create_prim_func(matmul())))
    loops = schedule.get_loops(schedule.get_sblock("c"))
    schedule.split(loops[0], [None, 4])
    return schedule.mod["main"]


def _wrong() -> Any:
    return spoilt(te.create_prim_func(matmul()))


def _calling(name: str) -> Any:
    a, b, _ = matmul()
    done = te.extern((8, 8), [a, b], lambda *_: tirx.call_extern("int32", name), dtype="float32", name="c")
    return te.create_prim_func([a, b, done])


SCHEDULES: dict[str, Callable[[], Any]] = {
    "right": _right,
    "wrong": _wrong,
    "writes nothing": lambda: _calling("getpid"),
    "crashes": lambda: _calling("abort"),
    "hangs": lambda: _calling("pause"),
    "does not build": lambda: _calling("no_such_function_anywhere"),
}


def spoilt(function: Any) -> Any:
    """``function``, a PrimFunc, with sums that start at 1."""
    graph = json.loads(workload_text(function))
    for node in graph["nodes"]:
        if node["type"] == "ir.FloatImm" and node["data"]["value"] == 0.0:
            node["data"]["value"] = 1.0
    return tvm.ir.load_json(json.dumps(graph))["main"]


def asked(schedule: str) -> ScheduledFunction:
    """The matmul with one of ``SCHEDULES``."""
    original = te.create_prim_func(matmul())
    exact = workload_key(main_module(original))
    return ScheduledFunction(exact=exact, original=original, scheduled=SCHEDULES[schedule]())


class CountingVerifier:
    """Passes everything on, and counts."""

    def __init__(self, inner: ScheduleVerifier) -> None:
        self.inner = inner
        self.checks = inner.checks
        self.begun = 0
        self.submitted: list[str] = []

    def begin(self) -> None:
        self.begun += 1
        self.inner.begin()

    def submit(self, asked: ScheduledFunction) -> None:
        self.submitted.append(asked.key)
        self.inner.submit(asked)

    def verdict(self, asked: ScheduledFunction) -> Any:
        return self.inner.verdict(asked)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def problems() -> list[HubError]:
    return []


@pytest.fixture
def memory(tmp_path: Path, problems: list[HubError]) -> Callable[..., VerdictMemory]:
    """The memory of an environment, opened anew."""
    return lambda *environment: VerdictMemory(tmp_path / "cache", environment, problems.append)


@pytest.fixture
def workers(target: Any) -> Iterator[Callable[..., WorkerVerifier]]:
    """Verifiers that run schedules on this CPU."""
    made: list[WorkerVerifier] = []

    def verifier(limits: VerifyLimits = LIMITS, otherwise: ScheduleVerifier | None = None) -> WorkerVerifier:
        inner = otherwise or StaticVerifier(target, lambda *_: None, "")
        made.append(WorkerVerifier(str(target), inner, workers=1, limits=limits))
        return made[-1]

    yield verifier
    for each in made:
        each.close()


def fault_of_spoilt(scheduled: Any, _target: Any) -> Fault | None:
    """A static check that sees what :func:`spoilt` does."""
    return Fault("reduction", "its sums start at 1") if "T.float32(1.0)" in scheduled.script() else None


KINDS = ("trusting", "static", "workers", "remembering")


@pytest.fixture
def verifier_of(target: Any, workers: Any, memory: Any) -> Callable[[str], ScheduleVerifier]:
    """A verifier of each kind."""
    makers: dict[str, Callable[[], ScheduleVerifier]] = {
        "trusting": TrustingVerifier,
        "static": lambda: StaticVerifier(target, fault_of_spoilt, "no device"),
        "workers": workers,
        "remembering": lambda: RememberingVerifier(workers(), memory(), not_run=None),
    }
    return lambda kind: makers[kind]()


def of_matmul(hub: Hub) -> WorkloadReport:
    (found,) = [item for item in hub.report().workloads if "matmul" in item.name]
    return found
