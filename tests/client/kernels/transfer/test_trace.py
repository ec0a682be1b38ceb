"""Traces that were made for one shape, on functions of other shapes: right results, or a refusal; never a crash."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm

from tunehub.compiler.schedule.apply import apply_transfer
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.compiler.schedule.transfer_sources import Transfers, nearest
from tunehub.exceptions import RecordUnusableError
from tunehub.kernels import cpu as templates
from tunehub.tir.guard import GuardError, check_function
from tunehub.tir.operator_class import anchor_class_of, class_fields
from tunehub.tir.traces import export_trace, import_trace
from tunehub_registry.template_record import TemplateRecord
from tunehub_registry.trace_rules import validate_trace

from ....sweeps import swept
from ....unoptimised import UNOPTIMISED
from .traces import conv2d, record_of, searched_trace, sketched_trace
from .transfer_cases import KINDS, Case, case, outputs

pytestmark = pytest.mark.slow

TARGETS = 3  # shapes for each source


def batches(size: int, whole: int, first: int) -> list[Any]:
    """The numbers of sources: the first few for every run, all in batches for the sweep."""
    return swept([range(first)], [range(start, start + size) for start in range(0, whole, size)])


@pytest.fixture(scope="module")
def host() -> Any:
    """A CPU with the vectors of x86-64's baseline, which every machine that runs these tests has."""
    return tvm.target.Target(UNOPTIMISED)


def source_trace(source: Case, target: Any, seed: int) -> list[Any]:
    trace = sketched_trace(source.mod, seed) if seed % 3 == 0 else None
    trace = trace or searched_trace(source.mod, target, seed)
    validate_trace(trace)
    return trace


@pytest.mark.no_cover
@pytest.mark.parametrize("numbers", batches(9, 324, 4))
def test_equal_to_the_default_for_random_pairs_of_shapes(host: Any, numbers: range) -> None:
    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    kinds = list(KINDS)
    for number in numbers:
        kind = kinds[number % len(kinds)]
        source = case(kind, 1000 + number)
        trace = import_trace(source_trace(source, host, number))
        for seed in range(TARGETS):
            other = case(kind, TARGETS * number + seed)
            try:
                scheduled = apply_transfer(other.mod, trace, host, narrow_vectors=True).mod
                check_function(scheduled["main"], other.mod["main"], host)
            except Exception as error:
                refusals[f"{kind}: {type(error).__name__}: {str(error).strip().splitlines()[-1][:90]}"] += 1
                continue
            counts[kind] += 1
            found, expected = (outputs(mod, host, other.shapes) for mod in (scheduled, other.mod))
            np.testing.assert_allclose(
                found, expected, rtol=1e-3, atol=1e-4, err_msg=f"{kind} {source.shapes} -> {other.shapes} ({number})"
            )
    done = sum(counts.values())
    logging.getLogger(__name__).info("%d transferred: %s; refused: %s", done, dict(counts), dict(refusals))
    assert done >= 0.8 * (done + sum(refusals.values())), refusals


def test_a_tile_that_holds_parts_of_rows_is_refused(host: Any) -> None:
    """The sketch tiles rows and columns as one loop; the epilogue would write sums that are not finished."""
    source, other = case("conv1x1", 1105), case("conv1x1", 317)
    trace = import_trace(source_trace(source, host, 105))
    with pytest.raises(GuardError, match="results of its neighbours"):
        apply_transfer(other.mod, trace, host)


EPILOGUES = (("conv3x3", "conv3x3_plain"), ("conv3x3_plain", "conv3x3"), ("dense", "dense_plain"))


@pytest.mark.parametrize("numbers", batches(11, 242, 5))
def test_equal_to_the_default_with_another_epilogue_and_shape(host: Any, numbers: range) -> None:
    served = 0
    for number in numbers:
        kinds = EPILOGUES[number % len(EPILOGUES)]
        source, other = case(kinds[0], 2000 + number), case(kinds[1], number)
        classes = [anchor_class_of(each.mod) for each in (source, other)]
        assert classes[0] is not None and classes[1] is not None
        assert classes[0].key == classes[1].key
        trace = import_trace(source_trace(source, host, number))
        try:
            scheduled = apply_transfer(other.mod, trace, host, anchored=True, narrow_vectors=True).mod
            check_function(scheduled["main"], other.mod["main"], host)
        except Exception as error:
            logging.getLogger(__name__).info("%s -> %s: %s", source.shapes, other.shapes, error)
            continue
        served += 1
        found, expected = (outputs(mod, host, other.shapes) for mod in (scheduled, other.mod))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4, err_msg=f"{kinds} {number}")
    assert served >= 0.6 * (len(numbers) - 1)


