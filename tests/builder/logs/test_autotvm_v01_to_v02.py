from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunehub_builder.logs.autotvm_v01_to_v02 import RULES, UntranslatableError, family_of, translate
from tunehub_registry.tuning_log import parse_line

pytestmark = pytest.mark.fast

ENTITY = [["tile_f", "sp", [-1, 2, 8, 4]], ["unroll_explicit", "ot", 0]]
NCHWC = [["tile_ic", "sp", [1, 3]], ["tile_oc", "sp", [2, 32]], ["tile_ow", "sp", [14, 8]], ["unroll_kw", "ot", False]]
RESULT = [[9.593498664366054e-05], 0, 1.757516860961914, 1539972731.352305]
DATA = ["TENSOR", [1, 64, 56, 56], "float32"]
KERNEL = ["TENSOR", [128, 64, 3, 3], "float32"]
OUT = [DATA, KERNEL, [2, 2], [1, 1, 1, 1], [1, 1]]


def old(
    task: str,
    arguments: list[Any],
    *,
    target: str = "cuda -model=titanx",
    key: str = "direct",
    entity: list[Any] | None = None,
    workload: Any = None,
) -> bytes:
    config = {"i": 136, "c": None, "t": key, "e": ENTITY if entity is None else entity}
    return json.dumps({"i": [target, task, arguments, {}, workload, config], "r": RESULT, "v": 0.1}).encode()


def translated(line: bytes) -> list[Any]:
    """The task and its arguments."""
    found: list[Any] = json.loads(translate(line))["input"][1:3]
    return found


CONV = [DATA, KERNEL, [2, 2], [1, 1], [1, 1], "NCHW", "float32"]


def test_keeps_target_knobs_costs_and_timestamp() -> None:
    assert json.loads(translate(old("topi_nn_conv2d", CONV))) == {
        "input": ["cuda -model=titanx", "conv2d_nchw.cuda", [*OUT, "float32"], {}],
        "config": {"index": 136, "code_hash": None, "entity": ENTITY},
        "result": RESULT,
        "version": 0.2,
    }


@pytest.mark.parametrize(
    ("target", "key", "task"),
    [
        ("cuda -model=1080ti", "winograd", "conv2d_nchw_winograd.cuda"),
        ("rocm -model=gfx900", "direct", "conv2d_nchw.cuda"),
        ("opencl -model=1080ti", "winograd", "conv2d_nchw_winograd.cuda"),
        ("opencl -device=mali -model=rk3399", "direct", "conv2d_nchw_spatial_pack.mali"),
        ("opencl -model=rk3399 -device=mali", "winograd", "conv2d_nchw_winograd.mali"),
        ("opencl -device=bifrost", "winograd", "conv2d_nchw_winograd.bifrost"),
        ("llvm -device=arm_cpu -model=rk3399", "direct", "conv2d_nchw_spatial_pack.arm_cpu"),
        ("llvm -device=arm_cpu -model=rk3399", "vanilla", "conv2d_nchw_spatial_pack.arm_cpu"),
        ("llvm -device=arm_cpu -model=rk3399", "winograd", "conv2d_nchw_winograd.arm_cpu"),
    ],
)
def test_target_and_key_name_the_implementation(target: str, key: str, task: str) -> None:
    assert translated(old("topi_nn_conv2d", CONV, target=target, key=key)) == [task, [*OUT, "float32"]]


def test_nnpack_gains_the_knob_that_names_its_algorithm() -> None:
    line = old("topi_nn_conv2d", CONV, target="llvm -device=arm_cpu", key="winograd_nnpack_fp16", entity=[])
    row = json.loads(translate(line))
    assert row["input"][1] == "conv2d_nchw_winograd_nnpack.arm_cpu"
    assert row["config"]["entity"] == [["winograd_nnpack_algorithm", "ot", 3]]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([DATA, KERNEL, 64, [3, 3], [2, 2], [1, 1], "NCHW", "NCHW", "float32"], id="TVM 0.4"),
        pytest.param([DATA, KERNEL, 64, [3, 3], [2, 2], [1, 1], [1, 1], "NCHW", "NCHW", "float32"], id="TVM 0.5"),
        pytest.param([DATA, KERNEL, 64, [3, 3], [2, 2], [1, 1], [1, 1], "NCHW", "float32"], id="one layout"),
        pytest.param([DATA, KERNEL, [2, 2], [1, 1, 1, 1], [1, 1], "NCHW", "float32"], id="TVM 0.6"),
    ],
)
def test_arguments_of_every_release_for_x86(arguments: list[Any]) -> None:
    line = old("topi_x86_conv2d_NCHWc", arguments, target="llvm -mcpu=skylake-avx512", key="", entity=NCHWC)
    assert translated(line) == ["conv2d_NCHWc.x86", [*OUT, "NCHW", "NCHW", "float32"]]


