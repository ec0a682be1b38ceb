from __future__ import annotations

import base64
import io
import json
import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tunehub_registry.tuning_log import (
    AUTO_SCHEDULER,
    AUTOTVM,
    MAX_LINE_BYTES,
    BadLine,
    LogLineError,
    LogRecord,
    auto_scheduler_key,
    autotvm_key,
    config_problem,
    name_of,
    operator_key,
    parse_line,
    read_log,
    scan_log,
)

pytestmark = pytest.mark.fast

CONV: dict[str, Any] = {
    "input": [
        "llvm -keys=cpu -mcpu=skylake-avx512",
        "conv2d_NCHWc.x86",
        [
            ["TENSOR", [1, 64, 56, 56], "float32"],
            ["TENSOR", [64, 64, 3, 3], "float32"],
            [1, 1],
            [1, 1, 1, 1],
            [1, 1],
            "NCHW",
            "NCHW",
            "float32",
        ],
        {},
    ],
    "config": {
        "index": 193,
        "code_hash": None,
        "entity": [
            ["tile_ic", "sp", [-1, 3]],
            ["tile_ow", "sp", [14, 8]],
            ["reorder_0", "re", [0, 2, 1]],
            ["ann", "an", ["none", "unroll", "vec"]],
            ["unroll_kw", "ot", False],
        ],
    },
    "result": [[9.5e-05, 1.05e-04], 0, 1.75, 1539972731.35],
    "version": 0.2,
    "tvm_version": "0.7.dev0",
}
OLD: dict[str, Any] = {
    "i": [
        "llvm -mcpu=skylake-avx512",
        "topi_x86_conv2d_NCHWc",
        [["TENSOR", [1, 3, 224, 224], "float32"], ["TENSOR", [64, 3, 7, 7], "float32"], [2, 2], [3, 3]],
        {},
        ["conv2d", [1, 3, 224, 224, "float32"], [64, 3, 7, 7, "float32"], [2, 2], [3, 3]],
        {"i": 193, "t": "direct", "c": None, "e": [["tile_ic", "sp", [1, 3]]]},
    ],
    "r": [[9.5e-05], 0, 1.7, 1539972731.3],
    "v": 0.1,
}
DAG = '["d7b65649a4dd54becea0a52aabbc5af5", [1, 1000], [1000, 512], [1, 1000]]'
ANSOR: dict[str, Any] = {
    "i": [
        [DAG, "llvm -keys=cpu -mcpu=znver4", [8, 64, 64, 0, 0, 0, 0, 0], "", 1, []],
        [[], [["SP", 2, 0, 1000, [20, 1, 2], 1], ["AN", 3, 0, 3], ["PR", 1, 0, "auto_unroll_max_step$16"]]],
    ],
    "r": [[0.000123], 0, 0.9, 1700000000],
    "v": "v0.6",
}


def dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def changed(value: dict[str, Any], change: Callable[[Any], object]) -> bytes:
    copy = json.loads(json.dumps(value))
    change(copy)
    return dump(copy)


def test_an_autotvm_record() -> None:
    line = dump(CONV)
    record = parse_line(line + b"\n")
    assert (record.format, record.tuner, record.task) == ("autotvm 0.2", AUTOTVM, "conv2d_NCHWc.x86")
    assert record.target == "llvm -keys=cpu -mcpu=skylake-avx512"
    assert record.line == line
    assert record.workload[1] == ("TENSOR", (1, 64, 56, 56), "float32")
    assert record.name == "conv2d_NCHWc.x86 1x64x56x56 64x64x3x3 s1 p1"
    assert record.costs == (9.5e-05, 1.05e-04)
    assert record.mean_s == pytest.approx(1e-4)
    assert record.is_measured
    assert record.config == CONV["config"]
    assert record.tvm_version == "0.7.dev0"
    assert record.timestamp == 1539972731.35
    assert record.key == autotvm_key(record.workload)


