"""Schedules that nothing says are faster than TVM's default are not used, and the report says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module, explain_module
from tunehub.compiler.schedule.apply import apply_transfer
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.transfer.trace import TransferError
from tunehub.tir.keys import workload_key
from tunehub.tir.operator_class import class_fields
from tunehub.tir.traces import import_trace
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.record import ScheduleRecord

from ...kernels.transfer.traces import conv2d, searched_trace, sketched_trace
from ...kernels.transfer.traces import record_of as traced
from ...kernels.transfer.transfer_cases import case, outputs
from ..conftest import Nets
from .conv_records import conv, conv_function, record_of

pytestmark = pytest.mark.slow

op = relax.op


def slower(exact: str, tuner: str, **changes: Any) -> RecordEvidence:
    """Evidence that this tuner's best for a workload is no faster than the default."""
    fields: dict[str, Any] = {
        "exact": exact, "default_s": 6e-6, "tuned_s": 7e-6, "speedup": 6 / 7, "repeats": 5, "spread": 0.0,
        "output_max_rel_diff": 0.0, "threads": 2, "admitted": False, "reason": "slower", "tuner": tuner, **changes,
    }  # fmt: skip
    return RecordEvidence(**fields)


def test_a_template_that_was_measured_slower_is_not_used(nets: Nets, target: Any, run: Any, make_hub: Any) -> None:
    mod, data = conv(nets), nets.array(1, 64, 14, 14)
    exact = workload_key(conv_function(mod, target))
    hub = make_hub(layout="auto", evidence=[slower(exact, "template")])
    found = run(compile_module(mod, target, hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    (item,) = [workload for workload in hub.workloads if workload.exact == exact]
    reason = "default knobs of conv2d: measured no faster than TVM's default by p 1: 7 against 6 µs"
    assert (item.rung, item.skipped, item.default_s, item.expected_s) == ("default", (reason,), 6e-6, 6e-6)
    assert item.passed_over[-1] == f"template: {reason}"


@pytest.mark.parametrize("changes", [{"template": "dense"}, {"tuned_s": 1e-6}, {"tuner": "meta_schedule"}])
def test_evidence_on_something_else_says_nothing(
    changes: dict[str, Any], nets: Nets, target: Any, make_hub: Any
) -> None:
    alone = conv_function(conv(nets), target)
    hub = make_hub(evidence=[slower(workload_key(alone), **{"tuner": "template", **changes})])
    assert schedule_function(alone["main"], target, hub)[0].rung == "template"


def test_a_record_of_the_workload_comes_before_evidence(nets: Nets, target: Any, make_hub: Any) -> None:
    alone = conv_function(conv(nets), target)
    hub = make_hub([record_of(alone)], evidence=[slower(workload_key(alone), "template")])
    assert schedule_function(alone["main"], target, hub)[0].rung == "exact"


def test_nothing_is_borrowed_for_what_was_measured_slower(nets: Nets, target: Any, make_hub: Any) -> None:
    tuned, asked = (conv_function(conv(nets, epilogue=epilogue), target) for epilogue in (True, False))
    hub = make_hub([record_of(tuned)], evidence=[slower(workload_key(asked), "template")])
    outcome, scheduled = schedule_function(asked["main"], target, hub)
    assert (outcome.rung, scheduled, len(outcome.rejected)) == (None, None, 2)
    assert all("measured no faster" in item.reason for item in outcome.rejected)


def test_no_trace_is_adapted_for_what_was_measured_slower(host: Any, make_hub: Any) -> None:
    source, other = case("conv3x3", 1), case("conv3x3", 2)
    record = traced(source, searched_trace(source.mod, host, 0))
    assert schedule_function(other.mod["main"], host, make_hub([record]))[0].rung == "transfer"
    hub = make_hub([record], evidence=[slower(workload_key(other.mod), "meta_schedule")])
    outcome, _ = schedule_function(other.mod["main"], host, hub)
    assert outcome.rung != "transfer"
    assert "measured no faster" in outcome.rejected[0].reason


def test_records_that_gain_nothing_by_their_own_times_are_not_used(nets: Nets, target: Any, make_hub: Any) -> None:
    tuned, asked = (conv_function(conv(nets, epilogue=epilogue), target) for epilogue in (True, False))
    even = make_hub([record_of(tuned, run_s=(1e-3,), default_s=1e-3)])
    outcome, _ = schedule_function(tuned["main"], target, even)
    assert outcome.rung == "template"
    assert "1 times as fast as TVM's default" in outcome.rejected[0].reason
    little = make_hub([record_of(tuned, run_s=(1e-3,), default_s=1.1e-3)])
    assert schedule_function(tuned["main"], target, little)[0].rung == "exact"
    outcome, _ = schedule_function(asked["main"], target, little)
    assert outcome.rung == "template"
    assert "a borrowed record needs 1.25" in outcome.rejected[0].reason


# -- by model

Make = Callable[[Any, Any], Any]


def _joined(times: int, axis: int) -> Make:
    return lambda b, x: b.emit(op.concat([x] * times, axis))


def _rows(b: Any, x: Any) -> Any:
    return b.emit(op.take(x, relax.const(np.array([3, 0, 3], "int64")), axis=0))


def _normalised(length: int) -> Make:
    weight, bias = (relax.const(np.full(length, value, "float32")) for value in (1.5, 0.5))
    return lambda b, x: b.emit(op.nn.layer_norm(x, weight, bias, axes=[-1]))


# What TVM's own loops do as well: copies of neighbours that one thread makes, and next to no work.
LEFT_TO_TVM: dict[str, tuple[tuple[int, ...], Make]] = {
    "scalar": ((), lambda b, x: b.emit(op.exp(x))),
    "one_element": ((1,), lambda b, x: b.emit(op.add(x, x))),
    "few_elements": ((7, 70), lambda b, x: b.emit(op.add(x, x))),
    "small_softmax": ((1, 10), lambda b, x: b.emit(op.nn.softmax(x))),
    "small_product": ((1, 8), lambda b, x: b.emit(op.matmul(x, relax.const(np.ones((8, 16), "float32"))))),
    "joined_blocks": ((1, 10, 7, 7, 16), _joined(3, 1)),
    "joined_channels": ((1, 32, 13, 13), _joined(4, 1)),
    "joined_rows": ((20, 64), _joined(2, 0)),
    "joined_in_rows": ((197, 64), _joined(3, 1)),
    "taken": ((12, 768), _rows),
    "normalised_rows_of_prime_length": ((31, 127), _normalised(127)),
    "sliced": ((64, 128), lambda b, x: b.emit(op.strided_slice(x, [0], [2], [60]))),
    "padded": ((1, 16, 14, 14), lambda b, x: b.emit(op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]))),
    "repeated": ((40, 64), lambda b, x: b.emit(op.tile(x, [2, 1]))),
}


