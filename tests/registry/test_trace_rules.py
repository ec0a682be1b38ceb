from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunehub_registry.exceptions import TraceError
from tunehub_registry.trace_rules import TraceLimits, required_features, validate_trace

pytestmark = pytest.mark.fast

BLOCK = ["GetSBlock", [], ["C", "main"], ["b0"]]
LOOPS = ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]
TILE = ["SamplePerfectTile", ["l1"], [2, 64], ["v4", "v5"]]
CATEGORY = ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v4"]]


def index_map(final: list[Any], inverse: dict[str, Any] | None = None) -> dict[str, Any]:
    content = {"ndim": 2, "final": final, "inverse": inverse and inverse["index_map"]}
    return {"index_map": content}


def trace(*more: list[Any], decisions: list[Any] | None = None) -> list[Any]:
    """A trace of a block and its loops, and `more` from index 2 on."""
    return [[BLOCK, LOOPS, *more], decisions or []]


def refused(value: object, match: str) -> TraceError:
    with pytest.raises(TraceError, match=match) as caught:
        validate_trace(value)
    return caught.value


def test_real_traces_are_accepted(llvm_trace: list[Any], cuda_trace: list[Any], vnni_trace: list[Any]) -> None:
    assert required_features(llvm_trace) == frozenset()
    assert required_features(cuda_trace) == frozenset()
    assert required_features(vnni_trace) == {"avx512vnni"}
    validate_trace(tuple(llvm_trace))


@pytest.mark.parametrize(
    "instruction",
    [
        ["Fuse", ["l1", "l2"], [1], ["l4"]],
        ["Split", ["l1", "None", 4], [True, False], ["l4", "l5"]],
        ["Split", ["l1", None, 4], [1], ["l4", "l5"]],
        ["Split", ["l1", 2, 4], [0, 0], ["l4", "l5"]],
        ["Reorder", ["l2", "l1"], [], []],
        ["ReorderBlockIterVar", ["b0", [1, 0, 2]], [], []],
        ["AddUnitLoop", ["b0"], [], ["l4"]],
        ["Unroll", ["l1"], [], []],
        ["Bind", ["l1"], ["threadIdx.x"], []],
        ["CacheRead", ["b0", ["b0"]], [0, "shared.dyn"], ["b4"]],
        ["ReIndex", ["b0"], [0, 1], ["b4"]],
        ["RFactor", ["l1"], [0], ["b4"]],
        ["StorageAlign", ["b0"], [0, -2, 32, 8], []],
        ["SetScope", ["b0"], [0, "shared"], []],
        ["Blockize", ["l3"], [1], ["b4"]],
        ["Blockize", [["b0"]], [1], ["b4"]],
        ["PadEinsum", ["b0"], [[16, 16, 16]], []],
        ["TransformLayout", ["b0", index_map(["v1", "v0"])], [0, 1, None, 0], []],
        ["TransformLayout", ["b0", index_map(["v1", "v0"])], [64, 0, None, True], []],
        ["TransformBlockLayout", ["b0"], [index_map([["+", ["*", "v0", 4], "v1"]])], []],
        ["ComputeInline", ["b0"], [], []],
        ["Annotate", ["l1", [0, 0, 1]], ["software_pipeline_stage"], []],
        ["Annotate", ["b0", '""'], ["meta_schedule.auto_tensorize_init"], []],
        ["Annotate", ["b0", '"wmma_sync_16x16x16_f16f16f32"'], ["meta_schedule.auto_tensorize"], []],
        ["Annotate", ["b0", True], ["meta_schedule.random_compute_producer"], []],
        ["Annotate", ["b0", True], ["meta_schedule.layout_rewrite_preproc"], []],
        ["Annotate", ["b0", 1], ["meta_schedule.layout_rewrite_preproc"], []],
        ["Unannotate", ["b0"], ["meta_schedule.parallel"], []],
        ["EnterPostproc", [], [], []],
    ],
)
def test_what_tvm_writes_is_accepted(instruction: list[Any]) -> None:
    validate_trace(trace(instruction))


