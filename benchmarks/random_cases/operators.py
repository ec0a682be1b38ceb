"""Random networks of one operator each, of every kind that rules for CUDA serve, static and with an open dimension."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from benchmarks.random_cases.functions import (
    CHANNELS,
    PIXELS,
    TOKENS,
    DrawnOperator,
    Inputs,
    epilogue,
    extent,
    network_of,
    width,
)
from tunehub.kernels.cuda.low_batch.weights import GROUP, QUANTISED, WORD_BITS, Format, dequantised

OPEN = "n"  # the open dimension
_SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 127, 128, 129, 197, 256, 300, 384)
_FEW = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16)
_COUNT = 10  # sizes of a network with an open dimension
_IMAGES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
_HALVES = ("float16", "float16", "bfloat16")
_SCALES = {"layer_norm": 2, "rms_norm": 1}
_DTYPES = ("float32", "tf32", *_HALVES)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorCase:
    """``mod``: an IRModule whose Relax function ``main`` applies an operator of ``kind`` and its epilogue in ``dtype``,
    float32 as ``precision`` says. ``sizes``: values of its open dimension; empty without one."""

    kind: str
    dtype: str
    precision: str
    mod: Any
    sizes: tuple[int, ...]


_Emitted: TypeAlias = Callable[[Any], Any]
_Maker: TypeAlias = Callable[[random.Random, Inputs, Any], DrawnOperator]


def random_case(seed: int, kinds: tuple[str, ...] = ()) -> OperatorCase:
    """The case of a seed; the same each time. ``kinds``: only these, all by default."""
    from tvm import tirx

    rng = random.Random(seed)
    kind = rng.choice(kinds or tuple(OPERATORS))
    made = OPERATORS[kind] if kind in OPERATORS else NARROW[kind]
    asked = rng.choice(made.dtypes)
    dtype, precision = ("float32", "tf32") if asked == "tf32" else (asked, "float32")
    inputs = Inputs(dtype)
    operator = made.make(rng, inputs, tirx.Var(OPEN, "int64") if made.sizes else None)
    steps = epilogue(rng, inputs, operator) if operator.channel is not None else []
    mod = network_of(inputs, operator.call, steps)
    sizes = tuple(rng.sample(made.sizes, min(_COUNT, len(made.sizes))))
    return OperatorCase(kind=kind, dtype=dtype, precision=precision, mod=mod, sizes=sizes)


def _product(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    """In all four transpositions, batched on both sides or on one."""
    lead = rng.choice(((), (), (1,), (rng.randint(2, 4),), (1, rng.randint(2, 12))))
    small = len(lead) == 2
    rows = n if n is not None else rng.choice((*TOKENS, extent(rng)))
    k = rng.choice((16, 32, 64, 80, extent(rng))) if small else width(rng)
    columns = rng.choice((*TOKENS, extent(rng))) if small else width(rng)
    own = lead if rng.random() < 0.5 else ()
    call = _turned_product(rng, inputs, (*lead, rows, k), (*own, k, columns))
    return DrawnOperator(call=call, shape=(*lead, rows, columns), channel=len(lead) + 1)


def _turned_product(rng: random.Random, inputs: Inputs, left: tuple[Any, ...], right: tuple[Any, ...]) -> _Emitted:
    from tvm.relax import op

    operands = []
    for shape in (left, right):
        turned = rng.random() < 0.5
        operands.append((inputs(*shape[:-2], *(reversed(shape[-2:]) if turned else shape[-2:])), turned, len(shape)))

    def call(builder: Any) -> Any:
        x, y = (_swapped(builder, each, rank) if turned else each for each, turned, rank in operands)
        return op.matmul(x, y)

    return call


def _swapped(builder: Any, value: Any, rank: int) -> Any:
    from tvm.relax import op

    return builder.emit(op.permute_dims(value, [*range(rank - 2), rank - 1, rank - 2]))


def _few_rows(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    """Rows times weights [N, K] in half precision, or quantised in groups."""
    from tvm.relax import op

    form = rng.choice((None, None, *QUANTISED)) if inputs.dtype == "float16" else None
    rows = n if n is not None else rng.choice((1, 2, 3, 4, 5, 8, 9, 16, 17, 24, 31, 32, 33, 48, 64, rng.randint(1, 64)))
    columns, k = rng.choice((_wide_extent(rng), extent(rng))), GROUP * rng.randint(2, 160)
    lead = rng.choice(((), (1,)))
    x = inputs(*lead, rows, k)
    made = _weights(inputs, columns, k, form)

    def call(builder: Any) -> Any:
        return op.matmul(x, _swapped(builder, made(builder), 2))

    return DrawnOperator(call=call, shape=(*lead, rows, columns), channel=len(lead) + 1)


def _wide_extent(rng: random.Random) -> int:
    return 8 * rng.randint(16, 1100)


def _weights(inputs: Inputs, columns: int, k: int, form: Format | None) -> _Emitted:
    if form is None:
        weights = inputs(columns, k)
        return lambda builder: weights
    words = inputs(columns, k * form.bits // WORD_BITS, dtype="uint32")
    scales = inputs(columns, k // form.group)
    return lambda builder: builder.emit_te(
        lambda w, s: dequantised(w, s, form), words, scales, primfunc_name_hint=f"dequantize{form.bits}"
    )


def _convolution(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    return _convolved(rng, inputs, n)


def _grouped(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    return _convolved(rng, inputs, n, groups=rng.choice((2, 4, 8, 0)))


def _channels_last(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    return _convolved(rng, inputs, n, last=True)


def _narrow_product(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    """Few rows, few columns or short sums, or several of these; also with vectors in a batch."""
    extents = [rng.choice(_FEW) if rng.random() < 0.5 else rng.choice((*TOKENS, width(rng))) for _ in range(3)]
    if min(extents) > _FEW[-1]:
        extents[rng.randrange(3)] = rng.choice(_FEW)
    rows, k, columns = extents
    lead = rng.choice(((), (), (1,), (rng.randint(2, 12),)))
    call = _turned_product(rng, inputs, (*lead, rows, k), (*(lead if rng.random() < 0.5 else ()), k, columns))
    return DrawnOperator(call=call, shape=(*lead, rows, columns), channel=len(lead) + 1)


def _narrow_convolution(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    return _convolved(rng, inputs, n, drawn=_few_channels(rng))


def _narrow_channels_last(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    return _convolved(rng, inputs, n, last=True, drawn=_few_channels(rng))


def _few_channels(rng: random.Random) -> tuple[int, int]:
    """Of images and results; results are few in two of three."""
    return rng.choice((*_FEW, *CHANNELS)), rng.choice((*_FEW, *_FEW, *CHANNELS))


def _narrow_grouped(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    """Some groups of one to three channels, with one to five results each."""
    groups, last = rng.choice((2, 3, 5, 8, 12, 24, 32, 96)), rng.random() < 0.5
    channels = groups * rng.choice((1, 1, 1, 2, 3)), groups * rng.choice((1, 1, 2, 3, 5))
    return _convolved(rng, inputs, n, groups=groups, last=last, drawn=channels)


def _convolved(
    rng: random.Random,
    inputs: Inputs,
    n: Any,
    groups: int = 1,
    last: bool = False,
    drawn: tuple[int, int] | None = None,
) -> DrawnOperator:
    """A convolution; ``groups`` 0: one for each channel. ``drawn``: channels of images and results; None: any."""
    from tvm.relax import op

    batch = n if n is not None else rng.choice((1, 1, 2, 4, 8))
    found = drawn or [max(groups, 1) * max(1, rng.choice(CHANNELS) // max(groups, 1)) for _ in range(2)]
    channels, results = found
    if groups == 0:
        groups = results = channels
    kernel, stride = rng.choice((1, 1, 3, 3, 3, 5, 7)), rng.choice((1, 1, 2))
    wide = kernel if rng.random() < 0.9 else 1
    dilation = rng.choice((1, 1, 1, 2)) if kernel > 1 else 1
    before, after = rng.choice(((kernel // 2, kernel // 2), (kernel // 2, kernel // 2), (0, 0), (0, 1)))
    covered = [dilation * (side - 1) + 1 for side in (kernel, wide)]
    image = [max(rng.choice(PIXELS), *covered) for _ in range(2)]
    image = image if rng.random() < 0.3 else [image[0]] * 2
    found = [(size + before + after - own) // stride + 1 for size, own in zip(image, covered, strict=True)]
    options: dict[str, Any] = {
        "strides": stride,
        "padding": (before, before, after, after),
        "dilation": dilation,
        "groups": groups,
    }
    if last:
        data, weights = inputs(batch, *image, channels), inputs(results, kernel, wide, channels // groups)
        options |= {"data_layout": "NHWC", "kernel_layout": "OHWI"}
        return DrawnOperator(
            call=lambda _: op.nn.conv2d(data, weights, **options), shape=(batch, *found, results), channel=3
        )
    data, weights = inputs(batch, channels, *image), inputs(results, channels // groups, kernel, wide)
    return DrawnOperator(
        call=lambda _: op.nn.conv2d(data, weights, **options), shape=(batch, results, *found), channel=1
    )


def _attention(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    """Heads in their axis or in the rows, grouped or not; a mask of any shape, a causal one, or none."""
    from tvm import relax
    from tvm.relax import op

    heads, shared = rng.choice(((1, 1), (2, 1), (4, 1), (12, 1), (3, 1), (4, 2), (8, 4)))
    depth = rng.choice((64, 64, 128, 32, 80, 96, 16 * rng.randint(1, 8), 8 * rng.randint(1, 16)))
    batch = rng.choice((1, 1, 2, 3))
    queries = n if n is not None else rng.choice((1, *TOKENS, rng.randint(1, 600)))
    keys = queries if n is not None or rng.random() < 0.6 else rng.choice((*TOKENS, rng.randint(2, 600)))
    rows = rng.random() < 0.5
    scale = relax.const(depth**-0.5, inputs.dtype)
    sides = [(heads, queries), (heads // shared, keys), (heads // shared, keys)]
    given = [inputs(batch, long, own, depth) if rows else inputs(batch, own, long, depth) for own, long in sides]
    masks = [(batch, 1, 1, keys), (1, 1, queries, keys), (batch, heads, queries, keys)]
    mask = inputs(*rng.choice(masks)) if rng.random() < 0.5 else None
    causal = n is None and mask is None and queries <= keys and rng.random() < 0.5
    if causal:
        mask = relax.const(np.triu(np.full((queries, keys), -np.inf, "float32"), keys - queries + 1), inputs.dtype)

    def call(builder: Any) -> Any:
        q, k, v = (builder.emit(op.permute_dims(each, [0, 2, 1, 3])) if rows else each for each in given)
        if shared > 1:
            k, v = (_repeated(builder, each, (batch, heads // shared, shared, keys, depth)) for each in (k, v))
        scores = builder.emit(op.multiply(builder.emit(op.matmul(q, _swapped(builder, k, 4))), scale))
        scores = scores if mask is None else builder.emit(op.add(scores, mask))
        mixed = op.matmul(builder.emit(op.nn.softmax(scores, axis=-1)), v)
        return op.permute_dims(builder.emit(mixed), [0, 2, 1, 3]) if rows else mixed

    return DrawnOperator(call=call, shape=())


def _repeated(builder: Any, value: Any, shape: tuple[Any, ...]) -> Any:
    """Heads of keys or values, each as often as queries share it."""
    from tvm import relax
    from tvm.relax import op

    batch, own, shared, keys, depth = shape
    wide = builder.emit(op.broadcast_to(builder.emit(op.expand_dims(value, 2)), _shape(shape)))
    return builder.emit(op.reshape(wide, relax.ShapeExpr(_extents((batch, own * shared, keys, depth)))))


def _shape(extents: tuple[Any, ...]) -> Any:
    from tvm import relax

    return relax.ShapeExpr(_extents(extents))


def _extents(extents: tuple[Any, ...]) -> list[Any]:
    from tvm import tirx

    return [tirx.IntImm("int64", each) if isinstance(each, int) else each for each in extents]


def _reduction(rng: random.Random, inputs: Inputs, n: Any) -> DrawnOperator:
    """Along the last axis, some axes, or windows."""
    from tvm.relax import op

    rows = n if n is not None else rng.choice((*TOKENS, extent(rng)))
    columns, batch = width(rng), rng.choice((1, 1, 2, 3))
    kind = rng.choice(("softmax", "layer_norm", "rms_norm", "mean", "max", "sum", "image", "pool"))
    if kind in ("image", "pool"):
        return DrawnOperator(call=_of_images(rng, inputs, n if n is not None else batch, kind), shape=())
    data, scales = inputs(batch, rows, columns), [inputs(columns) for _ in range(_SCALES.get(kind, 0))]
    axes, kept = rng.choice(([-1], [1], [0, 1], [1, 2])), rng.random() < 0.5
    calls: Mapping[str, _Emitted] = {
        "softmax": lambda _: op.nn.softmax(data, axis=-1),
        "layer_norm": lambda _: op.nn.layer_norm(data, *scales, axes=[-1]),
        "rms_norm": lambda _: op.nn.rms_norm(data, *scales, axes=[-1]),
    }
    return DrawnOperator(call=calls.get(kind, lambda _: getattr(op, kind)(data, axes, keepdims=kept)), shape=())


def _of_images(rng: random.Random, inputs: Inputs, batch: Any, kind: str) -> _Emitted:
    """A mean of each image, or windows."""
    from tvm.relax import op

    size, kernel, kept = rng.choice((7, 14, 28, 57)), rng.choice((2, 3)), rng.random() < 0.5
    data = inputs(batch, rng.choice((8, 33, 64, 320)), size, size)
    if kind == "image":
        return lambda _: op.mean(data, [2, 3], keepdims=kept)
    pool = rng.choice((op.nn.max_pool2d, op.nn.avg_pool2d))
    return lambda _: pool(data, pool_size=kernel, strides=2, padding=kernel // 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """``sizes``: of the open dimension; empty: there is none."""

    make: _Maker
    dtypes: tuple[str, ...] = _DTYPES
    sizes: tuple[int, ...] = ()


OPERATORS: Mapping[str, _Kind] = {
    "product": _Kind(make=_product),
    "few rows": _Kind(make=_few_rows, dtypes=("float16", "float16", "bfloat16")),
    "convolution": _Kind(make=_convolution),
    "channels last": _Kind(make=_channels_last),
    "grouped convolution": _Kind(make=_grouped),
    "attention": _Kind(make=_attention, dtypes=("float32", *_HALVES)),
    "reduction": _Kind(make=_reduction, dtypes=("float32", *_HALVES)),
    "open product": _Kind(make=_product, sizes=_SIZES),
    "open few rows": _Kind(make=_few_rows, dtypes=("float16", "float16", "bfloat16"), sizes=_SIZES[:14]),
    "open convolution": _Kind(make=_convolution, dtypes=("float32", "float16"), sizes=_IMAGES),
    "open channels last": _Kind(make=_channels_last, dtypes=("float32", "float16"), sizes=_IMAGES),
    "open grouped convolution": _Kind(make=_grouped, dtypes=("float32", "float16"), sizes=_IMAGES),
    "open attention": _Kind(make=_attention, dtypes=("float32", *_HALVES), sizes=_SIZES),
    "open reduction": _Kind(make=_reduction, dtypes=("float32", *_HALVES), sizes=_SIZES),
}
# Of the operators those in which rules may promise too much: little of a tile is used, or little is computed at all.
NARROW: Mapping[str, _Kind] = {
    "narrow product": _Kind(make=_narrow_product),
    "narrow convolution": _Kind(make=_narrow_convolution),
    "narrow channels last": _Kind(make=_narrow_channels_last),
    "narrow grouped convolution": _Kind(make=_narrow_grouped),
}
