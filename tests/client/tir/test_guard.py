"""What TVM takes and should not: every case here gave wrong results, a crash or no code when TVM was asked to do it."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from tunehub.compiler.schedule.apply import apply_anchor, apply_exact
from tunehub.compiler.schedule.ladder import schedule_module
from tunehub.graph.numerics import fast_math
from tunehub.tir import guard as relax_guard
from tunehub.tir import layout_guard
from tunehub.tir.cuda import headers
from tunehub.tir.guard import (
    GuardError,
    check_features,
    check_function,
    check_headers,
    check_operations,
)
from tunehub.tir.traces import import_trace
from tunehub_registry.trace_rules import validate_trace

from ..compiler.outputs import difference

pytestmark = pytest.mark.slow

CONV = ["GetSBlock", [], ["conv2d_nchw", "main"], ["b90"]]
LAST = ["GetSBlock", [], ["compute", "main"], ["b91"]]
CONV_LOOPS = ["GetLoops", ["b90"], [], [f"l{i}" for i in range(91, 98)]]  # n, c, y, x, and the reduction
LAST_LOOPS = ["GetLoops", ["b91"], [], [f"l{i}" for i in range(91, 95)]]


AUTO_UNROLL = [
    ["Annotate", ["l91", 1], ["pragma_unroll_explicit"], []],
    ["Annotate", ["l91", 4096], ["pragma_auto_unroll_max_step"], []],
]


def parallel(loop: str) -> list[Any]:
    return ["Parallel", [loop], [], []]


def vectorize(loop: str) -> list[Any]:
    return ["Vectorize", [loop], [], []]


def unroll(loop: str) -> list[Any]:
    return ["Unroll", [loop], [], []]


def split(loop: str, inner: int) -> list[Any]:
    """Split into loops 1000 + n and 2000 + n."""
    return ["Split", [loop, None, inner], [1, 0], [f"l1{loop[1:]:0>3}", f"l2{loop[1:]:0>3}"]]


def layout(block: str, final: list[Any], buffer: int, kind: int, inverse: list[Any] | None = None) -> list[Any]:
    backward = inverse and {"ndim": len(final), "final": inverse, "inverse": None}
    return [
        "TransformLayout",
        [block, {"index_map": {"ndim": 4, "final": final, "inverse": backward}}],
        [buffer, kind, None, 1],
        [],
    ]


@pytest.fixture
def task(nets: Any, tasks_of: Any) -> Any:
    (found,) = tasks_of(nets.conv(channels=8, out=16, size=8))
    return found


@pytest.fixture
def apply(task: Any, target: Any) -> Any:
    def do(*instructions: list[Any]) -> Any:
        trace = [list(instructions), []]
        validate_trace(trace)
        schedule = apply_exact(task.mod, import_trace(trace))
        check_function(schedule.mod["main"], task.mod["main"], target)
        return schedule

    return do


@pytest.mark.parametrize(
    "change",
    [
        layout("b90", ["v0", "v2", "v3", "v1"], 0, 1),
        layout("b90", ["v0", ["//", "v1", 4], ["%", "v1", 4], "v2", "v3"], 0, 1),
        layout("b90", ["v0", ["//", "v1", 5], ["%", "v1", 5], "v2", "v3"], 0, 1),  # 20 places for 16 elements
        layout("b90", ["v1", ["+", ["*", "v2", 8], "v3"]], 0, 1, [0, "v0", ["//", "v1", 8], ["%", "v1", 8]]),
        layout("b90", ["v1", ["+", ["*", "v2", 9], "v3"]], 0, 1, [0, "v0", ["//", "v1", 9], ["%", "v1", 9]]),
    ],
)
def test_layouts_that_keep_every_element(change: list[Any], apply: Any, task: Any, target: Any) -> None:
    schedule = apply(CONV, change)
    assert difference(task.mod, schedule.mod) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (layout("b90", ["v1", ["+", ["*", "v2", 7], "v3"]], 0, 1, [0, "v0", ["//", "v1", 7], ["%", "v1", 7]]), "fit"),
        (layout("b90", ["v0", "v2", "v3"], 0, 1, ["v0", 0, "v1", "v2"]), "does not fit a buffer of shape"),
        (layout("b90", ["v0", "v1", "v3", "v2"], 1, 0), "parameter"),
        (layout("b90", ["v0", "v1", "v2", "v3"], 5, 0), "no buffer 5"),
        (
            ["TransformLayout", ["b90", {"index_map": {"ndim": 1, "final": ["v0"]}}], [0, 1, None, 0], []],
            "does not fit",
        ),
    ],
)
def test_layouts_that_lose_elements_or_change_parameters(change: list[Any], why: str, apply: Any) -> None:
    with pytest.raises(Exception, match=why):
        apply(CONV, change)


def test_a_parameter_that_is_written_keeps_its_layout(apply: Any) -> None:
    with pytest.raises(Exception, match="layout of a parameter"):
        apply(LAST, layout("b91", ["v0", "v1", "v3", "v2"], 0, 1))


def test_the_layout_of_a_large_buffer_is_not_tried(apply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ["+", ["*", "v2", 9], "v3"]  # leaves gaps, so TVM cannot prove it
    change = layout("b90", ["v1", odd], 0, 1, [0, "v0", ["//", "v1", 9], ["%", "v1", 9]])
    apply(CONV, change)
    monkeypatch.setattr(layout_guard, "MAX_TRIED", 100)
    with pytest.raises(Exception, match="does not fit"):
        apply(CONV, change)


def test_huge_strides_are_refused(apply: Any) -> None:
    huge = 1 << 40
    change = layout(
        "b90", ["v1", ["+", ["*", "v2", huge], "v3"]], 0, 1, [0, "v0", ["//", "v1", huge], ["%", "v1", huge]]
    )
    with pytest.raises(Exception, match="does not fit"):
        apply(CONV, change)
    with pytest.raises(GuardError, match="allocates"):
        apply(CONV, layout("b90", ["v0", ["//", "v1", 1 << 29], ["%", "v1", 1 << 29], "v2", "v3"], 0, 1))


@pytest.mark.parametrize(
    ("instructions", "why"),
    [
        ([parallel("l92"), parallel("l93")], "nested"),
        ([vectorize("l93"), vectorize("l94")], "vectors are nested"),
        ([["Fuse", ["l91", "l92", "l93", "l94"], [1], ["l1"]], split("l1", 1024), vectorize("l2001")], None),
        ([split("l94", 2048), vectorize("l2094")], "longer than 1024"),
        ([split("l94", 8192), unroll("l2094")], "unrolled 8192 times"),
        ([split("l94", 4096), unroll("l2094")], None),
        ([*AUTO_UNROLL, split("l93", 512), split("l94", 64), vectorize("l2094")], "unrolled 4096 times with 64"),
        ([vectorize("l91")], None),
        ([*AUTO_UNROLL, vectorize("l91")], "a vector of one element"),
        ([["Bind", ["l92"], ["threadIdx.x"], []]], "GPU threads"),
        ([split("l94", 1 << 31)], "steps"),
        ([["Annotate", ["l92", [0, 1]], ["software_pipeline_stage"], []]], "for GPUs"),
        ([["Annotate", ["b91", 1], ["double_buffer_scope"], []]], "for GPUs"),
        ([["Annotate", ["b91", True], ["meta_schedule.layout_rewrite_preproc"], []]], "does not copy"),
    ],
)
def test_loops_that_code_generation_refuses(instructions: list[Any], why: str | None, apply: Any) -> None:
    if why is None:
        apply(LAST, LAST_LOOPS, *instructions)
        return
    with pytest.raises(GuardError, match=why):
        apply(LAST, LAST_LOOPS, *instructions)


def test_a_copy_marked_as_packing_must_be_of_a_whole_free_parameter(apply: Any) -> None:
    mark = ["Annotate", ["b1", True], ["meta_schedule.layout_rewrite_preproc"], []]
    apply(CONV, ["CacheRead", ["b90", []], [1, "global"], ["b1"]], mark)
    with pytest.raises(GuardError, match="does not copy"):  # the padded data, which is no parameter
        apply(CONV, ["CacheRead", ["b90", []], [0, "global"], ["b1"]], mark)


def test_gpu_schedules_must_bind_every_statement_and_few_threads(nets: Any, tasks_of: Any) -> None:
    (task,) = tasks_of(nets.matmul(m=64, n=64))
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    block = ["GetSBlock", [], ["matmul", "main"], ["b0"]]
    loops = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]

    def check(*instructions: list[Any]) -> None:
        schedule = apply_exact(task.mod, import_trace([[block, loops, *instructions], []]))
        check_function(schedule.mod["main"], task.mod["main"], cuda)

    check(["Bind", ["l1"], ["blockIdx.x"], []], ["Bind", ["l2"], ["threadIdx.x"], []])
    with pytest.raises(GuardError, match="not bound"):
        check()
    with pytest.raises(GuardError, match="more than 1024 threads"):
        check(["Bind", ["l1"], ["threadIdx.y"], []], ["Bind", ["l2"], ["threadIdx.x"], []])
    with pytest.raises(GuardError, match="for CPUs"):
        check(["Parallel", ["l1"], [], []])
    with pytest.raises(GuardError, match="longer than 16"):
        check(["Vectorize", ["l2"], [], []])


def test_features_of_intrinsics() -> None:
    vnni = tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"})
    check_features(frozenset(["avx512vnni"]), vnni)
    check_features(frozenset(), tvm.target.Target("llvm"))
    with pytest.raises(GuardError, match="avx512vnni"):
        check_features(frozenset(["avx512vnni"]), tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"}))
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    check_features(frozenset(["sm_80", "sm_75"]), cuda)
    with pytest.raises(GuardError, match="sm_89"):
        check_features(frozenset(["sm_89", "sm_75"]), cuda)
    with pytest.raises(GuardError, match="avx2"):
        check_features(frozenset(["avx2"]), cuda)


def test_a_record_for_tensor_cores_needs_their_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = headers.Missing(reason="CUDA's crt/mma.h is not in /include")
    monkeypatch.setattr(relax_guard, "missing_for_tensor_cores", lambda: missing)
    check_headers(frozenset(["sm_80"]))
    with pytest.raises(GuardError, match=r"crt/mma\.h is not in /include: pip install .*nvidia-cuda-crt"):
        check_headers(frozenset(["sm_70"]))
    monkeypatch.setattr(relax_guard, "missing_for_tensor_cores", lambda: None)
    check_headers(frozenset(["sm_70"]))


def test_layouts_are_checked_for_anchored_records_too(
    nets: Any, tasks_of: Any, sketch_traces: Any, make_record: Any, make_hub: Any, target: Any
) -> None:
    (task,) = tasks_of(nets.conv())
    (other,) = tasks_of(nets.conv(relu=False))
    assert task.anchor == other.anchor and task.exact != other.exact
    trace = sketch_traces(task.mod)[0]
    hub = make_hub([make_record(task, trace)])
    outcome = schedule_module(other.mod, target, hub)
    assert outcome.rung == "anchor", outcome.rejected
    assert difference(other.mod, apply_anchor(other.mod, import_trace(trace), target).mod) < 1e-4
    position = next(i for i, inst in enumerate(trace[0]) if inst[0] == "TransformLayout")
    unflatten = [0, "v1", ["//", "v2", 7], ["%", "v2", 7]]  # rows of 8 elements
    trace[0][position] = layout("b0", [0, "v1", ["+", ["*", "v2", 7], "v3"]], 0, 1, unflatten)
    outcome = schedule_module(other.mod, target, make_hub([make_record(task, trace)]))
    assert outcome.schedule is None
    assert any("does not fit" in item.reason for item in outcome.rejected)


@pytest.mark.parametrize(("most", "copies"), [(16, None), (512, 512)])
def test_long_statements_are_unrolled_less_often(most: int, copies: int | None) -> None:
    """An exp as a polynomial, 512 times in the schedule of a softmax that called the C library: 0.7 s of compiling."""
    schedule = tvm.s_tir.Schedule(te_function(fast_math.exp))
    loop = schedule.get_loops(schedule.get_sblock("compute"))[0]
    schedule.annotate(loop, "pragma_unroll_explicit", 1)
    schedule.annotate(loop, "pragma_auto_unroll_max_step", most)
    if copies is None:
        check_operations(schedule.mod["main"])
        return
    with pytest.raises(GuardError, match=f"operations is unrolled {copies} times"):
        check_operations(schedule.mod["main"])


def te_function(compute: Any) -> Any:
    x = tvm.te.placeholder((64, 512), "float32", name="x")
    y = tvm.te.compute(x.shape, lambda *i: compute(x[i]), name="compute")
    return tvm.IRModule({"main": tvm.te.create_prim_func([x, y])})


@pytest.mark.parametrize(("length", "right"), [(128, True), (114, False), (64, True)])
def test_vectors_over_the_end_of_a_row_are_refused(length: int, right: bool) -> None:
    """As postprocessing makes them of a copy: all loops fused, and cut in vectors."""
    rows = 64
    data = tvm.te.placeholder((rows, length), "float32", "x")
    copy = tvm.te.compute((rows, length), lambda i, j: data[i, j] + 1.0, "copy")
    schedule = tvm.s_tir.Schedule(tvm.te.create_prim_func([data, copy]))
    fused = schedule.fuse(*schedule.get_loops(schedule.get_sblock("copy")))
    _, lanes = schedule.split(fused, [None, 64])
    schedule.vectorize(lanes)
    if right:
        relax_guard.check_rows(schedule.mod["main"])
    else:
        with pytest.raises(GuardError, match="over the ends of rows"):
            relax_guard.check_rows(schedule.mod["main"])
