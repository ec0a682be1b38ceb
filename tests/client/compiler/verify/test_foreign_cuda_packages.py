"""Where no GPU is, a schedule by a record of somebody else's package serves only if the simulation followed it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te

from tunehub.compiler.hub import Hub, open_hub
from tunehub.compiler.pipeline import explain_module
from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.compiler.verify import verification
from tunehub.compiler.verify.memory import RememberingVerifier
from tunehub.compiler.verify.port import KernelVerdict, ScheduledFunction
from tunehub.compiler.verify.static import StaticVerifier
from tunehub.records.lookup import Candidate, EmptyLookup
from tunehub.report.model import WorkloadReport
from tunehub.target.descriptors import descriptor_of
from tunehub.tir.cuda import check
from tunehub.tir.cuda.fault import NotSimulated
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import blocks_in, main_module
from tunehub.tir.traces import export_trace
from tunehub_registry.record import ScheduleRecord, encode_record

from ...conftest import RegistryFolder
from .conftest import asked, of_matmul

pytestmark = pytest.mark.slow

TARGET = {"kind": "cuda", "arch": "sm_90", "model": "h200", "max_threads_per_block": 1024, "max_num_threads": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip
UNKNOWN = NotSimulated("a loop too many")
H200 = verification.Device(name="h200 sm_90", model="h200")


@pytest.fixture(scope="module")
def h200() -> Any:
    return tvm.target.Target(TARGET)


@pytest.fixture(scope="module")
def net(module_nets: Any) -> Any:
    return module_nets.matmul(m=16, n=64, k=64)


@pytest.fixture(scope="module")
def line(net: Any, tasks_of: Any, make_record: Any) -> bytes:
    """A record of the network's product, whose elements are each a thread's."""
    (task,) = [task for task in tasks_of(net) if "matmul" in task.name]
    return encode_record(make_record(task, _a_thread_each(task.mod), run_s=(1e-9,)))


def _a_thread_each(mod: Any) -> Any:
    schedule = tvm.s_tir.Schedule(mod)
    for block in blocks_in(mod["main"].body):
        if block.name_hint == "root":
            continue
        found = schedule.get_sblock(block.name_hint)
        spatial = [axis for axis in block.iter_vars if int(axis.iter_type) == 0]
        fused = schedule.fuse(*schedule.get_loops(found)[: len(spatial)])
        blocks, threads = schedule.split(fused, [None, 64])
        schedule.bind(blocks, "blockIdx.x")
        schedule.bind(threads, "threadIdx.x")
    return export_trace(schedule.trace)


@pytest.fixture
def hub(line: bytes, h200: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hub]]:
    """Hubs with the record as a package, of somebody else or as the user's ``own``, for a GPU that is not here."""
    folder = RegistryFolder(tmp_path / "theirs")
    folder.publish(descriptor_of(h200), data=line)
    own = tmp_path / "own.jsonl"
    own.write_bytes(line)
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(verification, "gpu_descriptor", lambda: None)
    hubs: list[Hub] = []

    def opened(verify: Any = "auto", *, mine: bool = False) -> Hub:
        theirs = {"registry": str(folder.root)}
        source = {"registry": str(tmp_path / "none"), "user_records": str(own)} if mine else theirs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hubs.append(open_hub(h200, verify=verify, layout="keep", **source))
        return hubs[-1]

    yield opened
    for each in hubs:
        each.close()


def explained(net: Any, target: Any, hub: Hub) -> WorkloadReport:
    explain_module(net, target, hub)
    return of_matmul(hub)


def test_one_that_the_simulation_follows_serves(net: Any, h200: Any, hub: Any) -> None:
    found = explained(net, h200, hub())
    assert (found.rung, found.verified, found.refused) == ("exact", "static", ())