@pytest.mark.parametrize(
    ("intrinsic", "features"),
    [
        ("dot_16x4_vnni", {"avx512vnni"}),
        ("dot_16x4_avx512", {"avx512f", "avx512bw"}),
        ("dot_4x4_i8i8s32_sdot", {"neon", "dotprod"}),
        ("dp4a_s8s8s32", {"sm_61"}),
        ("wmma_sync_16x16x16_f16f16f32_trans", {"sm_70"}),
        ("wmma_store_16x16x16_s32_shared_dyn", {"sm_72"}),
        ("mma_sync_m16n8k8_f16f16f32", {"sm_75"}),
        ("mma_f16f16f32_trans_a_trans_b", {"sm_80"}),
        ("mma_ldmatrix_e4m3_b_trans", {"sm_89"}),
    ],
)
def test_intrinsics_name_their_features(intrinsic: str, features: set[str]) -> None:
    assert required_features(trace(["Tensorize", ["l3"], [intrinsic, True], []])) == features


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        (["UnsafeSetDType", ["b0"], [0, "float16"], []], "changes results"),
        (["UnsafeHideBufferAccess", ["b0"], ["read", [0]], []], "hides accesses"),
        (["TransformLayout", ["b0", "{}"], [0, 0, None, True], []], "serialised"),
        (["TransformLayout", ["b0", index_map(["v1", "v0"])], [0, 0, "{}", True], []], "not allowed"),
        (["TransformLayout", ["b0", index_map(["v1", "v0"])], [65, 0, None, True], []], "not allowed"),
        (["TransformLayout", ["b0", index_map(["v1", "v0"])], [0, 2, None, True], []], "not allowed"),
        (["TransformLayout", ["b0", index_map(["v1", "v0"])], [0, 0, None, 2], []], "not allowed"),
        (["TransformLayout", ["b0", index_map(["v1", "v0"])], [0, 0, None], []], "expected 4 attributes"),
        (["TransformLayout", ["b0"], [0, 0, None, True], []], "a block and an index map"),
        (["TransformLayout", ["l1", index_map(["v0"])], [0, 0, None, True], []], "kind b"),
        (["TransformBlockLayout", ["b0"], ["{}"], []], "serialised"),
        (["TransformBlockLayout", ["b0"], [index_map(["v0"], inverse=index_map(["v0"]))], []], "not allowed"),
        (["Split", ["l1", 7, 8], [True, True], ["l4", "l5"]], "not allowed"),
        (["Annotate", ["b0", index_map(["v0"])], ["meta_schedule.parallel"], []], "not an integer"),
        (["Annotate", ["b0", 2], ["meta_schedule.layout_rewrite_preproc"], []], "from 0 to 1"),
        (["Merge", ["l1", "l1"], [], ["l4"]], "crashes"),
        (["NoSuchKind", [], [], []], "not on the allow-list"),
        (["Annotate", ["b0", '"int x;"'], ["pragma_import_c"], []], "pragma_import_c"),
        (["Annotate", ["b0", '"x.ll"'], ["pragma_import_llvm"], []], "pragma_import_llvm"),
        (["Annotate", ["l1", 1], ["pragma_debug_skip_region"], []], "pragma_debug_skip_region"),
        (["Annotate", ["l1", 10**9], ["meta_schedule.parallel"], []], "from 0 to 65536"),
        (["Annotate", ["l1", -1], ["meta_schedule.vectorize"], []], "from 0 to 1024"),
        (["Annotate", ["l1", 1.5], ["pragma_auto_unroll_max_step"], []], "from 0 to 4096"),
        (["Annotate", ["b0", '"SSXR"'], ["meta_schedule.tiling_structure"], []], "not allowed"),
        (["Annotate", ["b0", "SSR"], ["meta_schedule.tiling_structure"], []], "quoted text"),
        (["Annotate", ["b0", '"evil.rule"'], ["schedule_rule"], []], "not allowed"),
        (["Annotate", ["l1", [0, 100]], ["software_pipeline_order"], []], "small integers"),
        (["Tensorize", ["l3"], ["my_intrinsic", True], []], "my_intrinsic"),
        (["Bind", ["l1"], ["threadIdx.w"], []], "threadIdx.w"),
        (["CacheRead", ["b0", []], [0, "evil"], ["b4"]], "evil"),
        (["CacheRead", ["b0", []], [-1, "local"], ["b4"]], "-1"),
        (["GetLoops", ["b9"], [], ["l4"]], "before it is defined"),
        (["GetLoops", ["l1"], [], ["l4"]], "expected a variable of kind b"),
        (["GetLoops", ["b0"], [], ["l1"]], "defined twice"),
        (["GetLoops", ["b0"], [], ["b4"]], "expected a new variable lN"),
        (["GetLoops", ["b0"], [], ["l04"]], "expected a new variable"),
        (["GetLoops", ["b0"], [1], ["l4"]], "expected 0 attributes"),
        (["GetLoops", [], [], ["l4"]], "expected 1 inputs"),
        (["GetSBlock", [], ["C\n", "main"], ["b4"]], "not allowed"),
        (["Split", ["l1", 0, 4], [True, False], ["l4", "l5"]], "at least 1"),
        (["Split", ["l1", "None", "None"], [True, False], ["l4", "l5"]], "at most one"),
        (["Split", ["l1", 4], [True, False], ["l4", "l5"]], "expected 1 outputs"),
        (["Split", ["l1", 2**31, 2**31], [True, False], ["l4", "l5"]], "too large"),
        (["Split", ["l1", "b0", 4], [True, False], ["l4", "l5"]], "kind v"),
        (["Fuse", ["l1", "l1"], [1], ["l4"]], "twice"),
        (["Fuse", [], [1], ["l4"]], "1 or more"),
        (["Reorder", ["l1", "l1"], [], []], "twice"),
        (["ReorderBlockIterVar", ["b0", [0, 2]], [], []], "permutation"),
        (["PadEinsum", ["b0"], [[0]], []], "not allowed"),
        (["PadEinsum", ["b0"], [[2**20]], []], "not allowed"),
        (["RollingBuffer", ["b0"], [0], []], "depend on each other"),
        (["DecomposePadding", ["b0", "l1"], [], ["b4"]], "does not use it"),
        (["StorageAlign", ["b0"], [10**12, 0, 1, 0], []], "not allowed"),
        (["Annotate", ["b0", '"\\u0053"'], ["meta_schedule.tiling_structure"], []], "quoted text"),
        (["Split", ["l1"], [True, False], []], "a loop and its factors"),
        (["CacheWrite", ["b0"], [0, "local"], ["b4"]], "consumer blocks"),
        (["Blockize", [], [1], ["b4"]], "a loop or a list"),
        (["PadEinsum", ["b0"], [], []], "expected 1 attributes"),
        (["ReorderBlockIterVar", ["b0"], [], []], "a list of integers"),
        (["Annotate", ["b0"], ["schedule_rule"], []], "and a value"),
        (["Annotate", ["b0", '"'], ["schedule_rule"], []], "quoted text"),
        ("Fuse", "expected .kind"),
        ([1, [], [], []], "is text"),
        (["Fuse", 1, [], []], "are lists"),
    ],
)
def test_what_is_refused(instruction: Any, why: str) -> None:
    assert refused(trace(instruction), why).path == "$[0][2]"


