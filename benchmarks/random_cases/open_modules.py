"""Random small Relax modules with open dimensions, and inputs for them at chosen sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tunehub.tir.nodes import integer, same_extents, shape_of, tensor_class, tensor_type
from tunehub.tir.symbols import extent_at, variables_in

_SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 61, 64)
_LARGE = (131, 160, 257)
_MOST_ELEMENTS = 1 << 18  # of any tensor at the sizes that run
_MOST_STEPS = 9
_WIDTHS = (1, 3, 4, 7, 8, 12, 16, 24, 32, 33, 64)
_CHANNELS = (3, 8, 16, 32)
_IDS = 29  # rows of tables
_DISCRETE = ("argmax", "argmin")

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenModule:
    """``mod``: an IRModule whose ``main`` takes ``parameters``; ``symbols``: the open dimensions; ``values``: what is
    computed on the way; ``steps``: the operators in their order."""

    mod: Any
    parameters: tuple[Any, ...]
    symbols: tuple[Any, ...]
    values: tuple[Any, ...]
    steps: tuple[str, ...]

    def sizes(self, rng: random.Random, count: int) -> list[tuple[int, ...]]:
        """``count`` values for the symbols for which no tensor has a negative extent, nor too many elements: 1 for all
        is the first, one symbol at a time is large, and one is 0 in the last."""
        found = [(1,) * len(self.symbols)]
        for at in range(len(self.symbols)):
            found.append(tuple(rng.choice(_LARGE if at == i else _SIZES[:5]) for i in range(len(self.symbols))))
        while len(found) < count - 1:
            found.append(tuple(rng.choice(_SIZES) for _ in self.symbols))
        zero = rng.randrange(len(self.symbols))
        if "spread" not in self.steps:  # TVM's cumsum and sort write beyond the end of nothing
            found.append(tuple(0 if at == zero else rng.choice(_SIZES) for at in range(len(self.symbols))))
        return [values for values in dict.fromkeys(found) if self._fits(values)]

    def inputs(self, values: Sequence[int], seed: int, *, odd: int | None = None) -> list[Array]:
        """Arrays for the parameters; number ``odd`` has one more along an axis than the module says."""
        rng = np.random.default_rng(seed)
        shapes = [self._shape(each, values) for each in self.parameters]
        if odd is not None and shapes[odd]:
            axis = int(rng.integers(len(shapes[odd])))
            shapes[odd] = tuple(extent + (at == axis) for at, extent in enumerate(shapes[odd]))
        kinds = [str(tensor_type(each).dtype) for each in self.parameters]
        return [_array(rng, shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]

    def _shape(self, value: Any, values: Sequence[int]) -> tuple[int, ...]:
        known = dict(zip(map(hash, self.symbols), values, strict=True))
        return tuple(extent_at(extent, known) for extent in shape_of(value) or ())

    def _fits(self, values: Sequence[int]) -> bool:
        try:
            shapes = [self._shape(each, values) for each in self.values]
        except (KeyError, ZeroDivisionError):
            return False
        return all(min(shape, default=1) >= 0 and np.prod(shape) <= _MOST_ELEMENTS for shape in shapes)


def _array(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    if kind.startswith("int"):
        return rng.integers(0, _IDS, shape).astype(kind)
    return rng.uniform(-1, 1, shape).astype(kind)


@dataclass(slots=True)
class _Maker:
    """Makes a module, a step after the other."""

    rng: random.Random
    builder: Any
    symbols: dict[str, Any]
    parameters: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def input(self, shape: Sequence[Any], dtype: str = "float32") -> Any:
        made = self.parameter(f"x{len(self.parameters)}", shape, dtype)
        self.parameters.append(made)
        self.values.append(made)
        return made

    @staticmethod
    def parameter(name: str, shape: Sequence[Any], dtype: str) -> Any:
        from tvm import relax

        return relax.Var(name, tensor_class()(tuple(shape), dtype))

    def const(self, *shape: int, dtype: str = "float32", high: int = _IDS) -> Any:
        from tvm import relax

        rng = np.random.default_rng(self.rng.getrandbits(32))
        data = (
            rng.integers(0, high, shape) if dtype == "int64" else rng.uniform(-1, 1, shape) / max(1, shape[-1]) ** 0.5
        )
        return relax.const(data.astype(dtype), dtype)

    def emit(self, expression: Any) -> Any:
        value = self.builder.emit(expression)
        if shape_of(value) is None:
            return value
        self.values.append(value)
        return value

    def weight(self, *shape: int) -> Any:
        """A constant, or now and then an input."""
        return self.const(*shape) if self.rng.random() < 0.8 else self.input(shape)

    def symbol(self) -> Any:
        return self.rng.choice(list(self.symbols.values()))


_Step: TypeAlias = Callable[["_Maker", Any], Any]


def random_open_module(seed: int) -> OpenModule:
    """The module of a seed; the same each time."""
    from tvm import relax, tirx

    rng = random.Random(seed)
    names = rng.choice((("n",), ("n",), ("n", "m"), ("n", "m"), ("n", "m", "k")))
    maker = _Maker(rng, relax.BlockBuilder(), {name: tirx.Var(name, "int64") for name in names})
    start = rng.choice(_STARTS)
    with maker.builder.function("main"):
        with maker.builder.dataflow():
            outputs = _body(maker, start)
            result = maker.builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        maker.builder.emit_func_output(result, params=_in_order(maker))
    parameters = tuple(_in_order(maker))
    symbols = variables_in(extent for each in parameters for extent in shape_of(each) or ())
    return OpenModule(
        mod=maker.builder.get(), parameters=parameters, symbols=symbols, values=tuple(maker.values),
        steps=(start.__name__.strip("_"), *maker.steps),
    )  # fmt: skip


def _in_order(maker: _Maker) -> list[Any]:
    """The parameters; behind them one for each symbol that is not an extent of its own."""
    own = [extent for each in maker.parameters for extent in shape_of(each) or ()]
    used = variables_in(extent for value in maker.values for extent in shape_of(value) or ())
    missing = [symbol for symbol in used if not any(symbol.same_as(extent) for extent in own)]
    known = [symbol for symbol in maker.symbols.values() if any(symbol.same_as(each) for each in missing)]
    return [*maker.parameters, *(maker.parameter(f"of_{s.name}", [s], "float32") for s in known)]


def _body(maker: _Maker, start: Callable[[_Maker], Any]) -> list[Any]:
    value = start(maker)
    kept = [value]
    for _ in range(maker.rng.randint(2, _MOST_STEPS)):
        step = maker.rng.choice(_STEPS)
        source = value if maker.rng.random() < 0.85 else maker.rng.choice(kept)
        try:
            made = step(maker, source)
        except Exception:  # TVM does not take this operator for these shapes
            continue  # what it made so far stays, and nobody reads it
        if made is None or 0 in (shape_of(made) or (0,)):  # of unknown shape, or without elements at any size
            continue
        maker.steps.append(step.__name__.strip("_"))
        value = made
        kept.append(value)
    return [value] if maker.rng.random() < 0.7 else [value, maker.rng.choice(kept)]


# Where a module starts.


def _rows(maker: _Maker) -> Any:
    return maker.input((maker.symbol(), maker.rng.choice(_WIDTHS)))


def _tokens(maker: _Maker) -> Any:
    batch, length = maker.rng.choice((1, 2, maker.symbol())), maker.symbol()
    return maker.input((batch, length, maker.rng.choice(_WIDTHS)))


def _ids(maker: _Maker) -> Any:
    from tvm.relax import op

    ids = maker.input((maker.rng.choice((1, 2, maker.symbol())), maker.symbol()), maker.rng.choice(("int64", "int32")))
    return maker.emit(op.take(maker.weight(_IDS, maker.rng.choice(_WIDTHS)), ids, axis=0))


def _image(maker: _Maker) -> Any:
    sides = [maker.symbol(), maker.symbol()] if maker.rng.random() < 0.5 else [maker.rng.choice((5, 8, 9, 14))] * 2
    batch = maker.symbol() if isinstance(sides[0], int) or maker.rng.random() < 0.3 else maker.rng.choice((1, 2))
    return maker.input((batch, maker.rng.choice(_CHANNELS), *sides))


def _anything(maker: _Maker) -> Any:
    shape: list[Any] = [maker.symbol()]
    for _ in range(maker.rng.randint(0, 3)):
        s = maker.symbol()
        shape.append(maker.rng.choice((*_WIDTHS[:6], s, s, s + 1, s * 2)))
    maker.rng.shuffle(shape)
    return maker.input(shape)


# Steps: of a value they make another one, or None.


def _unary(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    nn = op.nn
    return maker.emit(
        maker.rng.choice((nn.relu, nn.gelu, nn.silu, op.tanh, op.sigmoid, op.sin, op.negative, op.erf, op.abs))(x)
    )


def _exp(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    return maker.emit(op.exp(maker.emit(op.clip(x, -3, 3))))


def _scalar(maker: _Maker, x: Any) -> Any:
    from tvm import relax

    op = maker.rng.choice((relax.op.add, relax.op.multiply, relax.op.subtract, relax.op.maximum))
    return maker.emit(op(x, relax.const(maker.rng.choice((-1.5, 0.25, 2.0)), str(tensor_type(x).dtype))))


def _broadcast(maker: _Maker, x: Any) -> Any:
    """With an input or a constant that has 1 where ``x`` is open, or is open where ``x`` has 1."""
    from tvm.relax import op

    shape = list(shape_of(x) or ())
    other = [1 if maker.rng.random() < 0.5 else extent for extent in shape]
    other = [maker.symbol() if extent == 1 and maker.rng.random() < 0.15 else extent for extent in other]
    other = other[maker.rng.randint(0, len(other)) :]
    static = all(isinstance(extent, int) for extent in other)
    y = maker.const(*other) if static and other else maker.input(other)
    operands = [x, y] if maker.rng.random() < 0.5 else [y, x]
    return maker.emit(maker.rng.choice((op.add, op.multiply, op.subtract, op.maximum, op.minimum))(*operands))


def _residual(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    shape = shape_of(x) or ()
    same = [v for v in maker.values if v is not x and same_extents(shape_of(v) or (), shape) and _is_float(v)]
    return maker.emit(op.add(x, maker.rng.choice(same))) if same else None


def _is_float(value: Any) -> bool:
    return str(tensor_type(value).dtype) == "float32"


def _softmax(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    kind = maker.rng.choice((op.nn.softmax, op.nn.softmax, op.nn.log_softmax))
    return maker.emit(kind(x, axis=maker.rng.choice((-1, -1, maker.rng.randrange(len(shape_of(x) or ()))))))


def _reduction(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    rank = len(shape_of(x) or ())
    axes = maker.rng.sample(range(rank), maker.rng.randint(1, rank))
    kind = maker.rng.choice((op.mean, op.mean, op.max, op.min, op.sum, op.variance))
    y = maker.emit(kind(x, axis=axes, keepdims=maker.rng.random() < 0.5))
    return maker.emit(op.tanh(y)) if kind is op.sum else y


def _arg_reduction(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    name = maker.rng.choice(_DISCRETE)
    y = getattr(op, name)(x, axis=maker.rng.randrange(len(shape_of(x) or ())), keepdims=maker.rng.random() < 0.5)
    return maker.emit(op.astype(maker.emit(y), "float32"))


def _norm(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    width = (shape_of(x) or (None,))[-1]
    if not isinstance(width, int):
        return None
    if maker.rng.random() < 0.3:
        return maker.emit(op.nn.rms_norm(x, maker.weight(width), axes=[-1]))
    return maker.emit(op.nn.layer_norm(x, maker.weight(width), maker.weight(width), axes=[-1]))


def _image_norm(maker: _Maker, x: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    shape = shape_of(x) or ()
    if len(shape) != 4 or not isinstance(shape[1], int):
        return None
    scales = [maker.const(shape[1]) for _ in range(2)]
    if maker.rng.random() < 0.5:
        statistics = [relax.const(np.full(shape[1], each, "float32")) for each in (0.1, 0.9)]
        made = maker.emit(op.nn.batch_norm(x, *scales, *statistics, axis=1, training=False))
        return maker.emit(relax.TupleGetItem(made, 0))
    return maker.emit(op.nn.group_norm(x, *scales, num_groups=1, channel_axis=1, axes=[2, 3]))


def _transpose(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    axes = list(range(len(shape_of(x) or ())))
    maker.rng.shuffle(axes)
    return maker.emit(op.permute_dims(x, axes))


def _concat(maker: _Maker, x: Any) -> Any:
    """With itself, a constant or an input: 2 n, n + 1, n + m."""
    from tvm.relax import op

    shape = list(shape_of(x) or ())
    axis = maker.rng.randrange(len(shape))
    kind = maker.rng.randrange(3)
    if kind == 0:
        other = maker.emit(op.tanh(x))
    else:
        shape[axis] = maker.rng.choice((1, 2, maker.symbol())) if kind == 1 else 3
        other = maker.input(shape)
    return maker.emit(op.concat([x, other] if maker.rng.random() < 0.5 else [other, x], axis=axis))


def _slice(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    shape = shape_of(x) or ()
    axis = maker.rng.randrange(len(shape))
    begin, step = maker.rng.choice((0, 0, 1)), maker.rng.choice((1, 2, 2, 3))
    end = maker.rng.choice((shape[axis], shape[axis] - 1, 2**31 - 1))
    return maker.emit(op.strided_slice(x, axes=[axis], begin=[begin], end=[end], strides=[step]))


def _merge(maker: _Maker, x: Any) -> Any:
    """Two axes side by side become one, or all."""
    from tvm import relax
    from tvm.relax import op

    shape = list(shape_of(x) or ())
    if len(shape) < 2:
        return None
    if maker.rng.random() < 0.2:
        return maker.emit(op.flatten(x))
    at = maker.rng.randrange(len(shape) - 1)
    merged = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    return maker.emit(op.reshape(x, relax.ShapeExpr([_extent(each) for each in merged])))


def _split_axis(maker: _Maker, x: Any) -> Any:
    """An axis becomes two: of known extent, or of an open one with a known factor."""
    from tvm import relax, tirx
    from tvm.relax import op

    shape, analyzer = list(shape_of(x) or ()), _analyzer()
    at = maker.rng.randrange(len(shape))
    extent = shape[at]
    if isinstance(extent, int):
        factor = maker.rng.choice([f for f in range(1, extent + 1) if extent % f == 0])
        parts: list[Any] = [factor, extent // factor]
    else:
        known = [2, 3, 4, *maker.symbols.values()]
        divisors = [each for each in known if integer(analyzer.simplify(tirx.floormod(extent, each))) == 0]
        if not divisors:
            return None
        factor = maker.rng.choice(divisors)
        parts = [analyzer.simplify(tirx.floordiv(extent, factor)), factor]
    if maker.rng.random() < 0.5:
        parts.reverse()
    return maker.emit(op.reshape(x, relax.ShapeExpr([_extent(e) for e in (*shape[:at], *parts, *shape[at + 1 :])])))


def _analyzer() -> Any:
    from tunehub.tir.nodes import symbolic

    return symbolic().Analyzer()


def _extent(value: Any) -> Any:
    from tvm import tirx

    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _squeeze(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    shape = shape_of(x) or ()
    ones = [axis for axis, extent in enumerate(shape) if extent == 1]
    if ones and len(shape) > 1 and maker.rng.random() < 0.5:
        return maker.emit(op.squeeze(x, [maker.rng.choice(ones)]))
    return maker.emit(op.expand_dims(x, maker.rng.randint(0, len(shape)))) if len(shape) < 5 else None


def _dense(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    shape = shape_of(x) or ()
    if len(shape) < 2 or not isinstance(shape[-1], int):
        return None
    columns = maker.rng.choice((*_WIDTHS, 96, 128))
    if maker.rng.random() < 0.25:
        y = maker.emit(op.matmul(x, op.permute_dims(maker.weight(columns, shape[-1]))))
    else:
        y = maker.emit(op.matmul(x, maker.weight(shape[-1], columns)))
    y = maker.emit(op.add(y, maker.weight(columns))) if maker.rng.random() < 0.5 else y
    return maker.emit(maker.rng.choice((op.nn.relu, op.nn.gelu, op.tanh))(y)) if maker.rng.random() < 0.5 else y


def _product(maker: _Maker, x: Any) -> Any:
    """With its own transpose, or an input: sums over an open axis, too."""
    from tvm.relax import op

    shape = list(shape_of(x) or ())
    if len(shape) < 2:
        return None
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    if maker.rng.random() < 0.5:
        other = maker.emit(op.permute_dims(x, axes))
        y = op.matmul(x, other) if maker.rng.random() < 0.5 else op.matmul(other, x)
    else:
        columns = maker.rng.choice((1, 4, 16, maker.symbol()))
        y = op.matmul(x, maker.input([*shape[:-2], shape[-1], columns]))
    return maker.emit(op.tanh(maker.emit(y)))


def _attention(maker: _Maker, x: Any) -> Any:
    """Self-attention of tokens [batch, length, width] in heads, with a mask or without."""
    from tvm import relax
    from tvm.relax import op

    shape = shape_of(x) or ()
    if len(shape) != 3 or not isinstance(shape[2], int):
        return None
    heads, size = maker.rng.choice(((1, 8), (2, 8), (2, 16), (3, 5), (2, 32)))
    batch, length, width = shape
    split = relax.ShapeExpr([_extent(each) for each in (batch, length, heads, size)])
    weights = [maker.const(width, heads * size) for _ in range(3)]
    products = [maker.emit(op.reshape(maker.emit(op.matmul(x, weight)), split)) for weight in weights]
    q, k, v = (maker.emit(op.permute_dims(each, [0, 2, 1, 3])) for each in products)
    scores = maker.emit(op.matmul(q, maker.emit(op.permute_dims(k, [0, 1, 3, 2]))))
    scores = maker.emit(op.multiply(scores, relax.const(size**-0.5)))
    if maker.rng.random() < 0.4:
        mask = maker.rng.choice(((batch, 1, 1, length), (1, 1, length, length), (batch, 1, length, length)))
        scores = maker.emit(op.add(scores, maker.input(mask)))
    mixed = maker.emit(op.matmul(maker.emit(op.nn.softmax(scores, axis=-1)), v))
    mixed = maker.emit(op.permute_dims(mixed, [0, 2, 1, 3]))
    joined = relax.ShapeExpr([_extent(each) for each in (batch, length, heads * size)])
    return maker.emit(op.matmul(maker.emit(op.reshape(mixed, joined)), maker.const(heads * size, width)))


def _take(maker: _Maker, x: Any) -> Any:
    """Rows of an axis of known extent by indices of open length."""
    from tvm.relax import op

    shape = shape_of(x) or ()
    known = [axis for axis, extent in enumerate(shape) if isinstance(extent, int)]
    if not known:
        return None
    axis = maker.rng.choice(known)
    if maker.rng.random() < 0.5:
        return maker.emit(op.take(x, maker.const(3, dtype="int64", high=shape[axis]), axis=axis))
    ids = maker.input([maker.symbol()], "int64")
    return maker.emit(op.take(x, maker.emit(op.mod(ids, _int64(shape[axis]))), axis=axis))


def _int64(value: int) -> Any:
    from tvm import relax

    return relax.const(value, "int64")


def _pad(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    widths = [maker.rng.choice((0, 0, 1, 2)) for _ in range(2 * len(shape_of(x) or ()))]
    return maker.emit(op.nn.pad(x, widths))


def _spread(maker: _Maker, x: Any) -> Any:
    """Repeated, tiled, flipped, summed up, or as a triangle."""
    from tvm.relax import op

    shape = shape_of(x) or ()
    axis = maker.rng.randrange(len(shape))
    return maker.emit(
        maker.rng.choice(
            (
                lambda: op.repeat(x, 2, axis),
                lambda: op.tile(x, [2 if at == axis else 1 for at in range(len(shape))]),
                lambda: op.flip(x, axis),
                lambda: op.cumsum(x, axis),
                lambda: op.tril(x, maker.rng.choice((0, 1, -1))),
                lambda: op.sort(x, axis),
            )
        )()
    )


def _broadcast_to(maker: _Maker, x: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    shape = [maker.symbol() if extent == 1 else extent for extent in shape_of(x) or ()]
    if maker.rng.random() < 0.3:
        shape = [maker.symbol(), *shape]
    return maker.emit(op.broadcast_to(x, relax.ShapeExpr([_extent(each) for each in shape])))


def _where(maker: _Maker, x: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    return maker.emit(op.where(maker.emit(op.greater(x, relax.const(0.1))), x, maker.emit(op.sin(x))))


def _positions(maker: _Maker, x: Any) -> Any:
    """Plus numbers 0 to n - 1 along the last axis."""
    from tvm.relax import op

    positions = maker.emit(op.arange(_extent((shape_of(x) or ())[-1]), dtype="float32"))
    return maker.emit(op.add(x, maker.emit(op.sin(positions))))


def _cast(maker: _Maker, x: Any) -> Any:
    """A match_cast to what it is, or that says that an extent equals a symbol."""
    shape = list(shape_of(x) or ())
    kind = tensor_class()(shape, str(tensor_type(x).dtype))
    value = maker.builder.match_cast(x, kind)
    maker.values.append(value)
    return value


def _parts(maker: _Maker, x: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    shape = shape_of(x) or ()
    even = [axis for axis, extent in enumerate(shape) if isinstance(extent, int) and extent % 2 == 0]
    if not even:
        return None
    axis = maker.rng.choice(even)
    parts = maker.builder.emit(op.split(x, 2, axis=axis))
    first, second = (maker.emit(relax.TupleGetItem(parts, i)) for i in range(2))
    return maker.emit(maker.rng.choice((op.multiply, op.add))(first, maker.emit(op.sigmoid(second))))


def _convolution(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    shape = shape_of(x) or ()
    if len(shape) not in (3, 4) or not isinstance(shape[1], int):
        return None
    spatial, channels = len(shape) - 2, shape[1]
    results = maker.rng.choice(_CHANNELS)
    groups = maker.rng.choice((1, 1, 1, channels))
    results = channels if groups > 1 else results
    kernel, stride = maker.rng.choice((1, 3, 3, 5)), maker.rng.choice((1, 1, 2))
    weight = maker.weight(results, channels // groups, *[kernel] * spatial)
    call = op.nn.conv2d if spatial == 2 else op.nn.conv1d
    dilation = maker.rng.choice((1, 1, 2)) if kernel == 3 else 1
    y = call(x, weight, strides=stride, padding=dilation * (kernel // 2), groups=groups, dilation=dilation)
    y = maker.emit(y)
    y = maker.emit(op.add(y, maker.const(results, *[1] * spatial))) if maker.rng.random() < 0.6 else y
    return maker.emit(op.nn.relu(y)) if maker.rng.random() < 0.6 else y


def _pool(maker: _Maker, x: Any) -> Any:
    from tvm.relax import op

    if len(shape_of(x) or ()) != 4:
        return None
    kind = maker.rng.choice((op.nn.max_pool2d, op.nn.avg_pool2d, None))
    if kind is None:
        return maker.emit(op.nn.adaptive_avg_pool2d(x, maker.rng.choice(((1, 1), (1, 1), (2, 3)))))
    kernel, ceiling = maker.rng.choice((2, 3)), maker.rng.random() < 0.2
    return maker.emit(kind(x, pool_size=kernel, strides=2, padding=maker.rng.choice((0, 1)), ceil_mode=ceiling))


def _resize(maker: _Maker, x: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    shape = shape_of(x) or ()
    if len(shape) != 4:
        return None
    size = relax.ShapeExpr([_extent(extent * 2) for extent in shape[2:]])
    return maker.emit(
        op.image.resize2d(x, size, layout="NCHW", method=maker.rng.choice(("linear", "nearest_neighbor")))
    )


def block(maker: _Maker, x: Any) -> Any:
    """A residual block of convolutions, or of a dense layer and a norm."""
    from tvm.relax import op

    y = _convolution(maker, x) if len(shape_of(x) or ()) == 4 else _dense(maker, x)
    if y is None:
        return None
    shape, before = shape_of(y) or (), shape_of(x) or ()
    return maker.emit(op.add(x, y)) if same_extents(shape, before) else y


_STARTS: tuple[Callable[[_Maker], Any], ...] = (_rows, _tokens, _tokens, _ids, _image, _image, _anything, _anything)
_STEPS: tuple[_Step, ...] = (
    *(_unary, _exp, _scalar, _broadcast, _broadcast, _residual, _residual, _softmax, _reduction, _reduction),
    *(_arg_reduction, _norm, _norm, _image_norm, _transpose, _transpose, _concat, _slice, _slice, _merge, _split_axis),
    *(_split_axis, _squeeze, _dense, _dense, _dense, _product, _attention, _attention, _take, _pad, _spread),
    *(_broadcast_to, _where, _positions, _cast, _parts, _convolution, _convolution, _pool, _resize, block),
)


def sizes_by_name(module: OpenModule, values: Sequence[int]) -> Mapping[str, int]:
    """The values of the symbols by their names."""
    return {str(symbol.name): value for symbol, value in zip(module.symbols, values, strict=True)}