@pytest.mark.parametrize(("mode", "why"), [("auto", "this machine has no CUDA device"), ("never", "verify=never")])
def test_one_that_it_does_not_follow_is_refused_each_time(
    mode: str, why: str, net: Any, h200: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _follow_no_record(monkeypatch)
    for _ in range(2):
        found = explained(net, h200, hub(mode))
        assert found.rung != "exact"
        text = f"neither simulated (a loop too many) nor run ({why}), and the record is somebody else's"
        assert {each.refusal.reason for each in found.refused if each.refusal is not None} == {text}


def test_explaining_refuses_none_that_a_compile_would_run(
    net: Any, h200: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _follow_no_record(monkeypatch)
    monkeypatch.setattr(verification, "device_for", lambda _: H200)
    found = explained(net, h200, hub())
    assert (found.rung, found.verified, found.refused) == ("exact", None, ())


def test_the_users_own_serve(net: Any, h200: Any, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _follow_no_record(monkeypatch)
    assert explained(net, h200, hub(mine=True)).rung == "user"


def test_a_refusal_for_want_of_a_device_is_not_remembered(h200: Any, memory: Any) -> None:
    static = StaticVerifier(h200, lambda *_: UNKNOWN, "no memory left")
    kept = memory("here")
    mine = asked("right")
    theirs = ScheduledFunction(exact=mine.exact, original=mine.original, scheduled=mine.scheduled, foreign=True)
    verifier = RememberingVerifier(static, kept, not_run=None)
    assert verifier.verdict(mine) == KernelVerdict(not_run="no memory left; not simulated: a loop too many")
    refusal = verifier.verdict(theirs).refusal
    assert refusal is not None and refusal.reason is not None and "no memory left" in refusal.reason
    assert len(kept) == 0


@pytest.mark.parametrize(
    ("piece", "foreign", "serves"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_nothing_unproven_of_somebody_elses_becomes_a_part_of_another_function(
    piece: bool, foreign: bool, serves: bool, h200: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_fault", lambda *_: UNKNOWN)
    mod = _elementwise(1)
    outcome = Scheduling(mod["main"], h200, _lookup(mod, _a_thread_each(mod), foreign), piece=piece).outcome
    assert (outcome.rung == "exact") is serves
    assert serves or any(
        each.refusal and "part of another function" in str(each.refusal.reason) for each in outcome.rejected
    )


@pytest.mark.parametrize(
    ("unrolled", "foreign", "serves"), [(64, True, True), (2048, True, False), (2048, False, True)]
)
def test_nothing_of_somebody_elses_serves_that_takes_nvrtc_minutes(
    unrolled: int, foreign: bool, serves: bool, h200: Any
) -> None:
    mod = _elementwise(8)  # with 2,048 copies NVRTC takes 32 s
    schedule = tvm.s_tir.Schedule(mod)
    loops = schedule.split(schedule.fuse(*schedule.get_loops(schedule.get_sblock("b"))), [None, 32, unrolled])
    schedule.bind(loops[0], "blockIdx.x")
    schedule.bind(loops[1], "threadIdx.x")
    schedule.unroll(loops[2])
    outcome = Scheduling(mod["main"], h200, _lookup(mod, export_trace(schedule.trace), foreign)).outcome
    assert (outcome.rung == "exact") is serves
    assert serves or "unrolled it has 2048 statements" in " ".join(str(each.reason) for each in outcome.rejected)


def _elementwise(operations: int) -> Any:
    def each(i: Any, j: Any) -> Any:
        value = a[i, j]
        for _ in range(operations):
            value = tvm.tirx.tanh(value)
        return value

    a = te.placeholder((1024, 1024), name="a")
    return main_module(te.create_prim_func([a, te.compute((1024, 1024), each, "b")]))


def _lookup(mod: Any, trace: Any, foreign: bool) -> EmptyLookup:
    """A package with one record, for ``mod``."""

    class Lookup(EmptyLookup):
        def by_exact(self, key: str) -> Candidate:
            record = ScheduleRecord(
                exact=workload_key(mod),
                op="tanh",
                trace=tuple(trace),
                run_s=(1e-9,),
                default_s=1.0,
                source="",
            )
            return Candidate(record=record, rung="exact", package="theirs 1", foreign=foreign)

    return Lookup()


def _follow_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation follows nothing that has 64 threads in a block and 16 blocks, as the record's product has."""
    find = check._fault

    def found(scheduled: Any, target: Any) -> Any:
        text = scheduled.script()
        return UNKNOWN if 'T.thread_binding(T.int64(16), thread="blockIdx.x")' in text else find(scheduled, target)

    monkeypatch.setattr(check, "_fault", found)