def test_an_autotvm_record_of_version_0_1() -> None:
    record = parse_line(dump(OLD))
    assert (record.format, record.tuner, record.template) == ("autotvm 0.1", AUTOTVM, "direct")
    assert record.config == {"i": 193, "t": "direct", "c": None, "e": [["tile_ic", "sp", [1, 3]]]}
    assert config_problem(record.config) is None
    winograd = parse_line(changed(OLD, lambda d: d["i"][5].update(t="winograd")))
    assert winograd.key != record.key
    assert winograd.operator == record.operator


def test_an_auto_scheduler_record() -> None:
    record = parse_line(dump(ANSOR))
    assert (record.format, record.tuner) == ("auto_scheduler 0.6", AUTO_SCHEDULER)
    assert record.workload == ("d7b65649a4dd54becea0a52aabbc5af5", 1, 1000, 1000, 512, 1, 1000)
    assert record.key == record.operator == auto_scheduler_key(DAG)
    assert record.name == "d7b65649 1x1000 1000x512 1x1000"
    assert record.config == ANSOR["i"][1]
    assert record.is_measured


@pytest.mark.parametrize("value", [CONV, OLD, ANSOR], ids=["autotvm 0.2", "autotvm 0.1", "auto_scheduler"])
def test_spacing_order_and_unknown_fields_do_not_matter(value: dict[str, Any]) -> None:
    record = parse_line(dump(value))
    compact = json.dumps(value, separators=(",", ":")).encode()
    reverse = dump({"added later": [1], **dict(reversed(value.items()))})
    for line in (compact, reverse, b"  " + dump(value) + b" \r\n"):
        other = parse_line(line)
        assert (other.tuned, other.costs, other.config) == (record.tuned, record.costs, record.config)


def test_only_text_that_says_the_same_shares_a_key() -> None:
    keys = {
        parse_line(changed(CONV, change)).key
        for change in (
            lambda d: None,
            lambda d: d["input"][2].append(True),
            lambda d: d["input"][2][0][1].__setitem__(0, 2),
            lambda d: d["input"].__setitem__(1, "conv2d_nchw.cuda"),
        )
    }
    assert len(keys) == 4
    assert parse_line(changed(CONV, lambda d: d["input"][0].replace("a", "b"))).key in keys


def test_the_keys_compare_as_tvm_does() -> None:
    key = autotvm_key(["dense", ("TENSOR", (1, 2), "float32"), None, True, 1.0, [1]])
    assert key == autotvm_key(("dense", ["TENSOR", [1, 2], "float32"], None, 1, 1, (True,)))
    assert key != autotvm_key(("dense", ["TENSOR", [1, 2], "float32"], None, 1, 1.5, (True,)))
    assert auto_scheduler_key('["h", [1, 2], 3]') == auto_scheduler_key('["h", 1, [2.0, [3]]]')
    assert auto_scheduler_key("not JSON") != auto_scheduler_key('["not JSON"]')


def test_a_subclass_of_text_is_text() -> None:
    class String(str):  # as tvm.runtime.String
        __slots__ = ()

        def __str__(self) -> str:
            return self

    assert auto_scheduler_key(String(DAG)) == auto_scheduler_key(DAG)
    assert autotvm_key([String("dense"), 1]) == autotvm_key(["dense", 1])


# What TVM asked for when these keys were made: they are in published packages, and must never change.
def test_the_keys_stay_what_they_are() -> None:
    assert parse_line(dump(CONV)).key == "2011abc81ba2994888ef093b3c511d8f"
    assert auto_scheduler_key(DAG) == "0b7bdba957636d428c74aa8c505d1185"


@pytest.mark.parametrize("value", [object(), {"a": 1}, b"x", math.nan, math.inf, 2**80, ["x", [{1}]]])
def test_what_no_record_can_hold_has_no_key(value: Any) -> None:
    with pytest.raises(TypeError):
        autotvm_key(["task", value])


def tensor(*shape: int) -> tuple[Any, ...]:
    return ("TENSOR", shape, "float32")


DATA, WEIGHT = tensor(1, 64, 56, 56), tensor(64, 64, 3, 3)
PLAIN = ((1, 1), (1, 1, 1, 1), (1, 1))


