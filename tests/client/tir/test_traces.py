"""Traces become portable data and back, and what TVM and the sketches write passes the rules."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tunehub.compiler.schedule.apply import apply_exact
from tunehub.tir.guard import check_function
from tunehub.tir.traces import export_trace, import_trace
from tunehub_registry.trace_rules import validate_trace

pytestmark = pytest.mark.slow


def check(task: Any, schedule: Any, target: Any) -> Any:
    """Export, validate, import and replay: the same module comes out. Returns the portable trace."""
    portable = export_trace(schedule.trace)
    assert json.loads(json.dumps(portable)) == portable
    validate_trace(portable)
    assert_plain(portable)
    replayed = apply_exact(task.mod, import_trace(portable))
    assert tvm_ffi.structural_equal(replayed.mod, schedule.mod)
    check_function(replayed.mod["main"], task.mod["main"], target)
    return portable


def assert_plain(root: Any) -> None:
    """Nothing in an exported trace is an object of TVM, not even its str (0.25 crashes when one is copied)."""
    pending: list[Any] = [root]
    while pending:
        value = pending.pop()
        assert type(value) in (dict, list, str, int, float, bool, type(None))
        pending.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else [])


@pytest.mark.parametrize("kind", ["conv", "matmul", "pointwise"])
@pytest.mark.few(1)
def test_sketches_round_trip(kind: str, nets: Any, tasks_of: Any, sketch_traces: Any, target: Any) -> None:
    pointwise = nets.build(lambda b, x: b.emit(relax.op.nn.conv2d(x, nets.const(32, 16, 1, 1))), (1, 16, 7, 7))
    (task,) = tasks_of({"conv": nets.conv(), "matmul": nets.matmul(n=96), "pointwise": pointwise}[kind])
    traces = sketch_traces(task.mod)
    assert len(traces) > 1
    for trace in traces:
        portable = check(task, apply_exact(task.mod, import_trace(trace)), target)
        maps = [inst[1][1] for inst in portable[0] if inst[0] == "TransformLayout"]
        assert maps and all(isinstance(value, dict) for value in maps)


@pytest.mark.parametrize("kind", ["conv", "matmul", "softmax"])
@pytest.mark.few(1)
def test_stock_spaces_round_trip(
    kind: str, nets: Any, tasks_of: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TuneContext imports the intrinsics of all machines, which takes 7 to 20 s; none is needed here.
    monkeypatch.setitem(sys.modules, "tvm.s_tir.tensor_intrin", ModuleType("tvm.s_tir.tensor_intrin"))
    op = relax.op
    make = {
        "conv": lambda: nets.conv(channels=16, out=48, size=14),
        "matmul": lambda: nets.build(
            lambda b, x: b.emit(op.add(b.emit(op.matmul(x, nets.const(48, 96))), nets.const(96))), (32, 48)
        ),
        "softmax": lambda: nets.build(lambda b, x: b.emit(op.nn.softmax(x)), (1, 4, 32, 32)),
    }
    (task,) = tasks_of(make[kind]())
    assert kind == "softmax" or list(task.mod["main"].attrs["layout_free_buffers"])
    context = ms.TuneContext(
        mod=task.mod, target=target, space_generator="post-order-apply", rand_state=1, num_threads=1
    ).clone()
    kinds: set[str] = set()
    for design in context.generate_design_space():
        for seed in (1, 2):
            schedule = Schedule(task.mod, seed=seed, error_render_level="none")
            type(design.trace)(design.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            if all(postproc.apply(schedule) for postproc in context.space_generator.postprocs):
                kinds.update(instruction[0] for instruction in check(task, schedule, target)[0])
    assert {"SamplePerfectTile", "TransformLayout"} <= kinds or kind == "softmax"


def test_other_index_maps_round_trip(nets: Any, tasks_of: Any, target: Any) -> None:
    (task,) = tasks_of(nets.conv())
    schedule = Schedule(task.mod)
    schedule.transform_block_layout(schedule.get_sblock("compute"), lambda n, c, y, x: (n, c, y * 8 + x))
    portable = check(task, schedule, target)
    merged = ["+", ["*", "v2", 8], "v3"]
    assert portable[0][-1][2] == [{"index_map": {"ndim": 4, "final": ["v0", "v1", merged], "inverse": None}}]


def test_an_index_map_that_is_not_arithmetic_is_not_exported(nets: Any, tasks_of: Any) -> None:
    (task,) = tasks_of(nets.conv())
    schedule = Schedule(task.mod)
    index_map = tvm.tirx.IndexMap.from_func(lambda n, c, y, x: [n, c, tvm.tirx.min(y, 100), x], ndim=4)
    schedule.transform_layout(
        schedule.get_sblock("conv2d_nchw"), ("write", 0), index_map, assume_injective_transform=True
    )
    with pytest.raises(ValueError, match=r"only \+ - \* // %"):
        export_trace(schedule.trace)


def test_operators_round_trip(nets: Any) -> None:
    from tunehub.tir.traces import _import_index_map, export_index_map

    expression = ["-", ["+", ["*", "v0", 8], ["//", "v1", 2]], ["%", "v1", 2]]
    content = {"ndim": 2, "final": [expression, 0], "inverse": None}
    assert export_index_map(_import_index_map(content)) == {"index_map": content}


@pytest.mark.parametrize(
    "instruction", [["NoSuchKind", [], [], []], ["Unroll", ["l7"], [], []], ["Unroll", [], [], [], []]]
)
def test_what_the_rules_refuse_is_an_exception_here(instruction: list[Any]) -> None:
    with pytest.raises(Exception):  # noqa: B017 - TVM's own kinds are among them
        import_trace([[instruction], []])