@pytest.mark.parametrize("name", LEFT_TO_TVM)
def test_what_cannot_gain_is_left_to_tvm(name: str, nets: Nets, target: Any, make_hub: Any) -> None:
    shape, make = LEFT_TO_TVM[name]
    hub = make_hub(layout="auto")
    explain_module(nets.build(make, shape), target, hub)
    assert {workload.rung for workload in hub.workloads} <= {"default"}, hub.workloads
    reasons = [workload.passed_over[-1] for workload in hub.workloads]
    assert all("to gain" in reason or "no faster" in reason or "none is for this" in reason for reason in reasons), (
        reasons
    )


@pytest.mark.parametrize(
    ("shape", "make"),
    [
        ((1, 20, 28, 28, 16), _joined(3, 1)),  # worth threads
        ((64, 197), lambda b, x: b.emit(op.nn.relu(b.emit(op.add(x, x))))),
        ((64, 96), lambda b, x: b.emit(op.nn.softmax(x))),
        ((31, 128), _normalised(128)),
    ],
)
def test_what_gains_has_a_template(shape: tuple[int, ...], make: Make, nets: Nets, target: Any, make_hub: Any) -> None:
    hub = make_hub(layout="auto")
    explain_module(nets.build(make, shape), target, hub)
    assert [workload.rung for workload in hub.workloads] == ["template"]


# -- vectors of adapted traces


def trace_with_vectors(mod: Any, host: Any) -> list[Any]:
    """A random trace whose innermost loop over results makes vectors of eight or sixteen."""
    for seed in range(100):
        trace = searched_trace(mod, host, seed)
        tiles = [decision for _, decision in trace[1] if isinstance(decision, list) and len(decision) == 4]
        if tiles and tiles[-1][-1] in (8, 16):
            return trace
    raise AssertionError("the search space has no such vectors")


@pytest.mark.parametrize(("own", "narrow"), [((28, 56), False), ((29, 57), True), ((7, 1001), True)])
def test_vectors_of_less_than_half_the_lanes_are_refused(own: tuple[int, int], narrow: bool, host: Any) -> None:
    rows, columns = own
    source, other = product(32, 48, 64), product(rows, 48, columns)
    trace = import_trace(trace_with_vectors(source, host))
    apply_transfer(other, trace, host, narrow_vectors=True)
    if narrow:
        with pytest.raises(TransferError, match="its vectors of"):
            apply_transfer(other, trace, host)
    else:
        apply_transfer(other, trace, host)


def test_vectors_of_sketches_are_looked_at_too(host: Any) -> None:
    source = case("conv1x1", 1)
    trace = next(filter(None, (sketched_trace(source.mod, seed) for seed in range(20))))
    apply_transfer(source.mod, import_trace(trace), host)


def test_the_next_rung_serves_where_vectors_do_not_fit(host: Any, make_hub: Any) -> None:
    source, other = conv2d(16, 56, 16), conv2d(16, 57, 16)
    record = ScheduleRecord(
        exact="a" * 32, op="tuned", trace=tuple(trace_with_vectors(source, host)), run_s=(1e-6,), default_s=1e-1,
        source="test", **class_fields(source),
    )  # fmt: skip
    outcome, scheduled = schedule_function(other["main"], host, make_hub([record]))
    assert (outcome.rung, outcome.served.template) == ("template", "loops")
    assert "its vectors of" in outcome.rejected[0].reason
    shapes = [(1, 16, 57, 57), (16, 16, 3, 3), (1, 16, 57, 57)]
    found, expected = (outputs(mod, host, shapes) for mod in (tvm.IRModule({"main": scheduled}), other))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def product(rows: int, depth: int, columns: int) -> Any:
    x, w = (
        tvm.te.placeholder(shape, "float32", name=name)
        for name, shape in (("x", (rows, depth)), ("w", (depth, columns)))
    )
    function = tvm.te.create_prim_func([x, w, tvm.topi.nn.matmul(x, w)])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


@pytest.fixture(scope="module")
def host() -> Any:
    """As in the tests of transfers."""
    return tvm.target.Target({"kind": "llvm", "num-cores": 2})