@pytest.mark.parametrize(
    "same",
    [
        [
            ("conv2d_nchw.cuda", DATA, WEIGHT, *PLAIN, "float32"),
            ("conv2d_nchw_winograd.cuda", DATA, WEIGHT, *PLAIN, "float32"),
            ("conv2d_cudnn.cuda", DATA, WEIGHT, *PLAIN, 1, "NCHW", "float32"),
            ("conv2d_NCHWc.x86", DATA, WEIGHT, *PLAIN, "NCHW", "NCHW", "float32"),
            (
                "conv2d_NCHWc.x86", tensor(1, 4, 56, 56, 16), tensor(4, 4, 3, 3, 16, 16), *PLAIN, "NCHW16c", "NCHW16c",
                "float32",
            ),
            ("conv2d_nchw_spatial_pack.arm_cpu", DATA, WEIGHT, 1, (1, 1), 1, "float32"),
        ],
        [
            ("conv2d_nhwc.gpu", tensor(1, 56, 56, 64), tensor(3, 3, 64, 64), *PLAIN, "float32"),
            ("conv2d_nhwc_tensorcore.cuda", tensor(1, 56, 56, 64), tensor(3, 3, 64, 64), *PLAIN, "float32"),
            ("conv2d_NHWC_hybrid.arm_cpu", tensor(1, 56, 56, 64), tensor(3, 3, 64, 64), *PLAIN, "float32"),
        ],
        [
            ("depthwise_conv2d_nchw.cuda", DATA, tensor(64, 1, 3, 3), *PLAIN, "float32"),
            ("depthwise_conv2d_nchw_spatial_pack.arm_cpu", DATA, tensor(64, 1, 3, 3), *PLAIN, "float32"),
            ("depthwise_conv2d_NCHWc.x86", DATA, tensor(64, 1, 3, 3), *PLAIN, "NCHW", "NCHW", "float32"),
        ],
        [
            ("dense_nopack.x86", tensor(1, 512), tensor(1000, 512), None, "float32"),
            ("dense_pack.x86", tensor(1, 512), tensor(1000, 512), None, "float32"),
        ],
    ],
    ids=["conv2d NCHW", "conv2d NHWC", "depthwise", "dense"],
)  # fmt: skip
def test_implementations_of_one_operator_share_it(same: list[tuple[Any, ...]]) -> None:
    assert len({operator_key(workload) for workload in same}) == 1
    assert len({autotvm_key(workload) for workload in same}) == len(same)


def test_different_operators_do_not_share_one() -> None:
    different = [
        ("conv2d_nchw.cuda", DATA, WEIGHT, *PLAIN, "float32"),
        ("conv2d_nchw.cuda", DATA, WEIGHT, *PLAIN, "float16"),
        ("conv2d_nchw.cuda", DATA, WEIGHT, (2, 2), (1, 1, 1, 1), (1, 1), "float32"),
        ("conv2d_nchw.cuda", DATA, WEIGHT, (1, 1), (1, 0, 1, 0), (1, 1), "float32"),
        ("group_conv2d_nchw.cuda", DATA, WEIGHT, *PLAIN, 2, "float32"),
        ("depthwise_conv2d_nchw.cuda", DATA, WEIGHT, *PLAIN, "float32"),
        ("conv2d_nhwc.gpu", DATA, WEIGHT, *PLAIN, "float32"),
        ("conv2d_nchw_winograd_without_weight_transform.cuda", DATA, WEIGHT, *PLAIN, "float32"),
        ("conv2d_transpose_nchw.cuda", DATA, WEIGHT, (1, 1), (1, 1, 1, 1), "float32", (0, 0)),
        ("dense_nopack.x86", tensor(1, 512), tensor(1000, 512), None, "float32"),
        ("batch_matmul.x86", tensor(1, 512), tensor(1000, 512), None, "float32"),
        ("my_template", 512, 512, "float32"),
    ]
    assert len({operator_key(workload) for workload in different}) == len(different)


def test_names_of_workloads() -> None:
    uneven = ("conv2d_nchw.cuda", tensor(1, 8, 9, 9), tensor(4, 8, 7, 1), (2, 1), (3, 0, 3, 0), (2, 2), "float32")
    assert name_of(uneven) == "conv2d_nchw.cuda 1x8x9x9 4x8x7x1 s2x1 p3x0x3x0 d2"
    half = ("dense.x86", ("TENSOR", (1, 2), "int8"), ("TENSOR", (4, 2), "int8"), None, "int32")
    assert name_of(half) == "dense.x86 1x2 4x2 int8"
    assert name_of(("my_template", 512, "float32")) == "my_template"


