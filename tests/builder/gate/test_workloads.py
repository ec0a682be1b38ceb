"""The publish gate with real code: what is wrong, slow or crashes stays out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.comparison.difference import difference_reason, tolerance
from tunehub.comparison.protocol import MeasuringPlan, interquartile_range, noise_reason
from tunehub_builder.backends.relax import workload_gate
from tunehub_builder.backends.relax.workload_gate import LIMITS, RelaxWorkloads, Verdict, case_of, evidence, gate_types
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.gate.journal import is_due
from tunehub_builder.gate.workloads import judge as judge_cases
from tunehub_builder.tuning.runner.pool import PoolOptions, WorkerPool
from tunehub_builder.tuning.work_directory import RunFile, TaskEntry, WorkDirectory

pytestmark = [pytest.mark.slow, pytest.mark.alone]

Entry = Callable[..., Distilled]
Judge = Callable[[Distilled], Verdict]
PLAN = MeasuringPlan(rounds=5, sample_s=0.005, budget_s=0.1)


@pytest.fixture(scope="module")
def judge(target: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    log = tmp_path_factory.mktemp("gate") / "log"
    with WorkerPool(PoolOptions(workers=1, threads=1, log=str(log)), target) as pool:
        yield lambda entry: next(judge_cases([case_of(entry, target, 1, PLAN)], pool.workers, LIMITS))


@pytest.fixture
def any_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let traces through that the rules refuse, to see that the measurements refuse them too."""
    monkeypatch.setattr(workload_gate, "static_reason", lambda trace: None)


def test_a_good_record_is_admitted_with_evidence(judge: Judge, entry: Entry, good_traces: list[Any]) -> None:
    verdict = judge(entry(*good_traces[:3]))
    assert (verdict.admitted, verdict.reason) == (True, None)
    assert verdict.winner is not None
    assert verdict.trace == good_traces[verdict.winner]
    line = evidence(verdict)
    assert line is not None
    assert line.admitted
    assert line.speedup == pytest.approx(verdict.speedup)
    assert line.speedup > 1.02
    assert line.output_max_rel_diff <= 1e-4
    assert line.repeats == PLAN.rounds


def test_a_slower_record_is_rejected(judge: Judge, entry: Entry, slow_trace: Any) -> None:
    verdict = judge(entry(slow_trace))
    assert not verdict.admitted
    assert "times as fast as the default" in str(verdict.reason)
    line = evidence(verdict)
    assert line is not None
    assert not line.admitted


@pytest.mark.usefixtures("any_trace")
def test_a_record_with_wrong_output_is_rejected(judge: Judge, entry: Entry, wrong_trace: Any) -> None:
    verdict = judge(entry(wrong_trace))
    assert not verdict.admitted
    assert "its output differs from the default's" in str(verdict.reason)
    assert evidence(verdict) is None


@pytest.mark.usefixtures("any_trace")
def test_wrong_and_crashing_finalists_do_not_keep_a_good_one_out(
    judge: Judge, entry: Entry, good_traces: list[Any], wrong_trace: Any, crashing_trace: Any
) -> None:
    verdict = judge(entry(wrong_trace, crashing_trace, good_traces[2]))
    assert verdict.admitted
    assert verdict.winner == 2
    assert [finalist.reason is None for finalist in verdict.finalists] == [False, False, True]
    assert "crashed" in str(verdict.finalists[1].reason)


def test_a_forbidden_trace_never_reaches_tvm(judge: Judge, entry: Entry, crashing_trace: Any, wrong_trace: Any) -> None:
    verdict = judge(entry(crashing_trace, wrong_trace))
    assert not verdict.admitted
    assert str(verdict.reason).startswith("the trace is not allowed")
    assert all("not allowed" in str(finalist.reason) for finalist in verdict.finalists)


def test_what_a_candidate_does_not_write_counts_as_wrong(matmul: Any, target: dict[str, Any], tvm: Any) -> None:
    from tunehub_builder.tuning.runner.worker import TraceSession

    session = TraceSession()
    session.task("full", tvm.ir.save_json(matmul))
    session.build_default(0, "full", target)
    session.build_default(1, "full", target)
    assert session.difference(1, 0) == 0.0
    idle = matmul["main"].with_body(tvm.tirx.Evaluate(0))
    session.task("idle", tvm.ir.save_json(tvm.IRModule({"main": idle})))
    session.build_default(2, "idle", target)
    assert session.difference(2, 0) > 0.1


def test_verdicts_are_kept_and_only_new_finalists_are_judged_again(
    tmp_path: Path, entry: Entry, good_traces: list[Any], slow_trace: Any
) -> None:
    known = entry(good_traces[0])
    verdict = Verdict(exact=known.task.exact, name="matmul", digest=known.digest, threads=2, admitted=True)
    assert not is_due(verdict, known.digest, 2)
    assert is_due(verdict, known.digest, 4)
    assert is_due(None, known.digest, 2)
    assert is_due(verdict, entry(slow_trace).digest, 2)
    backend = RelaxWorkloads(directory=WorkDirectory(tmp_path), run=cast("RunFile", None), threads=2)
    assert backend.wanted(known) == {known.task.exact: known.digest}
    assert backend.wanted(entry()) == {}


def test_noise_and_gain() -> None:
    assert noise_reason([1.0, 1.0, 1.0], [0.5, 0.5, 0.5], 1.02) is None
    assert "times as fast" in str(noise_reason([1.0, 1.0], [0.99, 0.99], 1.02))
    assert "within the noise" in str(noise_reason([1.0, 1.4, 0.6, 1.0], [0.9, 0.9, 0.9, 0.9], 1.02))


def test_a_far_shorter_time_is_no_noise_however_the_defaults_vary() -> None:
    noisy = [40.0, 55.0, 70.0, 180.0, 300.0]
    assert interquartile_range(noisy) > 70.0
    assert noise_reason(noisy, [1.0, 1.1, 1.0, 0.9, 1.0]) is None
    assert "within the noise" in str(noise_reason([40.0, 70.0, 300.0], [1.0, 1.0, 1.0]))  # too few
    assert "within the noise" in str(noise_reason(noisy, [1.0, 30.0, 40.0, 25.0, 50.0]))


@given(st.lists(st.floats(min_value=1e-6, max_value=1.0), min_size=1, max_size=20))
def test_the_spread_is_never_larger_than_the_range(samples: list[float]) -> None:
    assert 0.0 <= interquartile_range(samples) <= max(samples) - min(samples) + 1e-12


@pytest.mark.parametrize(("times", "steps"), [(1, 1), (3, 4)])
def test_a_step_in_8_bits_may_become_several_where_it_is_rounded_again(times: int, steps: int) -> None:
    import tvm
    from tvm import te

    def rounded(x: Any) -> Any:
        wide = te.compute((8,), lambda i: x[i].astype("float32") * 2.0, name="wide")
        return te.compute((8,), lambda i: te.round(wide[i]).astype("uint8"), name="eight")

    first = te.placeholder((8,), "float32", name="x")
    last = first
    for _ in range(times):
        last = rounded(last)
    module = tvm.ir.save_json(tvm.IRModule({"main": te.create_prim_func([first, last])}))
    task = TaskEntry(name="eight", exact="e", anchor=None, counts={"a": 1}, module=module, types=("uint8",))
    most = tolerance(gate_types(task))
    assert difference_reason(steps / 127, most) is None
    assert difference_reason((steps + 1) / 127 if times == 1 else 0.2, most) is not None
