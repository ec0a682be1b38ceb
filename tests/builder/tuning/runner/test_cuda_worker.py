"""A worker for CUDA compares what it has built beside the others: the gate only asks for what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunehub.compiler.measure.session import packed, unpacked
from tunehub_builder.tuning.runner import cuda_worker
from tunehub_builder.tuning.runner.cuda_worker import CudaSession

pytestmark = pytest.mark.slow


class _SessionOnCpu(CudaSession):
    """Candidates are modules in TVM's JSON, TVM's own schedule may be another module, ``default``."""

    plain_built = False

    def _device(self) -> Any:
        import tvm

        return tvm.cpu()

    def candidate(self, task: str, target: Any, trace: Any) -> Any:
        import tvm

        return tvm.ir.load_json(trace)

    def default(self, task: str, target: Any) -> Any:
        return self._modules.get("default", self._modules[task])

    def _build_plain(self, task: str, target: Any) -> None:
        self.plain_built = True
        self._keep(-1, self._modules[task], target)

    def _compiled(self, mod: Any, target: Any) -> Any:
        import tvm

        return tvm.tirx.build(mod, target=tvm.target.Target(target))


def test_outputs_are_compared_when_candidates_are_built(
    matmul: Any, target: dict[str, Any], tvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _SessionOnCpu(str(tmp_path / "lock"))
    session.task("t", tvm.ir.save_json(matmul))
    idle = tvm.IRModule({"main": matmul["main"].with_body(tvm.tirx.Evaluate(0))})
    errors = session.build_case("t", target, [tvm.ir.save_json(matmul), "nothing", tvm.ir.save_json(idle)])
    assert [error is None for error in errors] == [True, True, False, True]

    monkeypatch.setattr(session, "_outputs", lambda *_: pytest.fail("ran again"))
    assert session.difference(unpacked(0), 0) == 0.0
    assert session.difference(unpacked(2), 0) > 0.1
    assert session.time(packed(0), 1) > 0.0


def test_of_large_products_the_plainest_kernels_decide_only_what_tvms_own_schedule_computes_otherwise(
    matmul: Any, target: dict[str, Any], tvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_worker, "_MOST_PRODUCTS", 1)
    session = _SessionOnCpu(str(tmp_path / "lock"))
    session.task("t", tvm.ir.save_json(matmul))
    session.build_case("t", target, [tvm.ir.save_json(matmul)])
    assert session.difference(unpacked(0), 0) == 0.0 and not session.plain_built
    idle = tvm.IRModule({"main": matmul["main"].with_body(tvm.tirx.Evaluate(0))})
    session.task("default", tvm.ir.save_json(idle))
    session.build_case("t", target, [tvm.ir.save_json(matmul)])
    assert session.plain_built and session.difference(unpacked(0), 0) == 0.0


def test_small_workloads_are_compared_with_the_plainest_kernels(
    matmul: Any, target: dict[str, Any], tvm: Any, tmp_path: Path
) -> None:
    session = _SessionOnCpu(str(tmp_path / "lock"))
    idle = tvm.ir.save_json(tvm.IRModule({"main": matmul["main"].with_body(tvm.tirx.Evaluate(0))}))
    session.task("t", tvm.ir.save_json(matmul))
    session.task("default", idle)
    session.build_case("t", target, [idle])
    assert session.plain_built and session.difference(unpacked(0), 0) > 0.1


def test_what_was_compared_is_forgotten_with_its_candidates(
    matmul: Any, target: dict[str, Any], tvm: Any, tmp_path: Path
) -> None:
    session = _SessionOnCpu(str(tmp_path / "lock"))
    session.task("t", tvm.ir.save_json(matmul))
    idle = tvm.IRModule({"main": matmul["main"].with_body(tvm.tirx.Evaluate(0))})
    session.build_case("t", target, [tvm.ir.save_json(idle)])
    assert session.difference(unpacked(0), 0) > 0.1
    session.build_case("t", target, [tvm.ir.save_json(matmul)])
    assert session.difference(unpacked(0), 0) == 0.0


class _Recorded:
    """A graph that takes a second a launch; ``made`` counts them, ``closed`` those that are freed."""

    made = closed = 0

    def __init__(self, launch: Any, count: int) -> None:
        launch()
        type(self).made += 1

    def seconds(self, replays: int) -> float:
        return 1.0

    def close(self) -> None:
        type(self).closed += 1


def test_many_runs_are_timed_in_a_graph_that_is_recorded_once_and_freed(
    matmul: Any, target: dict[str, Any], tvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_worker, "RecordedLaunches", _Recorded)
    session = _SessionOnCpu(str(tmp_path / "lock"))
    session.task("t", tvm.ir.save_json(matmul))
    session.build_case("t", target, [tvm.ir.save_json(matmul)])
    assert session.time(packed(0), 1) < 1.0
    assert [session.time(packed(0), 100) for _ in range(3)] == [1.0] * 3
    assert (_Recorded.made, _Recorded.closed) == (1, 0)
    session.drop()
    assert _Recorded.closed == 1


class _Library:
    """A function that notes the tensors that it is called with."""

    def __init__(self) -> None:
        self.called: list[Any] = []

    def __getitem__(self, name: str) -> Any:
        return lambda *tensors: self.called.append(tensors)


class _AllRecorded(_Recorded):
    def __init__(self, launch: Any, count: int) -> None:
        for _ in range(count):
            launch()


@pytest.mark.parametrize(("rows", "copies"), [(1 << 20, 16), (3 << 20, 6), (1 << 12, None)])
def test_operands_from_memory_are_copies_that_take_turns(
    rows: int, copies: int | None, tvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_worker, "RecordedLaunches", _AllRecorded)
    session, library = _SessionOnCpu(str(tmp_path / "lock")), _Library()
    operand = tvm.runtime.tensor(np.full((rows, 2), 7, "float32"))  # 8 bytes a row
    session._built[packed(0)] = (library, [operand])
    assert session.time_cold(packed(0), 100) == (None if copies is None else 1.0)
    if copies is not None:
        assert library.called.pop(0) == (operand,)
    found = {id(tensor): float(tensor.numpy()[-1, -1]) for (tensor,) in library.called}
    assert len(library.called) == len(found)
    assert (len(found), set(found.values())) == ((copies, {7.0}) if copies else (0, set()))
    session.drop()
    assert session._copies == []


def _refused(*_: Any) -> None:
    raise ValueError("it allocates")


def test_what_cannot_be_recorded_is_launched_run_by_run(
    matmul: Any, target: dict[str, Any], tvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_worker, "RecordedLaunches", _refused)
    session = _SessionOnCpu(str(tmp_path / "lock"))
    session.task("t", tvm.ir.save_json(matmul))
    session.build(0, "t", target, tvm.ir.save_json(matmul))
    assert 0.0 < session.time(0, 100) < 1.0