def test_a_neighbour_with_another_epilogue_serves_when_there_is_no_closer_one(host: Any, make_hub: Any) -> None:
    source, other = case("conv3x3_plain", 1), case("conv3x3", 2)
    record = record_of(source, searched_trace(source.mod, host, 0), op="plain")
    outcome, scheduled = schedule_function(other.mod["main"], host, make_hub([record]))
    assert (outcome.rung, outcome.served.source, outcome.rejected) == ("transfer", "plain", ())
    found = outputs(tvm.IRModule({"main": scheduled}), host, other.shapes)
    np.testing.assert_allclose(found, outputs(other.mod, host, other.shapes), rtol=1e-3, atol=1e-4)
    closer = record_of(case("conv3x3", 1), searched_trace(case("conv3x3", 1).mod, host, 0), op="closer")
    assert schedule_function(other.mod["main"], host, make_hub([record, closer]))[0].served.source == "closer"


def test_threads_and_shared_memory_of_a_gpu_fit_or_the_transfer_is_refused() -> None:
    from tvm.s_tir import meta_schedule as ms

    from tunehub_builder.tuning.intrinsics import load_cpu_intrinsics

    load_cpu_intrinsics()
    gpu = tvm.target.Target(
        {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    )
    source, regular, prime = conv2d(64, 56, 64), conv2d(128, 28, 128), conv2d(61, 29, 67)
    served: Counter[str] = Counter()
    for seed in range(1, 40):
        rules = ms.space_generator.PostOrderApply(
            sch_rules=ms.ScheduleRule.create("cuda"), postprocs=ms.Postproc.create("cuda"),
            mutator_probs=ms.Mutator.create("cuda"),
        )  # fmt: skip
        context = ms.TuneContext(
            mod=source, target=gpu, space_generator=rules, task_name="test", rand_state=seed, num_threads=1
        )
        trace = import_trace(export_trace(context.generate_design_space()[0].trace))
        for name, mod in (("source", source), ("regular", regular), ("prime", prime)):
            try:
                check_function(apply_transfer(mod, trace, gpu).mod["main"], mod["main"], gpu)
                served[name] += 1
            except Exception as error:
                refused = "VerifyGPUCode" in str(error) or type(error).__name__ in ("GuardError", "ScheduleError")
                assert refused, error
        if served["source"] > 1:  # random points of the search space are seldom legal at all
            break
    assert served["regular"] > 0


def test_a_function_without_a_record_gets_that_of_a_neighbour(host: Any, make_hub: Any) -> None:
    source, other = case("conv3x3", 1), case("conv3x3", 2)
    hub = make_hub([record_of(source, searched_trace(source.mod, host, 0))])
    outcome, scheduled = schedule_function(other.mod["main"], host, hub)
    served = outcome.served
    assert (served.rung, served.package, served.source, served.run_s) == ("transfer", "p 1", "tuned", None)
    assert served.predicted_s is not None and served.predicted_s > 0
    assert scheduled is not None
    found = outputs(tvm.IRModule({"main": scheduled}), host, other.shapes)
    np.testing.assert_allclose(found, outputs(other.mod, host, other.shapes), rtol=1e-3, atol=1e-4)


def test_the_next_source_is_tried_when_one_does_not_fit(host: Any, make_hub: Any) -> None:
    source, other = case("conv3x3", 1), case("conv3x3", 2)
    good = record_of(source, searched_trace(source.mod, host, 0), op="good")
    broken = [[["GetSBlock", [], ["nosuchblock", "main"], ["b0"]], ["ComputeInline", ["b0"], [], []]], []]
    faster = {"run_s": (1e-7,)}
    hub = make_hub([record_of(source, broken, op="broken", **faster), good])
    outcome, _ = schedule_function(other.mod["main"], host, hub)
    assert (outcome.rung, outcome.served.source, len(outcome.rejected)) == ("transfer", "good", 1)
    assert "broken" in str(outcome.rejected[0].record)


@pytest.mark.parametrize(
    "changes",
    [{"default_s": 1e-6}, {"extents": (1, 2)}, {"extents": ()}, {"op_class": "matmul"}, {"op_class": None}],
    ids=str,
)
def test_what_promises_nothing_is_not_tried(changes: dict[str, Any], host: Any, make_hub: Any) -> None:
    source, other = case("conv3x3", 1), case("conv3x3", 2)
    changes = {"anchor_class": None, **changes}
    hub = make_hub([record_of(source, searched_trace(source.mod, host, 0), **changes)])
    outcome, _ = schedule_function(other.mod["main"], host, hub)
    assert outcome.rung != "transfer" and outcome.rejected == ()


def test_a_template_for_the_operator_comes_before(host: Any, make_hub: Any) -> None:
    source, other = case("dense", 1), case("dense", 2)
    hub = make_hub([record_of(source, searched_trace(source.mod, host, 0))])
    assert schedule_function(other.mod["main"], host, hub)[0].rung == "template"


def knobs_of(source: Case, target: Any, **changes: Any) -> TemplateRecord:
    match = templates.find(source.mod)
    assert match is not None
    knobs = match.template.default_knobs(match.workload, templates.machine_of(target))
    return TemplateRecord(
        exact="a" * 32, op="tuned", run_s=(1e-6,), default_s=1e-1, source="test", template=match.template.NAME,
        version=match.template.VERSION, knobs={**msgspec.to_builtins(knobs), **changes}, **class_fields(source.mod),
    )  # fmt: skip


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that are so small that TVM's own loops would serve have templates, too."""
    monkeypatch.setattr("tunehub.kernels.cpu.doubt", lambda *_: None)


@pytest.mark.usefixtures("little_work")
def test_knobs_of_a_neighbour_serve_when_they_are_asked_for(host: Any, make_hub: Any) -> None:
    source, other = case("chain", 1), case("chain", 2)
    hub = make_hub([knobs_of(source, host, lanes=1)])
    by_neighbour = Transfers(knobs=nearest)
    outcome, scheduled = schedule_function(other.mod["main"], host, hub, transfers=by_neighbour)
    assert (outcome.rung, outcome.served.template, outcome.served.source) == ("transfer", "elementwise", "tuned")
    found = outputs(tvm.IRModule({"main": scheduled}), host, other.shapes)
    np.testing.assert_allclose(found, outputs(other.mod, host, other.shapes), rtol=1e-5)
    assert schedule_function(other.mod["main"], host, hub)[0].rung == "template"  # the rule is the default


@pytest.mark.usefixtures("little_work")
def test_knobs_that_do_not_fit_leave_the_rule(host: Any, make_hub: Any) -> None:
    source, other = case("chain", 1), case("chain", 2)
    hub = make_hub([knobs_of(source, host, lanes=64), record_of(source, [[], []])])
    outcome, _ = schedule_function(other.mod["main"], host, hub, transfers=Transfers(knobs=nearest))
    assert (outcome.rung, len(outcome.rejected)) == ("template", 1)
    assert "lanes: 64" in outcome.rejected[0].reason


def test_a_strategy_that_fails_costs_nothing(host: Any, make_hub: Any) -> None:
    def broken(own: Any, neighbours: Any) -> Any:
        raise RuntimeError("no idea")

    source, other = case("conv3x3", 1), case("conv3x3", 2)
    hub = make_hub([record_of(source, searched_trace(source.mod, host, 0))])
    outcome, _ = schedule_function(other.mod["main"], host, hub, transfers=Transfers(traces=broken))
    assert outcome.rung != "transfer" and "no idea" in outcome.rejected[0].reason
    outcome, _ = schedule_function(other.mod["main"], host, hub, transfers=Transfers(traces=nearest))
    assert outcome.rung == "transfer"


def test_strict_mode_hears_of_a_bad_record(host: Any, make_hub: Any) -> None:
    class Strict(make_hub):  # type: ignore[misc]
        def by_class(self, key: str) -> Any:
            raise RecordUnusableError("the record is not used", remedy="report it")

    with pytest.raises(RecordUnusableError):
        schedule_function(case("conv3x3", 2).mod["main"], host, Strict())


def test_a_trace_on_its_own_function_keeps_its_tiles(host: Any) -> None:
    source = case("conv3x3", 1)
    trace = searched_trace(source.mod, host, 3)
    decisions = [value for _, value in trace[1]]
    again = export_trace(apply_transfer(source.mod, import_trace(trace), host, narrow_vectors=True).trace)
    assert [value for _, value in again[1]][: len(decisions)] == decisions
