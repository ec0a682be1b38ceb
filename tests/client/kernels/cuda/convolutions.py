"""Convolutions in float32 as networks have them."""

from __future__ import annotations

from typing import Any

from tvm import te, topi


def convolution(channels: int, size: int, *, batch: int, kernel: int = 3) -> Any:
    """With bias and ReLU, as the networks of the package have it."""
    data = te.placeholder((batch, channels, size, size), name="data")
    weight = te.placeholder((channels, channels, kernel, kernel), name="weight")
    bias = te.placeholder((1, channels, 1, 1), name="bias")
    result = topi.nn.relu(topi.add(topi.nn.conv2d(data, weight, 1, kernel // 2, 1), bias))
    return te.create_prim_func([data, weight, bias, result], index_dtype_override="int64")
