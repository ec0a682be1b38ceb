"""The template for what no other one serves: plain convolutions, windows, products, reductions of any axes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import te, topi  # noqa: E402

from tunehub.kernels.cpu import KnobError, Machine, loops, machine_of  # noqa: E402
from tunehub.kernels.cpu.base import blocks_of  # noqa: E402
from tunehub.tir.guard import GuardError, check_function, check_tiles  # noqa: E402

from ....sweeps import swept  # noqa: E402
from ....unoptimised import UNOPTIMISED  # noqa: E402

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
MACHINE = Machine(vector=16, registers=32, cores=2)
EXTENTS = (1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 19, 23, 32, 37, 64, 67)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function and the shapes and types of its parameters, the last of which it writes."""

    name: str
    mod: Any
    parameters: list[tuple[tuple[int, ...], str]]


def case(name: str, make: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Case:
    inputs = [te.placeholder(shape, dtype, name=f"p{i}") for i, shape in enumerate(shapes)]
    arguments = [*inputs, make(*inputs)]
    return Case(
        name=f"{name} {shapes} {dtype}",
        mod=tvm.IRModule({"main": te.create_prim_func(arguments)}),
        parameters=[(tuple(int(extent) for extent in each.shape), str(each.dtype)) for each in arguments],
    )


def product(*, transposed: bool, out_dtype: str | None = None) -> Callable[[Any, Any], Any]:
    """``[…, M, K] × […, K, N]``, or ``× […, N, K]``."""

    def make(x: Any, y: Any) -> Any:
        k = te.reduce_axis((0, x.shape[-1]), "k")
        *lead, rows, _ = x.shape

        def element(*at: Any) -> Any:
            *batch, i, j = at
            left, right = x[(*batch, i, k)], y[(*batch, j, k) if transposed else (*batch, k, j)]
            if out_dtype is None:
                return te.sum(left * right, axis=k)
            return te.sum(left.astype(out_dtype) * right.astype(out_dtype), axis=k)

        columns = y.shape[-2] if transposed else y.shape[-1]
        return te.compute((*lead, rows, columns), element, name="NT_product" if transposed else "product")

    return make


def _finished(rng: random.Random, value: Any) -> Any:
    """What may follow a reduction."""
    kind = rng.choice(("none", "none", "relu", "scaled", "sigmoid"))
    if kind == "relu":
        return topi.nn.relu(value)
    if kind == "scaled":
        return topi.multiply(topi.add(value, value), value)
    return topi.sigmoid(value) if kind == "sigmoid" else value


def _convolution(rng: random.Random) -> Case:
    rank, kernel, stride = rng.choice((1, 2, 3)), rng.choice((1, 2, 3, 5)), rng.choice((1, 1, 2, 3))
    padding, channels, outputs = rng.choice((0, 0, 1, 2)), rng.choice((1, 3, 8, 17)), rng.choice((1, 5, 16, 19, 32))
    size = tuple(max(kernel, rng.choice(EXTENTS[: 16 - 3 * rank])) for _ in range(rank))
    batch = rng.choice((1, 1, 2))
    if rank == 2 and rng.random() < 0.4:
        shapes = (batch, *size, channels), (kernel, kernel, channels, outputs)
        return case("nhwc", lambda x, w: _finished(rng, topi.nn.conv2d_nhwc(x, w, stride, padding, 1)), *shapes)
    names = (topi.nn.conv1d_ncw, topi.nn.conv2d_nchw, topi.nn.conv3d_ncdhw)
    groups = () if rank < 3 else (1,)

    def make(x: Any, w: Any) -> Any:
        return _finished(rng, names[rank - 1](x, w, stride, padding, 1, *groups))

    return case(
        f"conv{rank}d s{stride} p{padding}", make, (batch, channels, *size), (outputs, channels, *[kernel] * rank)
    )


def _transposed(rng: random.Random) -> Case:
    channels, outputs, kernel = rng.choice((1, 3, 16)), rng.choice((1, 8, 17)), rng.choice((2, 3, 4))
    size, stride = (rng.choice(EXTENTS[1:9]), rng.choice(EXTENTS[1:9])), rng.choice((1, 2))

    def make(x: Any, w: Any) -> Any:
        return _finished(rng, topi.nn.conv2d_transpose_nchw(x, w, (stride, stride), (1, 1), "float32", (0, 0)))

    return case(f"transposed s{stride}", make, (1, channels, *size), (channels, outputs, kernel, kernel))


def _lrn(x: Any, kind: str) -> Any:
    """The pooling over channels of a local response normalisation."""
    return topi.nn.pool3d(x, (5, 1, 1), (1, 1, 1), (1, 1, 1), (2, 0, 0, 2, 0, 0), kind, count_include_pad=False)


def _pool(rng: random.Random) -> Case:
    kind = rng.choice(("avg", "max"))
    if rng.random() < 0.4:
        return case(
            f"lrn {kind}",
            lambda x: _lrn(x, kind),
            (1, 1, rng.choice(EXTENTS[4:]), rng.choice(EXTENTS[:9]), rng.choice(EXTENTS)),
        )
    if rng.random() < 0.3:
        shape = (rng.choice((1, 2)), rng.choice(EXTENTS), rng.choice(EXTENTS[:9]), rng.choice(EXTENTS[:9]))
        return case(f"whole {kind}", lambda x: topi.nn.adaptive_pool(x, (1, 1), kind), shape)
    stride, layout = rng.choice((1, 2)), rng.choice(("NCHW", "NHWC"))
    size, channels = [max(3, rng.choice(EXTENTS[:12])) for _ in range(2)], rng.choice((1, 3, 16, 17))
    shape = (1, channels, *size) if layout == "NCHW" else (1, *size, channels)
    make = lambda x: topi.nn.pool2d(  # noqa: E731
        x, (3, 3), (stride, stride), (1, 1), (1, 1, 1, 1), kind, layout=layout, count_include_pad=rng.random() < 0.5
    )
    return case(f"pool {kind} {layout} s{stride}", make, shape)


def _reduction(rng: random.Random) -> Case:
    rank = rng.choice((1, 2, 3, 4))
    shape = tuple(rng.choice(EXTENTS if rank < 4 else EXTENTS[:9]) for _ in range(rank))
    axes = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))
    name, dtype = rng.choice(("sum", "max", "min")), rng.choice(("float32", "float32", "int32", "int8"))
    keep = rng.random() < 0.3

    def make(x: Any) -> Any:
        return _plus_one(getattr(topi, name)(x, axis=axes, keepdims=keep))

    return case(f"{name} of {axes}", make, shape, dtype=dtype)