def test_a_dilation_that_was_no_argument_is_one() -> None:
    without = [DATA, KERNEL, [2, 2], [1, 1], "NCHW", "float32"]
    assert translated(old("topi_nn_conv2d", without))[1][4] == [1, 1]


def test_padding_is_before_then_after_each_axis() -> None:
    arguments = [DATA, KERNEL, [1, 128], [0, 256], "float32"]
    task, found = translated(old("topi_nn_conv2d_transpose_nchw", arguments))
    assert task == "conv2d_transpose_nchw.cuda"
    assert found == [DATA, KERNEL, [1, 128], [0, 256, 0, 256], "float32", [0, 0]]


def test_depthwise() -> None:
    arguments = [DATA, ["TENSOR", [64, 1, 3, 3], "float32"], [2, 2], [1, 1], [1, 1], "float32"]
    out = [*arguments[:3], [1, 1, 1, 1], [1, 1], "float32"]
    task = "topi_nn_depthwise_conv2d_nchw"
    assert translated(old(task, arguments)) == ["depthwise_conv2d_nchw.cuda", out]
    arm = old(task, arguments, target="llvm -device=arm_cpu", key="contrib_spatial_pack")
    assert translated(arm) == ["depthwise_conv2d_nchw_spatial_pack.arm_cpu", out]


@pytest.mark.parametrize(
    ("target", "entity", "task"),
    [
        ("cuda", [["tile_k", "sp", [8, 64]]], "dense_small_batch.gpu"),
        ("cuda", [[n, "sp", [1, 1]] for n in ("tile_x", "tile_y", "tile_k")], "dense_large_batch.gpu"),
        ("llvm", [[n, "sp", [1, 1]] for n in ("tile_y", "tile_x", "tile_k")], "dense_nopack.x86"),
        ("llvm", [[n, "sp", [1, 1, 1]] for n in ("tile_y", "tile_x", "tile_k")], "dense_pack.x86"),
        ("llvm -device=arm_cpu", [[n, "sp", [1, 1]] for n in ("tile_y", "tile_x", "tile_k")], "dense_nopack.x86"),
        ("opencl -device=mali", [[n, "sp", [1, 1]] for n in ("tile_y", "tile_x", "c_unroll")], "dense.mali"),
    ],
)
def test_dense_is_told_apart_by_its_knobs(target: str, entity: list[Any], task: str) -> None:
    tensors = [["TENSOR", [1, 512], "float32"], ["TENSOR", [1000, 512], "float32"]]
    biased = old("topi_nn_dense", [*tensors, ["TENSOR", [1000], "float32"]], target=target, entity=entity)
    assert translated(biased) == [task, [*tensors, None, "float32"]]


def test_batch_matmul_states_shape_and_transposition() -> None:
    tensors = [["TENSOR", [4, 128, 20], "float32"], ["TENSOR", [4, 64, 20], "float32"]]
    found = translated(old("topi_nn_batch_matmul", tensors))
    assert found == ["batch_matmul.cuda", [*tensors, [4, 128, 64], "float32", False, True]]


