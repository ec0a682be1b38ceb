"""Lines of AutoTVM's logs, by what was tuned."""

from __future__ import annotations

import json
from typing import Any

CPU = "llvm -mcpu=skylake-avx512"


CONV = {"tile_ic": [-1, 16], "tile_oc": [-1, 32], "tile_ow": [-1, 7], "unroll_kw": True}


POINTWISE = {"tile_ic": [-1, 16], "tile_oc": [-1, 16], "tile_ow": [-1, 14], "tile_oh": 1}


PACK = {"tile_y": [-1, 2, 4], "tile_x": [-1, 1, 32], "tile_k": [-1, 2], "tile_inner": [-1, 1]}


def line(task: str, arguments: list[Any], knobs: dict[str, Any]) -> bytes:
    entity = [[name, "sp" if isinstance(value, list) else "ot", value] for name, value in knobs.items()]
    return json.dumps(
        {
            "input": [CPU, task, arguments, {}],
            "config": {"index": 1, "code_hash": None, "entity": entity},
            "result": [[1e-4], 0, 1.5, 1.5e9],
            "version": 0.2,
            "tvm_version": "0.19.0",
        }
    ).encode()


def tensor(*shape: int, dtype: str = "float32") -> list[Any]:
    return ["TENSOR", list(shape), dtype]


def conv_line(
    knobs: dict[str, Any],
    *,
    data: tuple[int, ...] = (1, 64, 56, 56),
    kernel: tuple[int, ...] = (64, 64, 3, 3),
    strides: Any = (1, 1),
    padding: Any = (1, 1, 1, 1),
    task: str = "conv2d_NCHWc.x86",
    layout: str = "NCHW",
    dtype: str = "float32",
) -> bytes:
    tensors = [tensor(*data, dtype=dtype), tensor(*kernel, dtype=dtype)]
    return line(task, [*tensors, strides, padding, [1, 1], layout, layout, dtype], knobs)


def pointwise_line(size: int = 14, *, strides: int = 1, channels: int = 64, **knobs: Any) -> bytes:
    data, kernel = (1, channels, size, size), (channels, channels, 1, 1)
    return conv_line({**POINTWISE, **knobs}, data=data, kernel=kernel, strides=[strides] * 2, padding=[0] * 4)


def depthwise_line(channels: int = 64, **knobs: Any) -> bytes:
    values = {"tile_ic": [-1, 16], "tile_oc": [-1, 16], "tile_ow": [-1, 7], "unroll_kw": True, **knobs}
    shapes: dict[str, Any] = {"data": (1, channels, 56, 56), "kernel": (channels, 1, 3, 3)}
    return conv_line(values, task="depthwise_conv2d_NCHWc.x86", **shapes)


def dense_line(task: str = "dense_pack.x86", *, rows: int = 8, outputs: int = 64, **knobs: Any) -> bytes:
    return line(task, [tensor(rows, 128), tensor(outputs, 128), None, "float32"], {**PACK, **knobs})