def _plus_one(value: Any) -> Any:
    return topi.add(value, tvm.tirx.const(1, value.dtype))


def _product(rng: random.Random) -> Case:
    lead = rng.choice(((), (), (3,), (2, 2)))
    rows, depth, columns = (rng.choice(EXTENTS) for _ in range(3))
    transposed = rng.random() < 0.6
    dtype = rng.choice(("float32", "float32", "int8", "float16", "int32"))
    out = "int32" if dtype == "int8" else None
    right = (*lead, columns, depth) if transposed else (*lead, depth, columns)
    make = product(transposed=transposed, out_dtype=out)
    return case("product", lambda x, y: _last(dtype, rng, make(x, y)), (*lead, rows, depth), right, dtype=dtype)


def _last(dtype: str, rng: random.Random, value: Any) -> Any:
    return _finished(rng, value) if dtype == "float32" else value


def _chain(rng: random.Random) -> Case:
    shape = (rng.choice((1, 2)), rng.choice(EXTENTS), rng.choice(EXTENTS[:9]), rng.choice(EXTENTS[:9]))
    kind = rng.choice(("softmax", "softmax_before", "twice", "moved", "group_norm"))
    if kind == "group_norm":
        shape, weight = (shape[0], 2 * shape[1], *shape[2:]), (2 * shape[1],)
        norm = lambda x, g, b: topi.nn.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[2, 3])  # noqa: E731
        return case(kind, norm, shape, weight, weight)
    if kind == "softmax":
        return case(kind, lambda x: topi.nn.softmax(x, axis=1), shape)
    if kind == "softmax_before":
        return case(kind, lambda x: topi.sum(topi.exp(topi.nn.relu(x)), axis=1), shape)
    if kind == "twice":
        sums = lambda x: topi.add(topi.exp(x), topi.sum(x, axis=(1,), keepdims=True))  # noqa: E731
        return case(kind, lambda x: topi.sum(sums(x), axis=(0, 2)), shape)
    return case(kind, lambda x: topi.sum(topi.transpose(topi.nn.relu(x), (0, 2, 3, 1)), axis=(1, 2)), shape)


