"""Splits of AutoTVM's records as TVM's fallback rule takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunehub.records.whole_splits import with_whole_splits

pytestmark = pytest.mark.fast


def record(task: str, arguments: list[Any], **splits: list[int]) -> dict[str, Any]:
    entity = [*([name, "sp", sizes] for name, sizes in splits.items()), ["unroll_explicit", "ot", -1]]
    return {
        "input": ["cuda -model=h200", task, arguments, {}],
        "config": {"index": 7, "code_hash": None, "entity": entity},
        "result": [[1.25e-05], 0, 0.5, 1700000000.5], "version": 0.2, "tvm_version": "0.19.0",
    }  # fmt: skip


def conv(out: int = 64, size: int = 56, stride: int = 1, window: int = 3, dilation: int = 1) -> list[Any]:
    pad = window // 2
    return [
        ["TENSOR", [1, 32, size, size], "float32"], ["TENSOR", [out, 32, window, window], "float32"],
        [stride, stride], [pad, pad, pad, pad], [dilation, dilation], "float32",
    ]  # fmt: skip


def whole(line: dict[str, Any]) -> dict[str, list[int]]:
    """The splits afterwards; nothing else of the line may have changed."""
    found = json.loads(with_whole_splits(json.dumps(line).encode()))
    splits = {name: value for name, kind, value in found["config"]["entity"] if kind == "sp"}
    for after, before in zip(found["config"]["entity"], line["config"]["entity"], strict=True):
        assert after[2][1:] == before[2][1:] if before[1] == "sp" else after == before
    assert {**found, "config": None} == {**line, "config": None}
    return splits


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (conv(), {"tile_f": 64, "tile_y": 56, "tile_x": 56, "tile_rc": 32, "tile_ry": 3, "tile_rx": 3}),
        (conv(96, 224, 2, 7), {"tile_f": 96, "tile_y": 112, "tile_x": 112, "tile_rc": 32, "tile_ry": 7, "tile_rx": 7}),
        (conv(dilation=2), {"tile_f": 64, "tile_y": 54, "tile_x": 54, "tile_rc": 32, "tile_ry": 3, "tile_rx": 3}),
    ],
    ids=["stride 1", "stride 2", "dilated"],
)
def test_the_parts_of_a_convolution_multiply_to_its_axes(arguments: list[Any], expected: dict[str, int]) -> None:
    inner = {name: [-1, 1] if name.startswith("tile_r") else [-1, 1, 2, 1] for name in expected}
    found = whole(record("conv2d_nchw.cuda", arguments, **inner))
    products = {name: sizes[0] * 2 if len(sizes) == 4 else sizes[0] for name, sizes in found.items()}
    assert products == expected


def test_the_channels_of_a_depthwise_one_are_those_of_its_input() -> None:
    arguments = conv()
    arguments[1][1] = [32, 2, 3, 3]
    found = whole(record("depthwise_conv2d_nchw.cuda", arguments, tile_f=[-1, 1, 8, 1], tile_y=[-1, 1, 7, 4]))
    assert found == {"tile_f": [8, 1, 8, 1], "tile_y": [2, 1, 7, 4]}


def test_of_unknown_axes_the_outermost_part_is_one() -> None:
    assert whole(record("batch_matmul.cuda", [], tile_y=[-1, 8, 4])) == {"tile_y": [1, 8, 4]}


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(record("conv2d_nchw.cuda", conv(), tile_f=[8, 1, 8, 1])),
        json.dumps(record("conv2d_nchw.cuda", [[-1]], tile_f=[-1, 1, 8, 1])),
        json.dumps(record("conv2d_nchw.cuda", conv(), tile_f=[-1, 0])),
        '{"i": [["x"], [[], [["SP", 2, 0, 4, [-1], 1]]]], "r": [[1.0], 0, 1, 1], "v": "v0.6"}',
        "[-1]", '{"input": [-1]}',
    ],
    ids=["whole already", "strange arguments", "an empty part", "the auto-scheduler", "a list", "no record"],
)  # fmt: skip
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert with_whole_splits(line.encode()) == line.encode()
