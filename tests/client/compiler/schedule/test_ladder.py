"""Records for one function serve others with the same anchor block, whatever is fused around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import relax

from tunehub.compiler.schedule.ladder import schedule_function, schedule_module

from ..outputs import difference

pytestmark = pytest.mark.slow

op = relax.op
EPILOGUES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "none": lambda b, x, y, bias: y,
    "bias": lambda b, x, y, bias: b.emit(op.add(y, bias)),
    "relu": lambda b, x, y, bias: b.emit(op.nn.relu(y)),
    "bias_relu": lambda b, x, y, bias: b.emit(op.nn.relu(b.emit(op.add(y, bias)))),
    "residual": lambda b, x, y, bias: b.emit(op.nn.relu(b.emit(op.add(x, b.emit(op.add(y, bias)))))),
    "bias_relu_sigmoid": lambda b, x, y, bias: b.emit(op.sigmoid(b.emit(op.nn.relu(b.emit(op.add(y, bias)))))),
}


@pytest.fixture
def task_of(nets: Any, tasks_of: Any) -> Callable[[str], Any]:
    def task(epilogue: str) -> Any:
        def make(b: Any, x: Any) -> Any:
            y = b.emit(op.nn.conv2d(x, nets.const(16, 16, 3, 3), padding=1))
            return EPILOGUES[epilogue](b, x, y, nets.const(1, 16, 1, 1))

        (found,) = tasks_of(nets.build(make, (1, 16, 8, 8)))
        return found

    return task


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("source", ["bias_relu", "none", "residual"])
@pytest.mark.few(3)
def test_every_epilogue_is_served(
    source: str, epilogue: str, task_of: Any, sketch_traces: Any, make_record: Any, make_hub: Any, target: Any
) -> None:
    tuned, asked = task_of(source), task_of(epilogue)
    hub = make_hub([make_record(tuned, sketch_traces(tuned.mod)[0])])
    outcome = schedule_module(asked.mod, target, hub)
    assert outcome.rung == ("exact" if source == epilogue else "anchor"), outcome.rejected
    assert difference(asked.mod, outcome.schedule.mod) < 1e-4


def test_the_best_record_that_applies_serves(
    task_of: Any, sketch_traces: Any, make_record: Any, make_hub: Any, target: Any
) -> None:
    tuned, asked = task_of("bias_relu"), task_of("bias")
    trace = sketch_traces(tuned.mod)[0]
    broken = [[["GetSBlock", [], ["nosuchblock", "main"], ["b0"]], ["ComputeInline", ["b0"], [], []]], []]
    hub = make_hub(
        [make_record(tuned, broken), make_record(tuned, [[["NoSuchKind", [], [], []]], []]), make_record(tuned, trace)]
    )
    outcome = schedule_module(asked.mod, target, hub)
    assert outcome.rung == "anchor"
    assert len(outcome.rejected) >= 1 and "NoSuchKind" in outcome.rejected[-1].reason


def test_a_function_keeps_its_name(
    task_of: Any, sketch_traces: Any, make_record: Any, make_hub: Any, target: Any
) -> None:
    task = task_of("bias_relu")
    hub = make_hub([make_record(task, sketch_traces(task.mod)[0])])
    named = task.mod["main"].with_attr("global_symbol", "conv")
    assert schedule_function(named, target, hub)[1].attrs["global_symbol"] == "conv"
    nameless = task.mod["main"].without_attr("global_symbol")
    assert "global_symbol" not in schedule_function(nameless, target, hub)[1].attrs
    assert schedule_function(nameless, target, make_hub())[0].rung == "template"


def test_nothing_is_raised_for_a_record_that_lost_its_parts(
    task_of: Any, make_record: Any, make_hub: Any, target: Any
) -> None:
    task = task_of("relu")
    for trace in ([[], []], [["x"], []], [[None], [None]]):
        outcome = schedule_module(task.mod, target, make_hub([make_record(task, trace)]))
        assert (outcome.schedule is None) == bool(outcome.rejected)