@pytest.mark.parametrize(
    ("instruction", "decision", "why"),
    [
        (TILE, [2, [0, 4]], "at least 1"),
        (TILE, [2, [-1, 4]], "at least 1"),
        (TILE, [2, [4]], "has 2 integers"),
        (TILE, [2, [True, 4]], "at least 1"),
        (TILE, [2, "xx"], "has 2 integers"),
        (TILE, [2, [2**32, 1]], "at least 1"),
        (TILE, [2, [2**31, 2**31]], "too large"),
        (TILE, [10**6, [4, 4]], "out of range"),
        (TILE, [-5, [4, 4]], "out of range"),
        (TILE, [1, [4, 4]], "takes no decision"),
        (TILE, [True, [4, 4]], "expected .index"),
        (TILE, [2], "expected .index"),
        (CATEGORY, [2, 2], "not the index"),
        (CATEGORY, [2, -1], "not the index"),
        (CATEGORY, [2, 0.0], "not the index"),
        (["SampleComputeLocation", ["b0"], [], ["l4"]], [2, -3], "out of range"),
        (["SampleComputeLocation", ["b0"], [], ["l4"]], [2, 10**6], "out of range"),
    ],
)
def test_decisions_that_would_corrupt_memory_or_divide_by_zero(
    instruction: list[Any], decision: list[Any], why: str
) -> None:
    refused(trace(instruction, decisions=[decision]), why)


def test_every_sampling_instruction_is_decided_exactly_once() -> None:
    validate_trace(trace(TILE, decisions=[[2, [4, 4]]]))
    refused(trace(TILE), "random")
    refused(trace(TILE, decisions=[[2, [4, 4]], [2, [4, 4]]]), "occurs twice")


@pytest.mark.parametrize(
    "instruction",
    [
        ["SampleCategorical", [], [[1, 2], [1.0]], ["v4"]],
        ["SampleCategorical", [], [[], []], ["v4"]],
        ["SampleCategorical", [], [[1, 2], None], ["v4"]],
        ["SampleCategorical", [], [[1, 2], [0.5, 2.0]], ["v4"]],
        ["SampleCategorical", [], [[1, 2**40], [0.5, 0.5]], ["v4"]],
        ["SamplePerfectTile", ["l1"], [3, 64], ["v4", "v5"]],
        ["SamplePerfectTile", ["l1"], [0, 64], []],
        ["SamplePartitionedTile", ["l1"], [2, 3, 4], ["v4", "v5"]],
    ],
)
def test_sampling_instructions_are_checked(instruction: list[Any]) -> None:
    assert refused(trace(instruction, decisions=[[2, 0]]), "Sample").path == "$[0][2]"


