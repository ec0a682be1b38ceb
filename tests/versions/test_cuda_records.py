"""Records for CUDA on every supported TVM: keys are those of the release that tuned them, and their traces apply.

No GPU is needed: nothing is generated or run. ``cuda_records.jsonl`` has some records that were tuned with TVM 0.27 on
an H200, a line each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.relax_nets import net

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

from tvm import relax  # noqa: E402

TARGET = {"kind": "cuda", "arch": "sm_90"}
FILE = Path(__file__).parent / "cuda_records.jsonl"


def _conv(channels: int, data: tuple[int, ...], kernel: int) -> Any:
    def make(builder: Any, x: Any) -> Any:
        rng = np.random.default_rng(0)
        weight = relax.const(rng.standard_normal((channels, data[1], kernel, kernel), "float32"))
        bias = relax.const(rng.standard_normal((1, channels, 1, 1), "float32"))
        y = builder.emit(relax.op.nn.conv2d(x, weight, padding=kernel // 2))
        return relax.op.nn.relu(builder.emit(relax.op.add(y, bias)))

    return net(make, data)


NETS: dict[str, Callable[[], Any]] = {
    "pointwise": lambda: _conv(16, (1, 64, 55, 55), 1),
    "conv": lambda: _conv(64, (1, 16, 55, 55), 3),
    "softmax": lambda: net(lambda _, x: relax.op.nn.softmax(x), (1, 12, 128, 128)),
    "matmul": lambda: net(lambda _, a, b: relax.op.matmul(a, b), (1, 12, 128, 128), (1, 12, 128, 64)),
}


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    """By net."""
    from tunehub_registry.record import ScheduleRecord, read_records

    with FILE.open("rb") as stream:
        found = list(read_records(stream, FILE.name))
    assert all(isinstance(record, ScheduleRecord) for record in found)
    return dict(zip(NETS, found, strict=True))


@pytest.mark.parametrize("name", NETS)
def test_keys_are_those_of_the_release_that_tuned(name: str, records: dict[str, Any]) -> None:
    from tunehub_builder.tuning.tasks import extract_tasks

    (task,) = extract_tasks([(name, NETS[name]())], tvm.target.Target(TARGET))
    record = records[name]
    assert (task.exact, task.anchor) == (record.exact, record.anchor)
    assert task.classes["op_class"] == record.op_class
    assert tuple(task.classes["extents"]) == record.extents


@pytest.mark.parametrize("name", NETS)
def test_traces_apply_and_keep_to_the_limits(name: str, records: dict[str, Any]) -> None:
    from tunehub.compiler.schedule.apply import apply_exact
    from tunehub.tir.guard import check_features, check_function
    from tunehub.tir.traces import import_trace
    from tunehub_builder.tuning.tasks import extract_tasks
    from tunehub_registry.trace_rules import required_features

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    (task,) = extract_tasks([(name, NETS[name]())], target)
    trace = list(records[name].trace)
    check_features(required_features(trace), target)
    scheduled = apply_exact(task.mod, import_trace(trace)).mod["main"]
    check_function(scheduled, task.mod["main"], target)
    assert "threadIdx.x" in scheduled.script()


def test_ladders_are_lowered_and_found_right_on_both_sides_of_their_bounds() -> None:
    """TVM 0.26 leaves the name of a buffer's memory as it was when shapes become known: views are to have none."""
    from tunehub.compiler.preparing import prepare
    from tunehub.compiler.schedule.size_ladder import by_ladder
    from tunehub.kernels.cuda.knobs import knob_space
    from tunehub.tir.keys import workload_key
    from tunehub.tir.nodes import main_module
    from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt

    weight = relax.const(np.ones((96, 64), "float32"))
    rows = tvm.tirx.Var("rows", "int64")
    target = tvm.target.Target(TARGET)
    prepared = prepare(net(lambda _, x: relax.op.matmul(x, weight), (rows, 96)), target)
    (function,) = [each for each in prepared.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    choices = knob_space(main_module(function), target)

    def step(up_to: int | None, size: int, choice: Any) -> LadderStep:
        times, knobs = (TimesAt(at=(size,), run_s=1e-6, default_s=1e-5),), dict(choice.knobs)
        return LadderStep(up_to=up_to, template=choice.template, version=choice.version, knobs=knobs, times=times)

    record = LadderRecord(
        exact=workload_key(main_module(function)), op="matmul", source="test", symbols=1,
        ladder=(step(7, 4, choices[0]), step(None, 33, choices[6])),
    )  # fmt: skip
    assert "branch" in by_ladder(function, target, record, lambda _: None).mod.script()


def test_kernels_for_warpgroups_are_for_tvms_that_have_what_they_are_made_of() -> None:
    from tunehub.kernels.cuda.gemm.hopper.rule import has_functions
    from tunehub.target.tvm_generation import require_relax

    assert has_functions() == (require_relax().release >= (0, 27))


@pytest.mark.parametrize("template", ["cuda_tiles", "low_batch", "warpgroups", "bulk_copies", "low_batch_warpgroups"])
def test_knobs_that_this_tvm_has_no_kernel_for_serve_after_other_records(template: str) -> None:
    from tunehub.compiler.current import is_current
    from tunehub.kernels.cuda import rules
    from tunehub.kernels.cuda.gemm.hopper.rule import has_functions
    from tunehub_registry.template_record import TemplateRecord

    assert any(template in getattr(rule, "TEMPLATES", ()) for rule in rules.RULES)
    of_functions = "warpgroup" in template or template == "bulk_copies"
    key, measured = "0" * 32, {"op": "matmul", "run_s": (1e-5,), "default_s": None, "source": "template"}
    record = TemplateRecord(exact=key, anchor=key, template=template, version=1, knobs={}, **measured)
    assert is_current(record) == (has_functions() or not of_functions)