def no_bad_line(line: BadLine) -> None:
    raise AssertionError(line)


# Lines of every kind that was seen to break TVM, or to slip through it.
BAD: dict[str, tuple[bytes, str]] = {
    "cut off": (dump(CONV)[:200], "cut off"),
    "cut off auto-scheduler": (dump(ANSOR)[:-20], "cut off"),
    "html": (b"<html>404</html>", "HTML"),
    "not json": (b"hello", "not valid JSON"),
    "other json": (b"[1, 2]", "no object"),
    "neither": (b'{"a": 1}', "not a record"),
    "two records": (dump(CONV) * 2, "not valid JSON"),
    "no result": (changed(CONV, lambda d: d.pop("result")), "result"),
    "no config": (changed(CONV, lambda d: d.pop("config")), "config"),
    "no arguments": (changed(CONV, lambda d: d["input"].pop()), "length"),
    "unknown target": (changed(CONV, lambda d: d["input"].__setitem__(0, "foo -bar=1")), "target"),
    "empty target": (changed(CONV, lambda d: d["input"].__setitem__(0, "")), "target"),
    "target that is none": (changed(CONV, lambda d: d["input"].__setitem__(0, 7)), "target|str"),
    "nan": (changed(CONV, lambda d: d["result"].__setitem__(0, [math.nan])), "NaN"),
    "nan as the auto-scheduler writes it": (dump(ANSOR).replace(b"0.000123", b"nan"), "not valid JSON"),
    "infinity": (changed(CONV, lambda d: d["result"].__setitem__(0, [math.inf])), "Infinity"),
    "overflow": (dump(CONV).replace(b"9.5e-05", b"1e999"), "out of range"),
    "text as a cost": (changed(CONV, lambda d: d["result"].__setitem__(0, ["a"])), "float"),
    "no error number": (changed(CONV, lambda d: d["result"].__setitem__(1, None)), "int"),
    "one field more": (changed(CONV, lambda d: d["result"].append(1)), "length"),
    "object in the arguments": (changed(CONV, lambda d: d["input"][2].append({"a": 1})), "dict"),
    "number without end": (changed(CONV, lambda d: d["input"][2].append(10**400)), "out of range|number"),
    "key twice": (dump(CONV)[:-1] + b', "result": [[1e-9], 0, 1, 1]}', "twice"),
    "key twice, hidden": (dump(CONV)[:-1] + rb', "r\u0065sult": [[1e-9], 0, 1, 1]}', "twice"),
    "key twice in the auto-scheduler's": (dump(ANSOR)[:-1] + b', "r": [[1e-9], 0, 1, 1]}', "twice"),
    "not utf-8": (dump(CONV).replace(b"tile_ic", b"tile_\xff"), "UTF-8"),
    "half a character": (dump(CONV).replace(b"NCHWc.x86", rb"NCHWc\ud800"), "UTF-8"),
    "deep": (dump(CONV)[:-1] + b', "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "deep"),
    "deep arguments": (changed(CONV, lambda d: d["input"][2].append(json.loads("[" * 20 + "]" * 20))), "deep"),
    "huge": (b'{"input": "' + b"x" * 10_000_000 + b'"}', "longer than"),
    "auto-scheduler without steps": (changed(ANSOR, lambda d: d["i"].pop()), "length"),
    "auto-scheduler with text for shapes": (changed(ANSOR, lambda d: d["i"][0].__setitem__(0, 5)), "str"),
    "auto-scheduler with an object in its key": (
        changed(ANSOR, lambda d: d["i"][0].__setitem__(0, '["h", {}]')),
        "dict",
    ),
    "0.1 without configuration": (changed(OLD, lambda d: d["i"].pop()), "length"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_refused_with_its_reason(name: str) -> None:
    line, reason = BAD[name]
    with pytest.raises(LogLineError, match=reason) as caught:
        parse_line(line)
    assert len(caught.value.reason) < 400


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_costs_nothing_but_itself(name: str) -> None:
    good = dump(CONV)
    log = b"\n".join([b"# a comment", good, BAD[name][0], b"", b"  # indented", good])
    first, bad, last = read_log(io.BytesIO(log), "log")
    assert isinstance(first, LogRecord)
    assert first == last
    assert isinstance(bad, BadLine)
    assert bad.line == 3


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    payload = base64.b64encode(pickle.dumps(Touch(tmp_path / "created"))).decode()
    line = "\t".join(["llvm", payload, payload, payload, "0.2", "0.19.0"]).encode()
    with pytest.raises(LogLineError, match="pickle protocol: never read"):
        parse_line(line)
    in_json = changed(CONV, lambda d: d["input"].__setitem__(1, payload))
    assert parse_line(in_json).task == payload
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "costs, error_no, measured",
    [
        ([1e-3], 0, True),
        ([1, 2], 0, True),
        ([], 0, False),
        ([-1.0], 0, False),
        ([0.0], 0, False),
        ([1e9], 0, False),
        ([1e10], 4, False),
        ([1e-3], 4, False),
        ([1e-3, -1.0], 0, False),
    ],
)
def test_only_a_possible_time_is_a_measurement(costs: list[float], error_no: int, measured: bool) -> None:
    for value, where in ((CONV, "result"), (OLD, "r"), (ANSOR, "r")):
        line = changed(value, lambda d: d.__setitem__(where, [costs, error_no, 1.0, 1.0]))  # noqa: B023
        assert parse_line(line).is_measured is measured
        ((_, _, _, mean_s),) = scan_log(io.BytesIO(line), no_bad_line)
        assert math.isnan(mean_s) is not measured


@pytest.mark.parametrize("version", ["0.2", 9.9, None])
def test_a_version_that_is_not_known_is_read_when_the_line_is_whole(version: Any) -> None:
    assert parse_line(changed(CONV, lambda d: d.update(version=version))).format == "autotvm 0.2"
    assert parse_line(changed(ANSOR, lambda d: d.update(v=version))).format == "auto_scheduler 0.6"
    assert parse_line(changed(CONV, lambda d: d.pop("version"))).is_measured


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
LINES = st.sampled_from([dump(CONV), dump(OLD), dump(ANSOR)])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good line with a piece cut, doubled or replaced."""
    line = draw(LINES)
    start = draw(st.integers(0, len(line)))
    end = draw(st.integers(start, min(len(line), start + 40)))
    return line[:start] + draw(st.binary(max_size=12) | st.just(line[start:end] * 2)) + line[end:]


@st.composite
def replaced(draw: st.DrawFn) -> bytes:
    """A good line with one value replaced by any other."""
    value = json.loads(draw(LINES))
    place: Any = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        place[key] = draw(JSON)
        return dump(value)


@given(damaged() | replaced() | st.binary(max_size=60))
@example(b"")
@example(dump(CONV).replace(b"{", b"{\n", 1))
def test_any_line_is_a_record_or_a_log_line_error(line: bytes) -> None:
    try:
        record = parse_line(line)
    except LogLineError as error:
        assert error.reason
        return
    assert len(record.key) == len(record.operator) == 32
    assert record.line == line.strip()
    assert not record.is_measured or 0 < record.mean_s < 1e8
    ((_, _, tuned, mean_s),) = scan_log(io.BytesIO(record.line), no_bad_line)
    assert tuned == record.tuned
    assert mean_s == record.mean_s if record.is_measured else math.isnan(mean_s)
    try:
        config_problem(record.config)
    except LogLineError:
        assert record.tuner == AUTO_SCHEDULER


@given(st.lists(LINES | damaged(), max_size=6))
def test_a_log_gives_one_answer_for_every_line(lines: list[bytes]) -> None:
    lines = [line.replace(b"\n", b" ") for line in lines]
    expected = [line for line in lines if line.strip() and not line.strip().startswith(b"#")]
    assert len(list(read_log(io.BytesIO(b"\n".join(lines)), "log"))) == len(expected)


def test_a_line_that_is_far_too_long_is_not_held_in_memory() -> None:
    class Endless(io.RawIOBase):
        left = 40 * MAX_LINE_BYTES

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = min(len(buffer), self.left)
            self.left -= size
            buffer[:size] = b"x" * size
            return size

    found = list(read_log(io.BufferedReader(Endless()), "log"))
    assert found == [BadLine(line=1, reason=f"longer than {MAX_LINE_BYTES} bytes")]


@given(JSON, st.sampled_from(["sp", "re", "an", "ot"]))
def test_any_configuration_is_checked_without_an_error(value: Any, kind: str) -> None:
    assert config_problem(value) is not None
    problem = config_problem({"index": 1, "code_hash": None, "entity": [["a", kind, value]]})
    assert problem is None or problem.startswith("the knob 'a' ")


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("code_hash"),
        lambda c: c.pop("entity"),
        lambda c: c.update(index=-1),
        lambda c: c.update(index="1"),
        lambda c: c.update(index=True),
        lambda c: c.update(code_hash=5),
        lambda c: c.update(entity={}),
        lambda c: c["entity"][0].__setitem__(1, "zz"),
        lambda c: c["entity"][0].pop(),
        lambda c: c["entity"][0].__setitem__(0, 5),
        lambda c: c["entity"][0].__setitem__(0, "tile_ow"),
        lambda c: c["entity"][0].__setitem__(2, [3, 0]),
        lambda c: c["entity"][0].__setitem__(2, [3, -1]),
        lambda c: c["entity"][0].__setitem__(2, [0, 3]),
        lambda c: c["entity"][0].__setitem__(2, []),
        lambda c: c["entity"][0].__setitem__(2, ["a", "b"]),
        lambda c: c["entity"][0].__setitem__(2, [1, True]),
        lambda c: c["entity"][0].__setitem__(2, [1, 2**40]),
        lambda c: c["entity"][0].__setitem__(2, [1, 2**20, 2**20]),
        lambda c: c["entity"][2].__setitem__(2, [0, 2, 2]),
        lambda c: c["entity"][2].__setitem__(2, [1, 2, 3]),
        lambda c: c["entity"][3].__setitem__(2, ["exec"]),
        lambda c: c["entity"][4].__setitem__(2, {"a": 1}),
        lambda c: c["entity"][4].__setitem__(2, "x" * 1000),
    ],
)
def test_a_configuration_that_cannot_be_one(change: Callable[[Any], object]) -> None:
    assert config_problem(CONV["config"]) is None
    config = json.loads(json.dumps(CONV["config"]))
    change(config)
    assert config_problem(config) is not None


def test_steps_of_another_shape_are_refused_when_they_are_asked_for() -> None:
    record = parse_line(changed(ANSOR, lambda d: d["i"].__setitem__(1, [[], 5])))
    with pytest.raises(LogLineError, match="cannot be read"):
        _ = record.config


@pytest.mark.parametrize("depth", [40, 900, 3000])  # what a decoder takes differs between versions of Python
def test_what_is_nested_too_deep_is_no_configuration(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    line = changed(CONV, lambda d: d["config"]["entity"].__setitem__(0, "deep")).replace(b'"deep"', deep)
    with pytest.raises(LogLineError, match="nested"):
        _ = parse_line(line).config


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([["PR", 1, 0, "auto_unroll_max_step$512"], ["AN", 1, 0, 3]], None),
        ([["PR", 1, 0, "auto_unroll_max_step$1025"]], "is none of a schedule's"),
        ([["PR", 1, 0, "debug_skip_region"]], "is none of a schedule's"),
        ([["PR", 1, 0, 5]], "is none of a schedule's"),
        ([["PR"]], "is none of a schedule's"),
        ([["AN", 1, 0, 3]] * 1025, "1025 steps"),
    ],
)
def test_steps_of_the_auto_scheduler_that_no_schedule_has(steps: list[Any], says: str | None) -> None:
    line = json.dumps({"i": [['["h", 1]', "llvm"], [[], steps]], "r": [[0.1], 0, 1, 1], "v": "v0.6"})
    problem = parse_line(line.encode()).config_problem
    assert problem is None if says is None else problem is not None and says in problem
