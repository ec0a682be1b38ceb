"""Small functions of the kinds that records are for, of random extents: what random schedules are tried on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

_EXTENTS = (1, 2, 3, 5, 7, 8, 12, 16, 17, 24, 32, 33, 48)
Parameters: TypeAlias = "list[Any]"


def random_function(kind: str, seed: int) -> Any:
    """An IRModule with one PrimFunc ``main`` of a ``kind`` of :data:`KINDS`; the same for a seed each time."""
    from tvm import te

    from tunehub.tir.nodes import main_module

    return main_module(te.create_prim_func(KINDS[kind](random.Random(f"{kind} {seed}"))))


def _extents(rng: random.Random, count: int) -> list[int]:
    return [rng.choice(_EXTENTS) for _ in range(count)]


def _inputs(*shapes: tuple[int, ...], dtype: str = "float32") -> Parameters:
    from tvm import te

    return [te.placeholder(shape, dtype, f"p{number}") for number, shape in enumerate(shapes)]


def _ended(rng: random.Random, parameters: Parameters, value: Any) -> Parameters:
    """``parameters`` and ``value``, mostly with an epilogue behind it."""
    from tvm import te, topi

    steps: tuple[Callable[[Any], Any], ...] = (
        lambda x: x,
        topi.nn.relu,
        topi.sigmoid,
        lambda x: te.compute(x.shape, lambda *i: x(*i) * 2.0 + 1.0, "scaled"),
        lambda x: topi.nn.relu(te.compute(x.shape, lambda *i: x(*i) + parameters[0](*[0] * len(parameters[0].shape)))),
        lambda x: topi.multiply(topi.exp(topi.negative(topi.abs(x))), x),
    )
    return [*parameters, rng.choice(steps)(value)]


def _matmul(rng: random.Random) -> Parameters:
    from tvm import topi

    m, n, k = _extents(rng, 3)
    a, b = _inputs((m, k), (k, n))
    return _ended(rng, [a, b], topi.nn.matmul(a, b))


def _dense(rng: random.Random) -> Parameters:
    from tvm import topi

    m, n, k = _extents(rng, 3)
    a, b, bias = _inputs((m, k), (n, k), (1, n))
    return _ended(rng, [a, b, bias], topi.add(topi.nn.dense(a, b), bias))


def _batch_matmul(rng: random.Random) -> Parameters:
    from tvm import topi

    m, n, k = _extents(rng, 3)
    a, b = _inputs((3, m, k), (3, n, k))
    return _ended(rng, [a, b], topi.nn.batch_matmul(a, b))


def _two_products(rng: random.Random) -> Parameters:
    from tvm import topi

    m, n, k = _extents(rng, 3)
    a, b, c = _inputs((m, k), (k, n), (n, 8))
    return _ended(rng, [a, b, c], topi.nn.matmul(topi.nn.relu(topi.nn.matmul(a, b)), c))


def _integer_product(rng: random.Random) -> Parameters:
    from tvm import te

    m, k = rng.choice(_EXTENTS), 4 * rng.randint(1, 8)
    a, b = te.placeholder((m, k), "uint8", "p0"), te.placeholder((32, k), "int8", "p1")
    axis = te.reduce_axis((0, k), "k")
    terms = te.compute(
        (m, 32), lambda i, j: te.sum(a[i, axis].astype("int32") * b[j, axis].astype("int32"), axis=axis), "product"
    )
    return [a, b, te.compute(terms.shape, lambda i, j: terms[i, j] + 3, "shifted")]


def _convolution(rng: random.Random) -> Parameters:
    from tvm import topi

    c, o, size = rng.choice((1, 3, 4, 8)), rng.choice((1, 4, 8, 12)), rng.randint(5, 14)
    kernel, stride, padding = rng.choice((1, 3)), rng.choice((1, 2)), rng.choice((0, 1))
    a, w = _inputs((1, c, size, size), (o, c, kernel, kernel))
    return _ended(rng, [a, w], topi.nn.conv2d_nchw(a, w, stride, padding, 1))


def _depthwise(rng: random.Random) -> Parameters:
    from tvm import topi

    c, size = rng.choice((3, 4, 8)), rng.randint(5, 14)
    a, w = _inputs((1, c, size, size), (c, 1, 3, 3))
    return _ended(rng, [a, w], topi.nn.depthwise_conv2d_nchw(a, w, 1, rng.choice((0, 1)), 1))


def _blocked_convolution(rng: random.Random) -> Parameters:
    from tunehub.kernels.te import blocked

    size, kernel = rng.randint(5, 12), rng.choice((1, 3))
    a, w = _inputs((1, 2, size, size, 8), (2, 2, kernel, kernel, 8, 8))
    value = blocked.conv2d_blocked(a, w, strides=(1, 1), padding=(kernel // 2,) * 4, dilation=(1, 1))
    return _ended(rng, [a, w], value)


def _pooling(rng: random.Random) -> Parameters:
    from tvm import topi

    size, kernel = rng.randint(6, 15), rng.choice((2, 3))
    (a,) = _inputs((1, rng.choice((3, 8)), size, size))
    padding = [kernel // 2] * 4
    value = topi.nn.pool2d(a, [kernel] * 2, [2, 2], [1, 1], padding, rng.choice(("max", "avg")), layout="NCHW")
    return _ended(rng, [a], value)


def _softmax(rng: random.Random) -> Parameters:
    from tvm import topi

    (a,) = _inputs(tuple(_extents(rng, 2)))
    return [a, topi.nn.softmax(a, axis=1)]


def _layer_norm(rng: random.Random) -> Parameters:
    from tvm import topi

    rows, width = _extents(rng, 2)
    a, scale, bias = _inputs((rows, width), (width,), (width,))
    return [a, scale, bias, topi.nn.layer_norm(a, scale, bias, [1])]


def _mean(rng: random.Random) -> Parameters:
    from tvm import topi

    (a,) = _inputs((2, *_extents(rng, 2)))
    return _ended(rng, [a], topi.divide(topi.sum(a, axis=rng.choice(((1,), (2,), (1, 2)))), 3.0))


def _argmax(rng: random.Random) -> Parameters:
    from tvm import topi

    (a,) = _inputs(tuple(_extents(rng, 2)))
    return [a, topi.argmax(a, axis=1)]


def _elementwise(rng: random.Random) -> Parameters:
    from tvm import topi

    a, b = _inputs(*[tuple(_extents(rng, 3))] * 2)
    return _ended(rng, [a, b], topi.multiply(topi.tanh(a), b))


def _transpose(rng: random.Random) -> Parameters:
    from tvm import topi

    (a,) = _inputs(tuple(_extents(rng, 3)))
    return _ended(rng, [a], topi.transpose(a, rng.choice(((0, 2, 1), (2, 1, 0), (1, 2, 0)))))


def _concatenation(rng: random.Random) -> Parameters:
    from tvm import topi

    rows, *widths = _extents(rng, 3)
    a, b = _inputs(*((rows, width) for width in widths))
    joined = topi.concatenate([a, b], axis=1)
    return _ended(rng, [a, b], topi.strided_slice(joined, [0, 0], [rows, sum(widths)], [1, 2]))


def _padding(rng: random.Random) -> Parameters:
    from tvm import topi

    (a,) = _inputs(tuple(_extents(rng, 2)))
    return _ended(rng, [a], topi.nn.pad(a, [rng.randint(0, 2), 1], [1, rng.randint(0, 3)]))


def _gather(rng: random.Random) -> Parameters:
    from tvm import te, topi

    rows, width, count = _extents(rng, 3)
    a, places = te.placeholder((rows + 1, width), "float32", "p0"), te.placeholder((count,), "int32", "p1")
    return _ended(rng, [a, places], topi.take(a, places, axis=0, mode="clip"))


KINDS: dict[str, Callable[[random.Random], Parameters]] = {
    "matmul": _matmul,
    "dense": _dense,
    "batch_matmul": _batch_matmul,
    "two_products": _two_products,
    "integer_product": _integer_product,
    "convolution": _convolution,
    "depthwise": _depthwise,
    "blocked_convolution": _blocked_convolution,
    "pooling": _pooling,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "mean": _mean,
    "argmax": _argmax,
    "elementwise": _elementwise,
    "transpose": _transpose,
    "concatenation": _concatenation,
    "padding": _padding,
    "gather": _gather,
}
