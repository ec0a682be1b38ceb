"""Functions of every kind that templates are for, of random shapes, and how they are run and compared."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import te, topi  # noqa: E402

import tunehub  # noqa: E402
from tunehub.graph.numerics import fast_math as relax_fast_math  # noqa: E402
from tunehub.kernels.cpu import amx, machine_of  # noqa: E402
from tunehub.kernels.te import blocked, weights  # noqa: E402
from tunehub.kernels.te.nt_dense import nt_dense  # noqa: E402

from ....amx_emulation import emulated, emulation  # noqa: E402, F401
from ....cpu_features import AVX512, lacking_here, skip_unless_runs  # noqa: E402
from ....cpu_features import cpu as cpu_of  # noqa: E402

Array = np.ndarray[Any, Any]
CPUS = {"avx512": AVX512, "avx2": "core-avx2", "generic": "x86-64"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function: `mod` and the shapes of its parameters, the last of which it writes."""

    name: str
    mod: Any
    shapes: list[tuple[int, ...]]


def case(name: str, make: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """The function that ``make`` describes as a tensor expression of parameters with ``shapes``."""
    parameters = [te.placeholder(shape, "float32", name=f"p{i}") for i, shape in enumerate(shapes)]
    arguments = [*parameters, make(*parameters)]
    return Case(
        name=name,
        mod=tvm.IRModule({"main": te.create_prim_func(arguments)}),
        shapes=[tuple(int(extent) for extent in argument.shape) for argument in arguments],
    )


def epilogue(kind: str, value: Any, bias: Any | None = None, other: Any | None = None) -> Any:
    """What fusion puts behind a convolution. ``bias`` broadcasts, ``other`` is a residual."""
    for operand in (bias, other):
        value = value if operand is None else topi.add(value, operand)
    zero, six = tvm.tirx.const(0, "float32"), tvm.tirx.const(6, "float32")
    if kind == "relu":
        return topi.nn.relu(value)
    if kind == "clip":
        return topi.clip(value, 0.0, 6.0)
    if kind == "hard_swish":
        shifted = topi.clip(topi.add(value, tvm.tirx.const(3, "float32")), 0.0, 6.0)
        return topi.divide(topi.multiply(value, shifted), six)
    if kind == "sigmoid":
        return topi.sigmoid(value)
    if kind == "gelu":
        half = topi.erf(topi.multiply(value, tvm.tirx.const(0.70710678, "float32")))
        return topi.multiply(value, topi.add(topi.multiply(half, tvm.tirx.const(0.5, "float32")), zero + 0.5))
    return value


EPILOGUES = ("none", "relu", "clip", "hard_swish", "sigmoid", "gelu")


def _extent(rng: random.Random) -> int:
    return rng.choice((1, 2, 3, 5, 7, 8, 11, 13, 14, 16, 17, 19, 23))


def random_conv2d(rng: random.Random, block: int) -> Case:
    kernel = rng.choice(((1, 1), (1, 1), (3, 3), (5, 5), (7, 7), (1, 7), (3, 1), (2, 3)))
    strides, dilation = (rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2))), rng.choice(((1, 1), (1, 1), (2, 2), (1, 2)))
    padding = (0, 0, 0, 0) if rng.random() < 0.3 else tuple(rng.randint(0, k // 2 + 1) for k in (*kernel, *kernel))
    reach = [(kernel[i] - 1) * dilation[i] + 1 for i in (0, 1)]
    height, width = (max(_extent(rng), reach[i]) for i in (0, 1))
    out_block = rng.choice((block, block // 2))
    groups = rng.choice((1, 1, 1, 2, 3)) if kernel != (7, 7) else 1
    plain = groups == 1 and rng.random() < 0.2
    in_channels, out_channels = (
        rng.choice((1, 3, 4, 8, 16, 24, 33)) * groups,
        rng.choice((1, 8, 16, 19, 32, 64)) * groups,
    )
    weight = weights.pack_conv2d_weight(
        np.zeros((out_channels, in_channels // groups, *kernel), "float32"),
        in_block=None if plain else block,
        out_block=out_block,
        groups=groups,
    ).shape
    batch = rng.choice((1, 1, 2))
    blocks = -(-in_channels // block)
    data = (batch, in_channels, height, width) if plain else (batch, blocks, height, width, block)
    bias = (weight[0], 1, 1, out_block)
    kind, residual = rng.choice(EPILOGUES), rng.random() < 0.3

    def convolve(x: Any, w: Any) -> Any:
        return blocked.conv2d_blocked(
            x, w, strides=strides, padding=padding, dilation=dilation, groups=groups,
            channels=(in_channels, out_channels),
        )  # fmt: skip

    name = f"conv {data} {weight} s{strides} p{padding} d{dilation} g{groups} {kind}"
    if kind == "none" and rng.random() < 0.5:
        leave = rng.choice((blocked.from_blocked, _flattened))
        return case(f"{name} {leave.__name__}", lambda x, w: leave(convolve(x, w), out_channels), data, weight)
    if kind == "none":
        return case(name, convolve, data, weight)
    if not residual:
        return case(name, lambda x, w, b: epilogue(kind, convolve(x, w), b), data, weight, bias)
    result = case("", convolve, data, weight).shapes[-1]
    return case(name, lambda x, w, b, r: epilogue(kind, convolve(x, w), b, r), data, weight, bias, result)


def _flattened(result: Any, channels: int) -> Any:
    """An epilogue for which a tile of the result is no tile."""
    plain = blocked.from_blocked(result, channels)
    return topi.reshape(plain, (int(plain.shape[0]), channels * int(plain.shape[2]) * int(plain.shape[3])))


def random_winograd(rng: random.Random, block: int) -> Case:
    """A direct convolution that can be rewritten."""
    size, padding = [max(3, _extent(rng)) for _ in range(2)], tuple(rng.randint(0, 2) for _ in range(4))
    inner, out_block, outer = rng.randint(1, 3), rng.choice((block, block // 2)), rng.randint(1, 4)
    data, weight = (rng.choice((1, 1, 3)), inner, *size, block), (outer, inner, 3, 3, block, out_block)
    kind, residual = rng.choice(EPILOGUES), rng.random() < 0.3

    def convolve(x: Any, w: Any) -> Any:
        return blocked.conv2d_blocked(x, w, padding=padding)

    name = f"winograd {data} {weight} p{padding} {kind}"
    bias = (outer, 1, 1, out_block)
    if kind == "none" and not residual:
        leave = rng.choice((lambda y, _: y, blocked.from_blocked, _flattened))
        return case(name, lambda x, w: leave(convolve(x, w), outer * out_block - 1), data, weight)
    if not residual:
        return case(name, lambda x, w, b: epilogue(kind, convolve(x, w), b), data, weight, bias)
    result = case("", convolve, data, weight).shapes[-1]
    return case(name, lambda x, w, b, r: epilogue(kind, convolve(x, w), b, r), data, weight, bias, result)


def random_depthwise(rng: random.Random, block: int) -> Case:
    kernel = rng.choice(((3, 3), (5, 5), (1, 3), (7, 7)))
    strides, dilation = rng.choice(((1, 1), (2, 2), (1, 2))), rng.choice(((1, 1), (2, 1)))
    padding = tuple(rng.randint(0, 3) for _ in range(4))
    size = [max(_extent(rng), (kernel[i] - 1) * dilation[i] + 1) for i in (0, 1)]
    outer, lanes, kind = rng.randint(1, 4), rng.choice((block, block // 2)), rng.choice(EPILOGUES)

    def make(x: Any, w: Any, b: Any) -> Any:
        y = blocked.depthwise_blocked(x, w, strides=strides, padding=padding, dilation=dilation)
        return epilogue(kind, y, b)

    data = (rng.choice((1, 2)), outer, *size, lanes)
    name = f"depthwise {data} {kernel} s{strides} p{padding} d{dilation} {kind}"
    return case(name, make, data, (outer, *kernel, lanes), (outer, 1, 1, lanes))


def random_dense(rng: random.Random, block: int) -> Case:
    lead = rng.choice(((), (), (1,), (2,), (2, 3)))
    rows = rng.choice((_extent(rng), 32, 64, 77, 96, 128))  # several tasks of 24 rows or more
    depth, outputs = rng.choice((1, 7, 16, 31, 64)), rng.choice((1, 8, 16, 17, 31, 48, 100))
    kind = rng.choice(EPILOGUES)
    data, weight = (*lead, rows, depth), (-(-outputs // block), depth, block)

    def make(x: Any, w: Any, b: Any) -> Any:
        return epilogue(kind, blocked.dense_blocked(x, w, outputs=outputs), b)

    return case(f"dense {data} {outputs} {kind}", make, data, weight, (outputs,))


def random_nt_dense(rng: random.Random, block: int) -> Case:
    lead, rows = rng.choice(((), (1,), (3,), (2, 3))), rng.choice((1, 2, 5, 8, 12, 33))
    depth, outputs, kind = block * rng.choice((1, 2, 5)), rng.choice((1, 3, 8, 17, 36)), rng.choice(EPILOGUES)
    data, weight = (*lead, rows, depth), (outputs, depth)

    def make(x: Any, w: Any, b: Any) -> Any:
        return epilogue(kind, nt_dense(x, w, lanes=block), b)

    return case(f"nt_dense {data} {outputs} {kind}", make, data, weight, (outputs,))


def random_matmul(rng: random.Random, block: int) -> Case:
    lead = rng.choice(((1,), (3,), (2, 2)))
    rows = rng.choice((_extent(rng), 32, 64, 77, 96, 128))
    depth, outputs = _extent(rng), rng.choice((1, 5, 8, 17, 32, 40, 64))

    def make(x: Any, y: Any) -> Any:
        k = te.reduce_axis((0, depth), "k")

        def product(*indices: Any) -> Any:
            left, right = (*indices[:-1], k), (*indices[:-2], k, indices[-1])
            return te.sum(x[left] * y[right], axis=[k])

        return te.compute((*lead, rows, outputs), product, name="matmul")

    return case(f"matmul {lead} {rows} {depth} {outputs}", make, (*lead, rows, depth), (*lead, depth, outputs))


def random_pooling(rng: random.Random, block: int) -> Case:
    data = (rng.choice((1, 2)), rng.randint(1, 3), max(4, _extent(rng)), max(4, _extent(rng)), rng.choice((block, 8)))
    kind = rng.choice(("max", "avg"))
    if rng.random() < 0.2:
        return case(
            f"pool {data} {kind} whole",
            lambda x: blocked.adaptive_pool2d_blocked(x, kind=kind, output_size=(1, 1)),
            data,
        )
    size, strides, ceil = rng.choice((2, 3)), rng.choice((1, 2)), rng.random() < 0.3
    padding = tuple(rng.randint(0, 1) for _ in range(4))

    def make(x: Any) -> Any:
        return blocked.pool2d_blocked(
            x, kind=kind, pool_size=(size, size), strides=(strides, strides), padding=padding, ceil_mode=ceil
        )

    return case(f"pool {data} {kind} {size} s{strides} p{padding} {ceil}", make, data)


def random_last_axis(rng: random.Random, block: int) -> Case:
    shape = (rng.choice((1, 2, 5)), _extent(rng), max(2, _extent(rng) * rng.choice((1, 4))))
    kind = rng.choice(("softmax", "fast_softmax", "layer_norm", "sum", "max"))
    if kind == "softmax":
        return case(f"softmax {shape}", lambda x: topi.nn.softmax(x), shape)
    if kind == "fast_softmax":
        shape = (*shape[:2], rng.choice((shape[2], 37, 82, 197)))
        return case(f"fast_softmax {shape}", lambda x: relax_fast_math.softmax(x, 2), shape)
    if kind == "layer_norm":
        make = lambda x, g, b: topi.nn.layer_norm(x, g, b, axis=[2], epsilon=1e-5)  # noqa: E731
        return case(f"layer_norm {shape}", make, shape, shape[-1:], shape[-1:])
    return case(f"{kind} {shape}", lambda x: getattr(topi, kind)(x, axis=-1, keepdims=rng.random() < 0.5), shape)


def random_elementwise(rng: random.Random, block: int) -> Case:
    channels, size = rng.choice((3, 16, 20, 24, 35)), (_extent(rng), _extent(rng))
    kind = rng.choice(("to", "from", "concat", "add", "slice", "resize"))
    plain, data = (1, channels, *size), (1, -(-channels // block), *size, block)
    if kind == "to":
        return case(f"to_blocked {plain}", lambda x: blocked.to_blocked(x, block), plain)
    if kind == "from":
        return case(f"from_blocked {data}", lambda x: blocked.from_blocked(x, channels), data)
    if kind == "concat":
        make = lambda x, y: blocked.concat_blocked([x, y], [channels, channels])  # noqa: E731
        return case(f"concat {data} {channels}", make, data, data)
    if kind == "slice":
        begin = rng.randrange(channels)
        return case(f"slice {data} {begin}", lambda x: blocked.slice_blocked(x, begin, channels - begin), data)
    if kind == "resize":
        how = {
            "roi": (0.0,) * 4,
            "size": (_extent(rng), _extent(rng)),
            "method": rng.choice(("nearest_neighbor", "linear")),
        }
        return case(f"resize {data} {how}", lambda x: blocked.resize2d_blocked(x, **how), data)
    return case(f"add {data}", lambda x, y: topi.nn.relu(topi.add(x, y)), data, (data[1], 1, 1, block))


MAKERS: dict[str, Callable[[random.Random, int], Case]] = {
    "conv2d": random_conv2d,
    "depthwise": random_depthwise,
    "dense": random_dense,
    "nt_dense": random_nt_dense,
    "matmul": random_matmul,
    "pooling": random_pooling,
    "last_axis": random_last_axis,
    "elementwise": random_elementwise,
}
_SHARES = ("conv2d",) * 6 + ("depthwise", "dense", "dense", "matmul", "pooling", "last_axis", "elementwise")


def random_case(seed: int, block: int) -> Case:
    """The function with number ``seed``: the same in every run."""
    rng = random.Random(seed)
    return MAKERS[rng.choice(_SHARES)](rng, block)


def target_of(cpu: str) -> Any:
    """The target of code generation for one of ``CPUS``, on two cores."""
    return cpu_of(CPUS[cpu])


def runnable(cpu: str) -> bool:
    """True when this machine runs the code."""
    return lacking_here(CPUS[cpu]) is None


def run(mod: Any, target: Any, arrays: list[Array], shape: tuple[int, ...]) -> Array:
    """What a function writes to its last parameter, of ``shape``, which is NaN before."""
    return run_often(mod, target, arrays, shape, 1)[0]


def run_often(mod: Any, target: Any, arrays: list[Array], shape: tuple[int, ...], times: int) -> list[Array]:
    """The results of so many runs: threads that overrun each other do not show in each."""
    function = tvm.compile(mod, target=tvm.target.Target(target))["main"]
    inputs = [tvm.runtime.tensor(array) for array in arrays]
    results = []
    for _ in range(times):
        output = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
        function(*inputs, output)
        results.append(np.asarray(output.numpy()))
    return results


def inputs_of(some: Case) -> list[Array]:
    """Random inputs for a function."""
    rng = np.random.default_rng(5)
    return [rng.uniform(-1, 1, shape).astype("float32") for shape in some.shapes[:-1]]


@pytest.fixture(scope="session", params=list(CPUS))
def cpu(request: Any) -> Any:
    """Name, target and machine of each kind of CPU that this one can run code for."""
    skip_unless_runs(CPUS[request.param])
    target = target_of(request.param)
    return request.param, target, machine_of(target)


@pytest.fixture(scope="session")
def support() -> Any:
    """The functions of this file."""
    return sys.modules[__name__]


@pytest.fixture
def refused_target() -> Any:
    """This machine's CPU, as if it had AMX; skips the test where it has."""
    host = tvm.target.Target(tunehub.host_target())
    if amx.doubt(host, "bfloat16") is None:
        pytest.skip("this CPU has AMX")
    features = [*map(str, host.attrs.get("mattr", ())), "+amx-tile", "+amx-bf16", "+amx-int8"]
    return {"kind": "llvm", "mcpu": str(host.attrs["mcpu"]), "mattr": features}
