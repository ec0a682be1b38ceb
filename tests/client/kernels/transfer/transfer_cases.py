"""Functions in the layouts that networks have, of random extents: primes and ones are as likely as powers of two."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te, topi

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 14, 16, 17, 19, 23, 28, 31, 32, 37, 48)
Shape = tuple[int, ...]
Described = tuple[Callable[..., Any], list[Shape]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function: `mod`, and the shapes of its parameters, the last of which it writes."""

    kind: str
    mod: Any
    shapes: list[Shape]


def case(kind: str, seed: int) -> Case:
    """The function of this kind with the extents of `seed`."""
    make, shapes = KINDS[kind](random.Random(f"{kind} {seed}"))
    parameters = [te.placeholder(shape, "float32", name=f"p{i}") for i, shape in enumerate(shapes)]
    arguments = [*parameters, make(*parameters)]
    function = te.create_prim_func(arguments).with_attr("global_symbol", "main")
    if len(shapes) > 1:
        function = function.with_attr("layout_free_buffers", [1])  # the weights: packed when the schedule wants it
    return Case(
        kind=kind,
        mod=tvm.IRModule({"main": function}),
        shapes=[tuple(int(extent) for extent in argument.shape) for argument in arguments],
    )


def outputs(mod: Any, target: Any, shapes: list[Shape]) -> Any:
    """What a function writes, NaN before; the inputs are the same in every call."""
    rng = np.random.default_rng(7)
    inputs = [tvm.runtime.tensor(rng.uniform(-1, 1, shape).astype("float32")) for shape in shapes[:-1]]
    output = tvm.runtime.tensor(np.full(shapes[-1], np.nan, "float32"))
    tvm.tirx.build(mod, target=target)["main"](*inputs, output)
    return output.numpy()


def _pick(rng: random.Random, most: int = 48) -> int:
    return rng.choice([extent for extent in EXTENTS if extent <= most])


def _conv(kernel: int, stride: int = 1, *, bias: bool = False, batches: tuple[int, ...] = (1, 1, 2, 8)) -> Any:
    def describe(rng: random.Random) -> Described:
        channels, outputs, batch = _pick(rng), _pick(rng), rng.choice(batches)
        size = max(kernel, _pick(rng, 19))

        def make(x: Any, w: Any, *rest: Any) -> Any:
            y = topi.nn.conv2d_nchw(x, w, stride, kernel // 2, 1)
            return topi.nn.relu(topi.add(y, rest[0])) if bias else y

        weights = [(outputs, channels, kernel, kernel), *([(1, outputs, 1, 1)] if bias else [])]
        return make, [(batch, channels, size, max(kernel, _pick(rng, 19))), *weights]

    return describe


def _grouped(rng: random.Random) -> Described:
    groups, channels, outputs, size = rng.choice((2, 3, 4)), _pick(rng, 8), _pick(rng, 8), max(3, _pick(rng, 14))
    shapes = [(1, groups * channels, size, size), (groups * outputs, channels, 3, 3)]
    return lambda x, w: topi.nn.group_conv2d_nchw(x, w, 1, 1, 1, groups), shapes


def _depthwise(rng: random.Random) -> Described:
    channels, size = _pick(rng), max(3, _pick(rng, 19))
    shapes = [(rng.choice((1, 8)), channels, size, size), (channels, 1, 3, 3)]
    return lambda x, w: topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1), shapes


def _dense(rng: random.Random) -> Described:
    rows, depth, width = _pick(rng), _pick(rng), _pick(rng)
    return lambda x, w, b: topi.nn.relu(topi.add(topi.nn.matmul(x, w), b)), [(rows, depth), (depth, width), (width,)]


def _dense_plain(rng: random.Random) -> Described:
    rows, depth, width = _pick(rng), _pick(rng), _pick(rng)
    return lambda x, w: topi.nn.matmul(x, w), [(rows, depth), (depth, width)]


def _transposed_dense(rng: random.Random) -> Described:
    rows, depth, width = _pick(rng), _pick(rng), _pick(rng)
    return lambda x, w: topi.nn.matmul(x, w, transpose_b=True), [(rows, depth), (width, depth)]


def _batched(rng: random.Random) -> Described:
    batch, rows, depth, width = _pick(rng, 8), _pick(rng), _pick(rng), _pick(rng)
    return lambda x, y: topi.nn.batch_matmul(x, y, transpose_b=False), [(batch, rows, depth), (batch, depth, width)]


def _softmax(rng: random.Random) -> Described:
    return lambda x: topi.nn.softmax(x, 1), [(_pick(rng, 8), _pick(rng), _pick(rng, 8))]


def _pool(rng: random.Random) -> Described:
    size = max(3, _pick(rng, 19))
    return lambda x: topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max"), [(1, _pick(rng), size, size)]


def _mean(rng: random.Random) -> Described:
    shape = (_pick(rng, 8), _pick(rng), _pick(rng, 14))
    return lambda x: topi.multiply(topi.sum(x, 1), tvm.tirx.const(1 / shape[1], "float32")), [shape]


def _chain(rng: random.Random) -> Described:
    shape = (_pick(rng, 8), _pick(rng), _pick(rng))
    return lambda x: topi.transpose(topi.add(topi.tanh(x), x), (0, 2, 1)), [shape]


KINDS: dict[str, Callable[[random.Random], Described]] = {
    "conv1x1": _conv(1, bias=True),
    "conv3x3": _conv(3, bias=True),
    "conv3x3_plain": _conv(3),
    "conv5x5_stride2": _conv(5, 2),
    "conv7x7_stride2": _conv(7, 2, bias=True),
    "grouped": _grouped,
    "depthwise": _depthwise,
    "dense": _dense,
    "dense_plain": _dense_plain,
    "transposed_dense": _transposed_dense,
    "batched": _batched,
    "softmax": _softmax,
    "pool": _pool,
    "mean": _mean,
    "chain": _chain,
}
