"""Ladders over the size of a symbolic function: right at every size, and static functions of these sizes learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tunehub.compiler.schedule.ladder import Scheduling  # noqa: E402
from tunehub.compiler.schedule.size_ladder import ladder_text  # noqa: E402
from tunehub.report.ladder import StepRejected  # noqa: E402
from tunehub.tir.keys import anchor_key, workload_key  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402
from tunehub.tir.symbols import branches_at, instance  # noqa: E402
from tunehub_registry.evidence import RecordEvidence  # noqa: E402
from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt  # noqa: E402

from ....cpu_features import AVX512  # noqa: E402
from ....cpu_features import cpu as cpu_of  # noqa: E402
from ...kernels.symbolic.conftest import OpenCase, compiled, cpu, open_case, outputs, written  # noqa: E402
from ...kernels.symbolic.open_cases import CASES  # noqa: E402
from ..conftest import FakeHub  # noqa: E402

__all__ = ["cpu"]
pytestmark = pytest.mark.slow


def case_of(name: str) -> OpenCase:
    make, *shapes = CASES[name]
    return open_case(make, *shapes, symbols=2 if "batches" in name else 1)


def step(up_to: int | None, at: tuple[int, ...], gain: float = 2.0, **fields: Any) -> LadderStep:
    return LadderStep(up_to=up_to, times=(TimesAt(at=at, run_s=1e-3, default_s=1e-3 * gain),), **fields)


def rows(large: int, small: int = 1, blocks: int = 1) -> dict[str, Any]:
    return {"template": "rows", "version": 1, "knobs": {"large": large, "small": small, "blocks": blocks}}


def ladder(case: OpenCase, *steps: LadderStep, **changes: Any) -> LadderRecord:
    mod = case.mod
    fields: dict[str, Any] = {
        "exact": workload_key(mod), "anchor": anchor_key(mod), "op": "tuned", "source": "template",
        "symbols": case.symbols, "ladder": steps, **changes,
    }  # fmt: skip
    return LadderRecord(**fields)


def scheduled(case: OpenCase, target: Any, *records: LadderRecord, **hub: Any) -> Scheduling:
    return Scheduling(case.mod["main"], target, FakeHub(of_symbols=list(records), **hub))


def check_outputs(case: OpenCase, function: Any, target: Any, sizes: list[tuple[int, ...]]) -> None:
    fast, plain = compiled(main_module(function), target), compiled(case.mod, target)
    rng = np.random.default_rng(3)
    for values in sizes:
        arrays, got = outputs(fast, case, values, rng)
        expected = written(plain, arrays, case.shapes(*values)[-1])
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=f"at {values}")


def test_steps_of_all_kinds_are_right_on_both_sides_of_every_threshold(cpu: Any) -> None:
    case = case_of("dense")
    record = ladder(
        case,
        step(2, (1,), **rows(2)),
        step(16, (7,), **rows(6, 3, 2)),
        step(32, (20,), own="default"),
        step(None, (61,), own="rule"),
    )
    found = scheduled(case, cpu, record)
    served = found.served
    assert served is not None and not found.outcome.rejected
    assert (served.rung, served.record, served.package) == ("exact", record, "p 1")
    assert served.sizes == "exact for s0 <= 16, default for s0 <= 32, rule above"
    check_outputs(case, found.function, cpu, [(n,) for n in (1, 2, 3, 15, 16, 17, 32, 33, 61, 130)])


def test_steps_of_one_kind_are_one_branch(cpu: Any) -> None:
    case = case_of("dense")
    tile, other = rows(6, 3, 2), rows(4)
    steps = [(2, tile), (7, other), (16, tile), (None, other)]
    record = ladder(case, *(step(end, (end or 61,), **knobs) for end, knobs in steps))
    found = scheduled(case, cpu, record)
    assert not found.outcome.rejected
    assert [branches_at(found.function, [n]) for n in (2, 3, 8, 17)] == [(0,), (1,), (0,), (1,)]
    check_outputs(case, found.function, cpu, [(n,) for n in (1, 2, 3, 7, 8, 16, 17, 61)])


def test_the_size_of_several_symbols_is_their_product(cpu: Any) -> None:
    case = case_of("dense of batches of sequences")
    record = ladder(case, step(12, (3, 4), **rows(4)), step(None, (5, 7), **rows(8, 5)))
    found = scheduled(case, cpu, record)
    assert not found.outcome.rejected
    assert found.served is not None and found.served.sizes == "exact for every size"
    check_outputs(case, found.function, cpu, [(1, 1), (3, 4), (4, 3), (13, 1), (1, 13), (5, 7)])


def test_tiles_of_an_open_batch_have_knobs_of_static_templates(cpu: Any) -> None:
    case = case_of("convolution")
    knobs = {"columns": 3, "blocks": 2, "row": 9}
    record = ladder(case, step(4, (1,), template="conv2d", version=1, knobs=knobs), step(None, (8,), own="rule"))
    found = scheduled(case, cpu, record)
    assert not found.outcome.rejected
    assert found.served is not None and found.served.rung == "exact"
    check_outputs(case, found.function, cpu, [(1,), (4,), (5,)])


def test_a_ladder_serves_other_functions_around_the_same_product(cpu: Any) -> None:
    case = case_of("dense")
    record = ladder(case, step(None, (1,), **rows(4)), exact="f" * 32)
    served = scheduled(case, cpu, record).served
    assert served is not None and (served.step, served.rung) == ("anchor", "anchor")

    little = ladder(case, step(None, (1,), gain=1.2, **rows(4)), exact="f" * 32)
    (said,) = scheduled(case, cpu, little).outcome.rejected
    assert said.reason == "it is 1.2 times as fast as TVM's default there; a borrowed record needs 1.25"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([step(None, (1,), **{**rows(4), "version": 7})], "version 7"),
        ([step(8, (1,), **rows(4)), step(None, (9,), **rows(4, 4))], "small: 4"),
        ([step(8, (1,), **rows(4)), step(None, (9,), gain=0.5, **rows(6))], "2 times as long as TVM's default at 9"),
        ([step(None, (1,), own="rule", gain=0.5)], "0.5 times as fast"),
        ([step(None, (1,), trace=([], [["x"]]))], ""),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason_and_the_rule_serves(
    steps: list[LadderStep], reason: str, cpu: Any
) -> None:
    case = case_of("dense")
    found = scheduled(case, cpu, ladder(case, *steps, anchor=None))
    (said,) = found.outcome.rejected
    assert isinstance(said, StepRejected) and reason in said.reason and said.record == "tuned"
    assert found.served is not None and found.served.rung == "template"


def test_another_number_of_symbols_is_refused(cpu: Any) -> None:
    case = case_of("dense")
    record = ladder(case, step(None, (1, 1), **rows(4)), symbols=2, anchor=None)
    (said,) = scheduled(case, cpu, record).outcome.rejected
    assert said.reason == "the record has 2 symbols"


def test_a_static_function_gets_the_knobs_of_the_step_for_its_size(cpu: Any) -> None:
    case = case_of("convolution")
    static = instance(case.mod["main"], (4,))
    times = TimesAt(at=(4,), run_s=1e-3, default_s=5e-3, exact=workload_key(main_module(static)))
    knobs = {"columns": 3, "blocks": 2, "row": 9}
    first = LadderStep(up_to=4, times=(times,), template="conv2d", version=1, knobs=knobs)
    record = ladder(case, first, step(None, (8,), own="rule"))

    hub = FakeHub(of_symbols=[record])
    served = Scheduling(static, cpu, hub).served
    assert served is not None
    assert (served.step, served.rung, served.template) == ("transfer", "transfer", "conv2d")
    assert (served.source, served.predicted_s, served.run_s) == ("tuned", 1e-3, None)

    other = Scheduling(instance(case.mod["main"], (5,)), cpu, hub).served
    assert other is not None and other.rung == "template"

    against = RecordEvidence(
        exact=times.exact or "", default_s=1.0, tuned_s=1.0, speedup=1.0, repeats=3, spread=0.0, admitted=False,
        output_max_rel_diff=0.0, threads=1, reason="no faster", tuner="template",
    )  # fmt: skip
    judged = Scheduling(static, cpu, FakeHub(of_symbols=[record], evidence=[against]))
    assert any("measured no faster" in said.reason for said in judged.outcome.rejected)
    assert judged.served is None or judged.served.rung != "transfer"


def test_a_static_product_gets_the_tiles_of_the_rows() -> None:
    case = case_of("dense")
    static = instance(case.mod["main"], (12,))
    exact = workload_key(main_module(static))
    for columns in (6, 5):  # tiles of five rows are none of its template's choices for twelve
        at = TimesAt(at=(12,), run_s=1e-3, default_s=5e-3, exact=exact)
        record = ladder(case, LadderStep(times=(at,), **rows(columns)))
        served = Scheduling(static, cpu_of(AVX512), FakeHub(of_symbols=[record])).served
        assert served is not None
        assert served.rung == ("transfer" if columns == 6 else "template")


def test_where_no_ladder_was_faster_than_tvms_default_the_rule_is_not_used(cpu: Any) -> None:
    case = case_of("dense")
    measured = RecordEvidence(
        exact=workload_key(case.mod), default_s=1.0, tuned_s=1.0, speedup=1.0, repeats=3, spread=0.0, admitted=False,
        output_max_rel_diff=0.0, threads=1, reason="no faster", tuner="ladder",
    )  # fmt: skip
    found = Scheduling(case.mod["main"], cpu, FakeHub(evidence=[measured]))
    assert found.served is None
    assert any("measured no faster than TVM's default by p 1" in said.reason for said in found.outcome.rejected)


def test_steps_alike_are_said_once() -> None:
    case = case_of("dense")
    same = ladder(case, step(4, (1,), **rows(4)), step(9, (5,), **rows(6)), step(None, (10,), own="rule"))
    assert ladder_text(same, ["batch"]) == "exact for batch <= 9, rule above"
    assert ladder_text(ladder(case, step(None, (1,), own="rule")), ["n"]) == "rule for every size"