def test_vta_takes_the_tensors_of_dense_from_the_workload() -> None:
    workload = ["dense", [4, 16, 1, 16, "int8"], [8, 16, 16, 16, "int8"], 0, "int32"]
    found = translated(old("dense", [4, 256, 128], target="ext_dev -device=vta -model=pynq", workload=workload))
    tensors = [["TENSOR", [4, 16, 1, 16], "int8"], ["TENSOR", [8, 16, 16, 16], "int8"]]
    assert found == ["dense_packed.vta", [*tensors, None, "int32"]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (old("my_template", [10, 10]), "not one of TVM's own"),
        (old("topi_nn_conv2d_winograd_nnpack_bits", CONV), "no longer exists in TVM 0.8"),
        (old("topi_nn_conv2d", CONV, target="hexagon"), "for hexagon targets no longer exists"),
        (old("topi_nn_conv2d", CONV, key="tensorcore"), "with key 'tensorcore'"),
        (old("topi_nn_conv2d", [*CONV[:5], "NHWC", "float32"]), "no layout 'NHWC'"),
        (old("topi_x86_conv2d_NCHWc", CONV, target="llvm"), "its knobs (tile_f, unroll_explicit) are not those"),
        (old("topi_nn_conv2d", [DATA, 3, [1, 1], [1, 1], [1, 1], "NCHW", "float32"]), "expected 2 tensors"),
        (old("topi_nn_conv2d", [DATA, KERNEL, [1, 1], "SAME", [1, 1], "NCHW", "float32"]), 'got "SAME"'),
        (old("topi_nn_conv2d", [DATA, KERNEL, [1, 1], [1, 2, 3], [1, 1], "NCHW", "float32"]), "does not fit 2 axes"),
        (b'{"i": []}', "not an AutoTVM 0.1 record"),
        (b"[1]", "not an AutoTVM 0.1 record"),
    ],
)
def test_says_why_there_is_no_translation(line: bytes, reason: str) -> None:
    with pytest.raises(UntranslatableError) as caught:
        translate(line)
    assert reason in caught.value.reason


def test_keyword_arguments_are_not_dropped_silently() -> None:
    row = json.loads(old("topi_nn_conv2d", CONV))
    row["i"][3] = {"layout": "NCHW"}
    with pytest.raises(UntranslatableError, match="keyword arguments"):
        translate(json.dumps(row).encode())


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("Infinity", "Infinity is not a JSON number"),
        ("-Infinity", "-Infinity is not a JSON number"),
        ("NaN", "NaN is not a JSON number"),
        ("1e999", "Infinity is not a JSON number"),
        (str(1 << 64), "is out of range"),
        ("1" * 5000, "digits"),  # more than Python reads
    ],
)
def test_numbers_that_no_record_has_are_reasons(number: str, reason: str) -> None:
    line = old("topi_nn_bitserial_dense", ["X"], target="llvm").replace(b'"X"', number.encode())
    with pytest.raises(UntranslatableError) as caught:
        translate(line)
    assert reason in caught.value.reason


def test_families() -> None:
    assert family_of("llvm -mcpu=core-avx2") == "x86"
    assert family_of("opencl -device=intel_graphics -model=unknown") == "intel_graphics"
    assert family_of("vulkan") == "gpu"
    assert family_of("ext_dev -device=vta -keys=cpu") == "vta"


# Python writes and reads NaN and infinity as if they were JSON; and larger integers than anything else does.
NUMBERS = st.integers(-5, 2000) | st.floats() | st.sampled_from([1 << 63, -(1 << 63) - 1, 1 << 64, 10**400])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.just(DATA) | st.just(KERNEL),
    max_leaves=12,
)


@given(
    task=st.sampled_from(sorted({rule.task for rule in RULES})),
    target=st.sampled_from(["cuda", "llvm", "llvm -device=arm_cpu", "opencl -device=mali", "ext_dev -device=vta"]),
    key=st.sampled_from(["direct", "", "winograd", "int8"]),
    arguments=st.lists(JSON, max_size=9),
    entity=st.lists(st.tuples(st.text(max_size=5), st.sampled_from(["sp", "ot"]), JSON), max_size=4) | st.just(NCHWC),
)
@example("topi_nn_bitserial_dense", "llvm", "direct", [float("inf")], [])
@example("topi_nn_bitserial_dense", "llvm", "direct", [float("-inf")], [])
@example("topi_nn_bitserial_dense", "llvm", "direct", [float("nan")], [])
@example("topi_nn_bitserial_dense", "llvm", "direct", [1 << 64], [])
@example("topi_nn_bitserial_dense", "llvm", "direct", [1], [("knob", "ot", float("nan"))])
def test_any_arguments_give_a_record_or_a_reason(
    task: str, target: str, key: str, arguments: list[Any], entity: list[Any]
) -> None:
    line = old(task, arguments, target=target, key=key, entity=entity)
    try:
        record = parse_line(translate(line))
    except UntranslatableError as error:
        assert error.reason
    else:
        assert record.format == "autotvm 0.2"
        assert list(record.costs) == RESULT[0]