def test_a_sampled_value_is_bounded_where_it_is_used() -> None:
    unroll = ["Annotate", ["b0", "v4"], ["meta_schedule.unroll_explicit"], []]
    validate_trace(trace(CATEGORY, unroll, decisions=[[2, 1]]))
    huge = ["SampleCategorical", [], [[0, 2**30], [0.5, 0.5]], ["v4"]]
    refused(trace(huge, unroll, decisions=[[2, 1]]), "from 0 to 4096")
    refused(trace(TILE, unroll, decisions=[[2, [1, 1]]]), "from 0 to 4096")
    split = ["Split", ["l1", "None", "v4"], [True, False], ["l5", "l6"]]
    refused(trace(CATEGORY, split, decisions=[[2, 1]]), "less than 1")


def test_a_compute_location_is_no_loop() -> None:
    """TVM's marks for root and inline are no statements: reordering or fusing them dereferences a null pointer."""
    sample = ["SampleComputeLocation", ["b0"], [], ["l4"]]
    validate_trace(trace(sample, ["ComputeAt", ["b0", "l4"], [1, -1], []], decisions=[[2, -2]]))
    validate_trace(trace(sample, ["ReverseComputeAt", ["b0", "l4"], [1, -1], []], decisions=[[2, -1]]))
    for use in (["Reorder", ["l1", "l4"], [], []], ["Unroll", ["l4"], [], []], ["Fuse", ["l4"], [1], ["l5"]]):
        refused(trace(sample, use, decisions=[[2, 0]]), "compute location, not a loop")


@pytest.mark.parametrize("value", [{"a": 1}, float("nan"), float("inf"), 2**63, b"x"])
def test_some_values_have_no_place_in_a_trace(value: object) -> None:
    refused(trace(["Annotate", ["l1", value], ["pragma_auto_unroll_max_step"], []]), "no place in a trace")


@pytest.mark.parametrize("value", [None, 1, "x", [], [[]], [[], [], []], [{}, []], [[], {}], {"a": 1}])
def test_other_shapes(value: object) -> None:
    refused(value, "expected")


def test_growth_is_bounded() -> None:
    loops = [["AddUnitLoop", ["b0"], [], [f"l{i}"]] for i in range(10, 511)]
    validate_trace(trace(*loops[:500]))
    refused(trace(*loops), "makes 501 loops and 0 blocks")
    copies = [["CacheRead", ["b0", []], [0, "global"], [f"b{i}"]] for i in range(10, 75)]
    validate_trace(trace(*copies[:64]))
    refused(trace(*copies), "makes 0 loops and 65 blocks")


def test_limits() -> None:
    with pytest.raises(TraceError, match="3 instructions, the limit is 2"):
        validate_trace(trace(["EnterPostproc", [], [], []]), limits=TraceLimits(max_instructions=2))
    with pytest.raises(TraceError, match="more than 10 values"):
        validate_trace(trace(), limits=TraceLimits(max_values=10))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    refused(trace(["Annotate", ["b0", deep], ["schedule_rule"], []]), "more than|quoted")
    refused(trace(["Annotate", ["b0", 10**5000], ["meta_schedule.parallel"], []]), "out of range")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["b0", "l3", "v6", "None", '"x"', "GetLoops", "Annotate", "UnsafeSetDType", "Tensorize", "b"])
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)


def mutate(value: list[Any], data: st.DataObject) -> None:
    """Replace, drop, repeat or insert something somewhere in nested lists."""
    place = value
    while True:
        inner = [item for item in place if isinstance(item, list) and item]
        if not inner or data.draw(st.integers(0, 3)) == 0:
            break
        place = data.draw(st.sampled_from(inner))
    position = data.draw(st.integers(0, len(place) - 1))
    action = data.draw(st.sampled_from(["replace", "drop", "repeat", "insert"]))
    if action == "replace":
        place[position] = data.draw(VALUES)
    elif action == "drop":
        del place[position]
    else:
        place.insert(position, data.draw(VALUES) if action == "insert" else copy.deepcopy(place[position]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_mutations_raise_nothing_but_trace_errors(
    llvm_trace: list[Any], cuda_trace: list[Any], vnni_trace: list[Any], data: st.DataObject
) -> None:
    packed = trace(
        ["TransformLayout", ["b0", index_map([["//", "v0", 16], "v1", ["%", "v0", 16]])], [0, 0, None, 0], []]
    )
    value = copy.deepcopy(data.draw(st.sampled_from([llvm_trace, cuda_trace, vnni_trace, packed])))
    for _ in range(data.draw(st.integers(1, 3))):
        if value:
            mutate(value, data)
    try:
        validate_trace(value)
    except TraceError as error:
        assert error.reason
        assert error.path.startswith("$")


@given(VALUES)
def test_any_value_raises_nothing_but_trace_errors(value: object) -> None:
    with contextlib.suppress(TraceError):
        validate_trace(value)
        assert value == [[], []]  # the empty trace is harmless