MAKERS = (_convolution, _convolution, _transposed, _pool, _pool, _reduction, _reduction, _product, _product, _chain)


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    return MAKERS[seed % len(MAKERS)](rng)


def inputs_of(some: Case) -> list[Array]:
    rng = np.random.default_rng(5)
    return [(4 * rng.uniform(-1, 1, shape)).astype(dtype) for shape, dtype in some.parameters[:-1]]


def run(mod: Any, target: Any, some: Case, times: int = 1) -> list[Array]:
    """The results of so many runs of ``mod``, whose result is filled with ones before."""
    function = tvm.compile(mod, target=tvm.target.Target(target))["main"]
    arguments = [tvm.runtime.tensor(array) for array in inputs_of(some)]
    shape, dtype = some.parameters[-1]
    results = []
    for _ in range(times):
        output = tvm.runtime.tensor(np.ones(shape, dtype))
        function(*arguments, output)
        results.append(np.asarray(output.numpy()))
    return results


def assert_equal(found: Array, expected: Array, message: str) -> None:
    loose = 2e-2 if expected.dtype == np.float16 else 2e-4
    scale = max(1.0, float(np.abs(expected.astype("float64")).max(initial=0)))
    np.testing.assert_allclose(found, expected, rtol=loose, atol=loose * scale, err_msg=message)


def recognised(some: Case) -> Any:
    return loops.recognise(some.mod, blocks_of(some.mod))


@pytest.mark.few(2)
@pytest.mark.parametrize("seeds", swept([range(20)], [range(start, start + 20) for start in range(20, 100, 20)]))
def test_equal_to_the_unscheduled_function(cpu: Any, seeds: range) -> None:
    _, target, machine = cpu
    scheduled = 0
    for seed in seeds:
        some = random_case(seed)
        workload = recognised(some)
        if workload is None and some.name.startswith("group_norm"):
            continue  # groups of few elements
        assert workload is not None, some.name
        space = loops.knob_space(workload, machine)
        knobs = space[0] if seed % 3 else random.Random(seed).choice(space)
        try:
            mod = loops.apply(some.mod, workload, knobs).mod
        except KnobError as error:
            assert "no faster than" in str(error), f"{seed}: {some.name}: {error}"
            continue
        check_function(mod["main"], some.mod["main"], target)
        check_tiles(mod["main"])
        scheduled += 1
        (found,), (expected,) = run(mod, target, some), run(some.mod, UNOPTIMISED, some)
        assert_equal(found, expected, f"{seed}: {some.name}: {knobs}")
    assert scheduled > 0.25 * len(seeds)  # 0.3 to 0.5: others are no faster than plain loops


