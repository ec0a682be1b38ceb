"""Random small networks for differential testing: one operator with a random epilogue, in shapes that nobody chose."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunehub.tir.nodes import tensor_class

_ROUND = (1, 2, 3, 5, 7, 8, 16, 24, 32, 48, 64, 96, 128, 144, 192, 256, 384, 512, 768, 1024)
_PRIMES = (13, 17, 31, 49, 53, 97, 101, 127, 197, 211)
TOKENS = (1, 7, 16, 49, 64, 77, 98, 100, 128, 196, 197, 256, 384, 577)
_WIDTHS = (64, 96, 128, 192, 256, 288, 384, 512, 768, 1000, 1152, 1536, 2048, 2304, 3072, 4096)
PIXELS = (7, 8, 13, 14, 16, 27, 28, 32, 35, 56, 57)
CHANNELS = (3, 8, 10, 16, 24, 27, 32, 48, 64, 96, 128, 192, 256, 320, 512)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomNetwork:
    """``mod``: an IRModule whose Relax function ``main`` applies one operator of ``kind`` and its epilogue."""

    kind: str
    dtype: str
    mod: Any


@dataclass(slots=True)
class Inputs:
    """Makes the inputs of a network, one after the other; all of one type unless asked for."""

    dtype: str
    made: list[Any] = field(default_factory=list)

    def __call__(self, *shape: Any, dtype: str | None = None) -> Any:
        from tvm import relax

        kind = tensor_class()
        self.made.append(relax.Var(f"v{len(self.made)}", kind(shape, dtype or self.dtype)))
        return self.made[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnOperator:
    """``call``: the operator on its inputs; ``channel``: the axis of a bias, None where none is usual."""

    call: Any
    shape: tuple[Any, ...]
    channel: int | None = None


def random_network(seed: int) -> RandomNetwork:
    """The network of a seed; the same each time. float16 in a third of them."""
    rng = random.Random(seed)
    dtype, kind = rng.choice(("float32", "float32", "float16")), rng.choice(_KINDS)
    inputs = Inputs(dtype)
    operator = kind(rng, inputs)
    steps = epilogue(rng, inputs, operator) if operator.channel is not None else []
    mod = network_of(inputs, lambda builder: operator.call, steps)
    return RandomNetwork(kind=kind.__name__.strip("_"), dtype=dtype, mod=mod)


def network_of(inputs: Inputs, call: Callable[[Any], Any], steps: Sequence[Callable[[Any], Any]]) -> Any:
    """An IRModule whose ``main`` takes ``inputs`` and applies ``call``, of a BlockBuilder, and then ``steps``."""
    from tvm import relax

    builder = relax.BlockBuilder()
    with builder.function("main", inputs.made):
        with builder.dataflow():
            value = builder.emit(call(builder))
            for step in steps:
                value = builder.emit(step(value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def extent(rng: random.Random) -> int:
    """Of an axis: often round, sometimes a prime."""
    return rng.choice((rng.choice(_ROUND), rng.choice(_PRIMES), rng.randint(1, 300)))


def width(rng: random.Random) -> int:
    """Of an axis of matrices, as networks have them."""
    return rng.choice((*_WIDTHS, rng.randint(1, 1500), extent(rng)))


def epilogue(rng: random.Random, inputs: Inputs, operator: DrawnOperator) -> list[Callable[[Any], Any]]:
    """A bias, a residual, an activation: each or none."""
    from tvm.relax import op

    steps: list[Callable[[Any], Any]] = []
    assert operator.channel is not None
    if rng.random() < 0.7:
        bias = [1] * len(operator.shape)
        bias[operator.channel] = operator.shape[operator.channel]
        steps.append(_adding(inputs(*bias)))
    if rng.random() < 0.3:
        steps.append(_adding(inputs(*operator.shape)))
    activation = rng.choice((op.nn.relu, op.nn.relu, op.nn.gelu, op.sigmoid, None, None, None))
    return [*steps, activation] if activation else steps


def _adding(other: Any) -> Callable[[Any], Any]:
    from tvm.relax import op

    return lambda value: op.add(value, other)


def _matmul(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    from tvm.relax import op

    batch = rng.choice(((), (1,), (1,), (rng.randint(2, 4),)))
    rows, k, columns = rng.choice((*TOKENS, rng.randint(1, 300))), width(rng), width(rng)
    call = op.matmul(inputs(*batch, rows, k), inputs(k, columns))
    return DrawnOperator(call=call, shape=(*batch, rows, columns), channel=len(batch) + 1)


def _attention_matmul(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    from tvm.relax import op

    heads, rows, columns = rng.randint(1, 12), rng.choice(TOKENS[1:11]), rng.choice(TOKENS[1:11])
    k = rng.choice((16, 32, 64, 80))
    call = op.matmul(inputs(1, heads, rows, k), inputs(1, heads, k, columns))
    return DrawnOperator(call=call, shape=(1, heads, rows, columns), channel=3)


def _convolution(rng: random.Random, inputs: Inputs, groups: int = 1, depthwise: bool = False) -> DrawnOperator:
    from tvm.relax import op

    batch = rng.choice((1, 1, 1, 2, 4))
    channels, results = (groups * max(1, rng.choice(CHANNELS) // groups) for _ in range(2))
    if depthwise:
        groups = results = channels
    kernel, stride = rng.choice((1, 1, 3, 3, 3, 5, 7)), rng.choice((1, 1, 2))
    dilation = rng.choice((1, 1, 1, 2)) if kernel > 1 else 1
    before, after = rng.choice(((kernel // 2, kernel // 2), (kernel // 2, kernel // 2), (0, 0), (0, 1)))
    covered = dilation * (kernel - 1) + 1
    size = max(rng.choice(PIXELS), covered)
    found = (size + before + after - covered) // stride + 1
    call = op.nn.conv2d(
        inputs(batch, channels, size, size), inputs(results, channels // groups, kernel, kernel),
        strides=stride, padding=(before, before, after, after), dilation=dilation, groups=groups,
    )  # fmt: skip
    return DrawnOperator(call=call, shape=(batch, results, found, found), channel=1)


def _depthwise_convolution(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    return _convolution(rng, inputs, depthwise=True)


def _grouped_convolution(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    return _convolution(rng, inputs, groups=rng.choice((2, 4, 8)))


def _pooling(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    from tvm.relax import op

    size, kernel = rng.choice((14, 28, 56, 57)), rng.choice((2, 3))
    pool = rng.choice((op.nn.max_pool2d, op.nn.avg_pool2d))
    call = pool(inputs(1, rng.choice((8, 33, 64, 96)), size, size), pool_size=kernel, strides=2, padding=kernel // 2)
    return DrawnOperator(call=call, shape=())


def _softmax(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    from tvm.relax import op

    data = inputs(rng.randint(1, 12), rng.choice(TOKENS[1:11]), rng.choice((*TOKENS[1:11], 1000)))
    return DrawnOperator(call=op.nn.softmax(data, axis=-1), shape=())


def _layer_norm(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    from tvm.relax import op

    width = rng.choice((64, 96, 192, 384, 768, 1000))
    data = inputs(1, rng.choice(TOKENS[1:11]), width)
    return DrawnOperator(call=op.nn.layer_norm(data, inputs(width), inputs(width), axes=[-1]), shape=())


def _mean(rng: random.Random, inputs: Inputs) -> DrawnOperator:
    from tvm.relax import op

    data = inputs(rng.choice((1, 2)), rng.choice((64, 320, 512, 1000, 2048)), 7, 7)
    return DrawnOperator(call=op.mean(data, [2, 3], keepdims=True), shape=())


_KINDS = (
    *(_matmul, _matmul, _matmul, _attention_matmul, _convolution, _convolution, _convolution),
    *(_depthwise_convolution, _grouped_convolution, _pooling, _softmax, _layer_norm, _mean),
)
