"""Workloads for the transfer of records: sources that are tuned, and others of the same classes that are held out.

Each is one operator with what networks put behind it, batch 1 and 8. The held-out ones have other extents, primes and
multiples of 16 among them; none is a source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunehub.tir.nodes import tensor_class


@dataclass(frozen=True, kw_only=True)
class TransferWorkload:
    """One operator: ``make`` gives its Relax module; ``held_out`` ones may be transferred to, not from."""

    name: str
    make: Callable[[], Any]
    held_out: bool


Sizes = tuple[int, ...]


def workloads() -> list[TransferWorkload]:
    """All of them, the sources first: 52 sources and 65 held-out ones."""
    found = [
        TransferWorkload(
            name=f"{kind}_{'x'.join(map(str, sizes))}", make=_maker(build, sizes), held_out=number >= _SOURCES
        )
        for kind, (build, shapes) in _KINDS.items()
        for number, sizes in enumerate(shapes)
    ]
    return sorted(found, key=lambda workload: workload.held_out)


def _maker(build: Callable[..., Any], sizes: Sizes) -> Callable[[], Any]:
    return lambda: build(*sizes)


def _conv(
    batch: int,
    channels: int,
    size: int,
    outputs: int,
    *,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    act: bool = True,
) -> Any:
    from tvm import relax

    op = relax.op
    weight, bias = _const(outputs, channels // groups, kernel, kernel), _const(1, outputs, 1, 1)

    def make(b: Any, x: Any) -> Any:
        padding = kernel // 2
        y = b.emit(op.nn.conv2d(x, weight, strides=stride, padding=padding, groups=groups))
        y = b.emit(op.add(y, bias))
        return b.emit(op.nn.relu(y)) if act else y

    return _module(make, (batch, channels, size, size))


def _dense(rows: int, depth: int, outputs: int) -> Any:
    from tvm import relax

    weight, bias = _const(depth, outputs), _const(outputs)
    return _module(lambda b, x: b.emit(relax.op.add(b.emit(relax.op.matmul(x, weight)), bias)), (rows, depth))


def _batched(batch: int, rows: int, depth: int, outputs: int) -> Any:
    from tvm import relax

    return _module(lambda b, x, y: b.emit(relax.op.matmul(x, y)), (batch, rows, depth), (batch, depth, outputs))


def _max_pool(batch: int, channels: int, size: int) -> Any:
    from tvm import relax

    return _module(
        lambda b, x: b.emit(relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))), (batch, channels, size, size)
    )


def _softmax(rows: int, columns: int) -> Any:
    from tvm import relax

    return _module(lambda b, x: b.emit(relax.op.nn.softmax(x, -1)), (rows, columns))


def _layer_norm(rows: int, columns: int) -> Any:
    from tvm import relax

    gamma, beta = _const(columns), _const(columns)
    return _module(lambda b, x: b.emit(relax.op.nn.layer_norm(x, gamma, beta, [-1])), (rows, columns))


def _chain(batch: int, channels: int, size: int) -> Any:
    from tvm import relax

    op, scale = relax.op, _const(1, channels, 1, 1)

    def make(b: Any, x: Any, y: Any) -> Any:
        return b.emit(op.multiply(b.emit(op.sigmoid(b.emit(op.add(b.emit(op.multiply(x, scale)), y)))), x))

    shape = (batch, channels, size, size)
    return _module(make, shape, shape)


def _depthwise(batch: int, channels: int, size: int) -> Any:
    return _conv(batch, channels, size, channels, kernel=3, groups=channels)


def _with(**options: int) -> Callable[..., Any]:
    return lambda *sizes: _conv(*sizes, **options)


_SOURCES = 4  # of each kind: the first
_KINDS: dict[str, tuple[Callable[..., Any], tuple[Sizes, ...]]] = {
    "conv1x1": (_with(kernel=1), (
        (1, 64, 56, 256), (1, 256, 28, 128), (1, 512, 14, 256), (8, 128, 28, 128),
        (1, 96, 28, 192), (1, 160, 20, 320), (1, 1024, 7, 512), (1, 61, 31, 127), (8, 192, 14, 96))),
    "conv3x3": (_with(kernel=3), (
        (1, 64, 56, 64), (1, 128, 28, 128), (1, 256, 14, 256), (8, 64, 28, 64),
        (1, 96, 28, 96), (1, 192, 14, 192), (1, 48, 56, 48), (1, 37, 23, 53), (8, 128, 14, 128))),
    "conv3x3s2": (_with(kernel=3, stride=2), (
        (1, 64, 56, 128), (1, 128, 28, 256), (1, 32, 112, 64), (8, 64, 28, 128),
        (1, 96, 28, 192), (1, 160, 14, 320), (1, 24, 112, 48), (1, 41, 29, 83), (8, 128, 14, 256))),
    "conv5x5": (_with(kernel=5), (
        (1, 16, 28, 32), (1, 48, 14, 128), (1, 32, 28, 96), (8, 16, 14, 48),
        (1, 24, 28, 64), (1, 64, 14, 64), (1, 96, 27, 256), (1, 13, 19, 29), (8, 32, 14, 64))),
    "conv7x7s2": (_with(kernel=7, stride=2), (
        (1, 3, 224, 64), (1, 3, 160, 32), (1, 4, 128, 64), (8, 3, 96, 32),
        (1, 3, 192, 48), (1, 3, 256, 64), (1, 1, 224, 32), (1, 3, 113, 37), (8, 3, 128, 64))),
    "grouped": (_with(kernel=3, groups=4), (
        (1, 64, 28, 64), (1, 128, 28, 128), (1, 256, 14, 256), (8, 64, 14, 64),
        (1, 96, 28, 96), (1, 192, 14, 192), (1, 512, 7, 512), (1, 44, 23, 52), (8, 128, 14, 128))),
    "depthwise": (_depthwise, (
        (1, 32, 112), (1, 144, 56), (1, 384, 14), (8, 192, 28),
        (1, 96, 56), (1, 576, 14), (1, 960, 7), (1, 61, 31), (8, 96, 28))),
    "dense": (_dense, (
        (1, 1024, 1000), (128, 768, 768), (64, 512, 512), (128, 768, 3072),
        (1, 2048, 1000), (100, 384, 1000), (256, 1024, 256), (77, 640, 1280), (31, 127, 509))),
    "batched": (_batched, (
        (12, 128, 64, 128), (12, 128, 128, 64), (8, 64, 64, 64), (16, 197, 64, 197),
        (12, 197, 64, 197), (8, 77, 64, 77), (16, 256, 32, 256), (12, 61, 64, 61), (64, 49, 32, 49))),
    "max_pool": (_max_pool, (
        (1, 64, 112), (1, 128, 56), (1, 256, 28), (8, 64, 56),
        (1, 96, 54), (1, 192, 56), (1, 480, 28), (1, 61, 31), (8, 128, 28))),
    "softmax": (_softmax, (
        (1536, 128), (1, 1000), (512, 512), (2364, 197),
        (768, 384), (8, 1000), (1024, 77), (61, 127), (4096, 64))),
    "layer_norm": (_layer_norm, (
        (128, 768), (197, 768), (64, 1024), (256, 512),
        (77, 640), (384, 384), (50, 1280), (31, 127), (1024, 768))),
    "chain": (_chain, (
        (1, 64, 56), (1, 128, 28), (1, 256, 14), (8, 64, 28),
        (1, 96, 28), (1, 512, 7), (1, 192, 35), (1, 61, 31), (8, 128, 14))),
}  # fmt: skip


def _const(*shape: int) -> Any:
    from tvm import relax

    return relax.const(np.random.default_rng(len(shape)).uniform(-0.1, 0.1, shape).astype("float32"))


def _module(make: Callable[..., Any], *shapes: Sizes) -> Any:
    from tvm import relax

    kind = tensor_class()
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", kind(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(make(builder, *inputs))
        builder.emit_func_output(output)
    return builder.get()