@pytest.mark.parametrize(
    "some",
    [
        case("sum", lambda x: topi.sum(x), (997, 101)),
        case("sum of leading axes", lambda x: topi.sum(x, axis=(0, 1)), (97, 101, 7)),
        case(
            "lrn",
            lambda x: _lrn(x, "avg"),
            (1, 1, 64, 13, 55),
        ),
        case("conv1d", lambda x, w: topi.nn.relu(topi.nn.conv1d_ncw(x, w, 1, 1, 1)), (1, 17, 101), (19, 17, 3)),
        case("product", product(transposed=True), (4, 61, 64), (4, 128, 64)),
    ],
    ids=lambda some: some.name.split("(")[0].strip(),
)
@pytest.mark.few(2)
def test_threads_do_not_overrun_each_other(some: Case) -> None:
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    workload = recognised(some)
    expected = run(some.mod, UNOPTIMISED, some)[0]
    for choice in loops.knob_space(workload, machine_of(target))[:6]:
        knobs = loops.LoopsKnobs(lanes=choice.lanes, rows=choice.rows, row=choice.row, parallel=True)
        mod = loops.apply(some.mod, workload, knobs).mod
        check_tiles(mod["main"])
        for found in run(mod, target, some, times=10):
            assert_equal(found, expected, f"{some.name}: {knobs}")


def test_what_it_is_not_for() -> None:
    assert recognised(case("places", lambda x: topi.argmax(x, axis=1), (7, 70))) is None
    assert recognised(case("no sum", lambda x: topi.nn.relu(x), (7, 70))) is None
    length = te.var("n")
    x = te.placeholder((length, 16), "float32", name="x")
    mod = tvm.IRModule({"main": te.create_prim_func([x, topi.sum(x, axis=0)])})
    assert loops.recognise(mod, blocks_of(mod)) is None


@pytest.mark.parametrize(
    "some",
    [
        case("pool", lambda x: topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max"), (1, 64, 56, 56)),
        case("small", lambda x: topi.sum(x, axis=0), (7, 70)),
        case("window", lambda x: topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "avg"), (1, 64, 28, 28)),
        case("softmax", lambda x: topi.nn.softmax(x, axis=1), (4, 21, 64, 64)),
        case("numbers", lambda x: topi.sum(x, axis=1), (512, 768), dtype="int32"),
    ],
    ids=lambda some: some.name.split("(")[0].strip(),
)
def test_what_llvm_makes_fast_is_left_to_tvm(some: Case) -> None:
    workload = recognised(some)
    with pytest.raises(KnobError, match="no faster than"):
        loops.apply(some.mod, workload, loops.default_knobs(workload, MACHINE))


def test_a_loop_that_is_not_there_is_refused() -> None:
    some = case("sum", lambda x: topi.sum(x, axis=0), (37, 70))
    with pytest.raises(KnobError, match="row: there are 1 loops"):
        loops.apply(some.mod, recognised(some), loops.LoopsKnobs(lanes=16, rows=2, row=1))


def test_any_knobs_are_refused_or_give_a_schedule_that_the_guard_admits() -> None:
    target, admitted = tvm.target.Target("llvm"), 0
    for seed in range(40):
        rng, some = random.Random(seed), random_case(seed)
        workload = recognised(some)
        for _ in range(4 if workload else 0):
            knobs = loops.LoopsKnobs(
                lanes=rng.choice((1, 2, 7, 16, 64, 256)),
                rows=rng.randint(1, 16),
                row=rng.randint(0, 4),
                parallel=rng.random() < 0.5,
            )
            try:
                mod = loops.apply(some.mod, workload, knobs).mod
                check_tiles(mod["main"])
            except (KnobError, GuardError):
                continue
            check_function(mod["main"], some.mod["main"], target)
            admitted += 1
    assert admitted > 20


def test_a_constant_operand_is_packed_when_the_function_is_compiled() -> None:
    some = case("conv1d", lambda x, w: topi.nn.conv1d_ncw(x, w, 2, 0, 1), (1, 16, 33), (32, 16, 3))
    main = some.mod["main"].with_attr("layout_free_buffers", [1])
    mod = tvm.IRModule({"main": main})
    workload = loops.recognise(mod, blocks_of(mod))
    assert workload is not None and workload.main.packing is not None and workload.main.packing.free
    scheduled = loops.apply(mod, workload, loops.default_knobs(workload, MACHINE)).mod
    check_function(scheduled["main"], main, tvm.target.Target("llvm"))
    assert "layout_rewrite_preproc" in scheduled.script()
    assert_equal(run(scheduled, "llvm", some)[0], run(some.mod, UNOPTIMISED, some)[0], some.name)
