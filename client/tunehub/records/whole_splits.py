"""AutoTVM's records as TVM's own fallback rule takes them: with the outermost part of every split stated.

TVM writes that part as -1. Its rule (`autotvm/task/space.py`, `fallback_with_reference_log`) takes the product of all
parts for the length of the axis, and ends the build with a ValueError when it is negative. Schedules are made of the
other parts alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

_UNSTATED = b"[-1"
_DIRECT, _DEPTHWISE = "conv2d_nchw.cuda", "depthwise_conv2d_nchw.cuda"


def with_whole_splits(line: bytes) -> bytes:
    """A line of AutoTVM's format 0.2 with whole splits; any other line, and one that has them, as it is.

    The outermost part is the axis' length over the other parts in the templates that TVM offers references to on CUDA,
    and 1 in others, whose axes are not known here. Raises ValueError for a line that is not JSON.
    """
    if _UNSTATED not in line:
        return line
    record = json.loads(line)
    try:
        _, task, arguments, _ = record["input"]
        extents = _extents(str(task), arguments)
        for knob in record["config"]["entity"]:
            name, kind, value = knob
            if kind == "sp" and value[0] == -1:
                inner = math.prod(value[1:])
                knob[2] = [max(1, extents.get(name, inner) // inner), *value[1:]]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return line  # not of this format
    return json.dumps(record).encode()


def _extents(task: str, arguments: Sequence[Any]) -> Mapping[str, int]:
    """The lengths of the axes that a template splits, by knob."""
    if task not in (_DIRECT, _DEPTHWISE):
        return {}
    data, kernel, strides, padding, dilation = arguments[:5]
    (_, channels, *image), (out, deep, *window) = data[1], kernel[1]
    before, after = padding[:2], padding[2:]
    height, width = (
        (size + low + high - (taps - 1) * apart - 1) // step + 1
        for size, low, high, taps, apart, step in zip(image, before, after, window, dilation, strides, strict=True)
    )
    return {
        "tile_f": out if task == _DIRECT else channels * deep,
        "tile_y": height,
        "tile_x": width,
        "tile_rc": deep,
        "tile_ry": window[0],
        "tile_rx": window[1],
    }
