"""Modules with open dimensions are served, and compute at every size what TVM's default computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.graph.simplify import simplify
from tunehub.tir.nodes import same_shape, tensor_type

pytestmark = pytest.mark.slow

op = relax.op
SIZES = (1, 2, 3, 7, 13, 16, 31)


def symbol(name: str) -> Any:
    return tvm.tirx.Var(name, "int64")


def flat(result: Any) -> list[Any]:
    return [result.numpy()] if hasattr(result, "numpy") else [each for part in result for each in flat(part)]


def outputs(executable: Any, *arrays: Any) -> list[Any]:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return flat(machine["main"](*[tvm.runtime.tensor(array) for array in arrays]))


@pytest.fixture
def served(target: Any, make_hub: Any) -> Callable[..., Any]:
    """Compile a module with both layouts, hold it to TVM's default on all inputs, and return the hub of the last."""

    def check(mod: Any, inputs: Sequence[Sequence[Any]], tolerance: float = 1e-4) -> Any:
        plain, hub = tvm.compile(mod, target), None
        for layout in ("keep", "auto"):
            hub = make_hub(layout=layout)
            executable = compile_module(mod, target, hub)
            assert not hub.failures and not hub.notes
            for arrays in inputs:
                found, expected = outputs(executable, *arrays), outputs(plain, *arrays)
                assert len(found) == len(expected)
                for one, other in zip(found, expected, strict=True):
                    assert one.dtype == other.dtype
                    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        return hub

    return check


def test_a_convolution_network_with_an_open_batch(nets: Any, served: Any) -> None:
    weights = [nets.const(16, 8, 3, 3), nets.const(16, 16, 3, 3), nets.const(16, 1, 3, 3), nets.const(10, 16)]
    statistics = [relax.const(np.abs(nets.array(16)) + 0.5) for _ in range(4)]

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, weights[0], padding=1))
        y = b.emit(relax.TupleGetItem(b.emit(op.nn.batch_norm(y, *statistics, axis=1, training=False)), 0))
        y = b.emit(op.clip(y, 0, 6))
        z = b.emit(op.nn.relu(b.emit(op.nn.conv2d(y, weights[1], padding=1))))
        z = b.emit(op.add(b.emit(op.nn.conv2d(z, weights[2], padding=1, groups=16)), y))
        z = b.emit(relax.TupleGetItem(b.emit(op.nn.batch_norm(z, *statistics, axis=1, training=False)), 0))
        z = b.emit(op.nn.max_pool2d(z, (3, 3), strides=(2, 2), padding=1))
        z = b.emit(op.mean(z, axis=[2, 3]))
        return b.emit(op.matmul(z, b.emit(op.permute_dims(weights[3]))))

    mod = nets.build(make, (symbol("batch"), 8, 9, 9))
    hub = served(mod, [[nets.array(n, 8, 9, 9)] for n in SIZES])
    assert all(workload.symbols == ("batch",) for workload in hub.workloads)


@pytest.mark.sweep
def test_a_segmentation_network_with_open_height_and_width(nets: Any, served: Any) -> None:
    weights = [nets.const(8, 4, 3, 3), nets.const(8, 8, 3, 3)]
    scales = [nets.const(8), nets.const(8)]

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weights[0], strides=2, padding=1))))
        y = b.emit(op.nn.group_norm(y, *scales, num_groups=2, channel_axis=1, axes=[2, 3]))
        y = b.emit(op.nn.instance_norm(y, *scales, channel_axis=1, axes=[2, 3]))
        y = b.emit(op.nn.silu(b.emit(op.nn.conv2d(y, weights[1], padding=2, dilation=2))))
        height, width = tensor_type(x).shape.values[2:]
        return b.emit(op.image.resize2d(y, relax.ShapeExpr([height, width]), layout="NCHW", method="linear"))

    mod = nets.build(make, (2, 4, symbol("height"), symbol("width")))
    served(mod, [[nets.array(2, 4, *size)] for size in ((5, 9), (16, 16), (17, 31), (32, 8))])


def encoder(nets: Any, batch: Any, length: Any, heads: int = 2, width: int = 16) -> Any:
    """Embedding, attention, a norm, and the last token's state through a dense layer."""
    table, positions, out = nets.const(50, width), nets.const(64, width), nets.const(width, 12)
    joint, bias, scale = nets.const(width, 3 * width), nets.const(3 * width), nets.const(width)

    def make(b: Any, ids: Any) -> Any:
        x = b.emit(op.take(table, ids, axis=0))
        x = b.emit(op.add(x, b.emit(op.take(positions, ids, axis=0))))
        qkv = b.emit(op.add(b.emit(op.matmul(x, joint)), bias))
        parts = b.emit(op.split(qkv, 3, axis=2))
        split = relax.ShapeExpr([batch, length, tvm.tirx.IntImm("int64", heads), width // heads])
        q, k, v = (b.emit(op.reshape(b.emit(relax.TupleGetItem(parts, i)), split)) for i in range(3))
        q, k, v = (b.emit(op.permute_dims(each, [0, 2, 1, 3])) for each in (q, k, v))
        scores = b.emit(op.matmul(q, b.emit(op.permute_dims(k, [0, 1, 3, 2]))))
        weights = b.emit(op.nn.softmax(b.emit(op.divide(scores, relax.const(2.0)))))
        mixed = b.emit(op.permute_dims(b.emit(op.matmul(weights, v)), [0, 2, 1, 3]))
        mixed = b.emit(op.reshape(mixed, relax.ShapeExpr([batch, length, tvm.tirx.IntImm("int64", width)])))
        y = b.emit(op.nn.layer_norm(b.emit(op.add(mixed, x)), scale, scale, axes=[-1]))
        y = b.emit(op.nn.gelu(b.emit(op.power(y, relax.const(2.0)))))
        last = b.emit(op.take(y, relax.const(-1, "int64"), axis=1, mode="fast"))
        return b.emit(op.matmul(last, out))

    return nets.build(make, (batch, length), dtype="int64")


@pytest.mark.sweep  # tests/client/compiler/test_symbolic_onnx.py has one
def test_an_encoder_with_an_open_batch_and_sequence(nets: Any, served: Any, run: Any) -> None:
    mod = encoder(nets, symbol("batch"), symbol("sequence"))
    sizes = [(1, 1), (1, 7), (2, 16), (3, 13), (5, 1), (4, 64)]
    # What TVM reads before the tensor for -1 is not what the model means: so both are given the rewritten index.
    hub = served(simplify(mod), [[nets.rng.integers(0, 50, size)] for size in sizes])
    assert any(set(workload.symbols) == {"batch", "sequence"} for workload in hub.workloads)


def test_the_last_of_an_open_axis_is_taken(nets: Any, target: Any, make_hub: Any) -> None:
    n = symbol("n")

    def make(b: Any, x: Any) -> Any:
        first = b.emit(op.take(x, relax.const(np.array([-1, 0, -2]), "int64"), axis=1, mode="fast"))
        return b.emit(op.exp(first))

    mod = nets.build(make, (2, n, 3))
    executable = compile_module(mod, target, make_hub())
    for size in (2, 3, 7, 13):
        data = nets.array(2, size, 3)
        np.testing.assert_allclose(outputs(executable, data)[0], np.exp(data[:, [-1, 0, -2]]), rtol=1e-5)


def test_tensors_are_broadcast_along_open_axes(nets: Any, target: Any, make_hub: Any) -> None:
    """Two shapes that are not static are not the same for that."""
    n, m = symbol("n"), symbol("m")

    def make(b: Any, x: Any, y: Any) -> Any:
        return b.emit(op.exp(b.emit(op.broadcast_to(x, tensor_type(y).shape))))

    mod = nets.build(make, (1, m), (n, m))
    executable = compile_module(mod, target, make_hub())
    for rows, columns in ((1, 1), (1, 5), (4, 1), (3, 7)):
        x, y = nets.array(1, columns), nets.array(rows, columns)
        np.testing.assert_allclose(outputs(executable, x, y)[0], np.exp(np.broadcast_to(x, y.shape)), rtol=1e-5)


def test_shapes_are_the_same_only_where_that_can_be_proven(nets: Any) -> None:
    n, m = symbol("n"), symbol("m")
    x = nets.var("x", (n, 4))
    assert same_shape(x, nets.var("y", (n, 4))) and same_shape(x, nets.var("y", (n * 2 - n, 4)))
    for other in ((m, 4), (n, 5), (n,), (n + 1, 4), (8, 4)):
        assert not same_shape(x, nets.var("y", other))


def test_what_is_static_beside_open_shapes_is_served_as_ever(
    nets: Any, target: Any, make_hub: Any, record_for: Any
) -> None:
    weight = nets.const(16, 8, 3, 3)

    def make(b: Any, x: Any, y: Any) -> Any:
        z = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, weight, padding=1))))
        return b.emit(relax.Tuple([z, b.emit(op.exp(y))]))

    records = record_for(nets.conv(bias=False))
    mod = nets.build(make, (1, 8, 8, 8), (symbol("n"), 3))
    hub = make_hub(records)
    executables = compile_module(mod, target, hub), tvm.compile(mod, target)
    rungs = {workload.symbols: workload.rung for workload in hub.workloads}
    assert rungs[()] == "exact" and not hub.failures
    for size in SIZES:
        arrays = nets.array(1, 8, 8, 8), nets.array(size, 3)
        found, expected = (outputs(each, *arrays) for each in executables)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_cast_to_a_shape_is_kept_and_checked(nets: Any, target: Any, served: Any, make_hub: Any) -> None:
    """Nothing but the cast says that there are as many rows as in the other input."""
    n, m = symbol("n"), symbol("m")
    kind = type(tensor_type(nets.var("x", (1,))))

    def make(b: Any, x: Any, y: Any) -> Any:
        b.match_cast(x, kind((n, 4), "float32"))
        same = b.match_cast(x, kind((n, 4), "float32"))
        return b.emit(op.multiply(b.emit(op.exp(same)), y))

    mod = nets.build(make, (m, 4), (n, 4))
    served(mod, [[nets.array(size, 4), nets.array(size, 4)] for size in SIZES])
    executable = compile_module(mod, target, make_hub())
    with pytest.raises(Exception, match=r"(?i)match_?cast|mismatch|shape"):
        outputs(executable, nets.array(5, 4), nets.array(4, 4))


def test_a_cast_that_nobody_reads_is_checked(nets: Any, target: Any, make_hub: Any) -> None:
    m = symbol("m")
    kind = type(tensor_type(nets.var("x", (1,))))

    def make(b: Any, x: Any) -> Any:
        b.match_cast(x, kind((3, 4), "float32"))
        return b.emit(op.exp(x))

    mod = nets.build(make, (m, 4))
    for layout in ("keep", "auto"):
        executable = compile_module(mod, target, make_hub(layout=layout))
        data = nets.array(3, 4)
        np.testing.assert_allclose(outputs(executable, data)[0], np.exp(data), rtol=1e-5)
        with pytest.raises(Exception, match=r"(?i)match_?cast|mismatch|shape"):
            outputs(executable, nets.array(5, 4))


def test_shapes_that_depend_on_data_compile_and_run(nets: Any, served: Any) -> None:
    found, distinct = symbol("found"), symbol("distinct")
    kind = type(tensor_type(nets.var("x", (1,))))

    def make(b: Any, x: Any) -> Any:
        places = b.match_cast(b.emit(op.nonzero(x)), kind((1, found), "int64"))
        positive = b.emit(op.take(x, b.emit(op.reshape(places, (-1,))), axis=0))
        values = b.match_cast(b.emit(op.unique(positive)), kind((distinct,), "float32"))
        return b.emit(op.exp(b.emit(op.multiply(values, relax.const(2.0)))))

    mod = nets.build(make, (symbol("n"),))
    arrays = [np.maximum(nets.rng.integers(-2, 3, size), 0).astype("float32") for size in (2, 3, 7, 13, 31)]
    served(mod, [[array] for array in arrays if array.any()])


def test_what_no_step_serves_is_as_with_tvm_alone_and_the_report_says_why(nets: Any, served: Any) -> None:
    """Places that depend on the data are looked up, and looked up again: nothing that a template is for."""
    found = symbol("found")
    kind = type(tensor_type(nets.var("x", (1,))))

    def make(b: Any, x: Any) -> Any:
        places = b.emit(op.reshape(b.match_cast(b.emit(op.nonzero(x)), kind((1, found), "int64")), (-1,)))
        return b.emit(op.take(b.emit(op.take(x, places, axis=0)), b.emit(op.argsort(places, dtype="int64")), axis=0))

    arrays = [np.maximum(nets.rng.integers(-2, 3, size), 0).astype("float32") for size in (2, 3, 7, 13, 31)]
    hub = served(nets.build(make, (symbol("n"),)), [[array] for array in arrays if array.any()])
    assert set(hub.rungs()) == {"default"}
    for workload in hub.workloads:
        assert {"n", "found"} & set(workload.symbols)
        assert workload.passed_over[-1].startswith("template: "), workload.passed_over


@pytest.mark.parametrize("shape", [(5,), (None,)])
def test_results_of_unknown_shape_are_as_with_tvm_alone(nets: Any, served: Any, shape: tuple[int | None, ...]) -> None:
    """No cast says how many elements there are: TVM knows no shape, and neither does the hub."""

    def make(b: Any, x: Any) -> Any:
        return b.emit(relax.Tuple([b.emit(op.unique(b.emit(op.nonzero(x)))), b.emit(op.nn.relu(x))]))

    mod = nets.build(make, tuple(symbol("n") if extent is None else extent for extent in shape))
    hub = served(mod, [[np.array([0, 1, 0, 2, 3], "float32")]])
    assert [workload.symbols for workload in hub.workloads] == [("n",) if shape == (None,) else ()]


def test_sums_along_an_open_axis_are_served_with_what_is_around_them(nets: Any, served: Any) -> None:
    """TVM's kernel for these keeps variables that fusion replaces."""

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.cumsum(b.emit(op.concat([x, nets.const(2, 3)], axis=0)), axis=0))
        return b.emit(op.exp(b.emit(op.cumsum(b.emit(op.tanh(x)), axis=0)))), y

    mod = nets.build(lambda b, x: b.emit(relax.Tuple(make(b, x))), (symbol("n"), 3))
    served(mod, [[nets.array(size, 3)] for size in (1, 2, 7, 31)])


def test_slices_whose_bounds_are_inputs_compile_and_run(nets: Any, target: Any, make_hub: Any) -> None:
    builder = relax.BlockBuilder()
    x = nets.var("x", (symbol("n"), 6))
    bounds = [nets.var(name, (2,), "int64") for name in ("begin", "end", "step")]
    with builder.function("main", [x, *bounds]):
        with builder.dataflow():
            part = builder.emit(op.dynamic_strided_slice(builder.emit(op.exp(x)), *bounds))
            output = builder.emit_output(part)
        builder.emit_func_output(output)
    mod, hub = builder.get(), make_hub()
    executables = tvm.compile(mod, target), compile_module(mod, target, hub)
    assert not hub.failures
    for size in (3, 7, 13):
        arrays = [nets.array(size, 6), *(np.array(pair, "int64") for pair in ((1, 0), (size, 5), (1, 2)))]
        expected = np.exp(arrays[0][1:size, 0:5:2])
        for executable in executables:
            np.testing.assert_allclose(outputs(executable, *arrays)[0], expected, rtol=1e-5)


def test_a_number_of_rows_that_is_computed_is_served(nets: Any, served: Any) -> None:
    n = symbol("n")

    def make(b: Any, x: Any) -> Any:
        joined = b.emit(op.concat([x, b.emit(op.exp(x))], axis=0))
        halves = b.emit(
            op.reshape(joined, relax.ShapeExpr([tvm.tirx.IntImm("int64", 2), n, tvm.tirx.IntImm("int64", 6)]))
        )
        return b.emit(op.sum(b.emit(op.nn.softmax(halves, axis=1)), axis=[0]))

    served(nets.build(make, (n, 6)), [[nets.array(size, 6)] for size in SIZES])


@pytest.mark.parametrize("exponent", [2.0, np.full((1, 1), 3.0, "float32"), np.full((1, 1, 1), 2.0, "float32")])
def test_powers_of_open_shapes(nets: Any, target: Any, make_hub: Any, exponent: Any) -> None:
    mod = nets.build(lambda b, x: b.emit(op.power(x, relax.const(exponent, "float32"))), (symbol("n"), 3))
    executable = compile_module(mod, target, make_hub())
    for size in SIZES:
        data = nets.array(size, 3)
        np.testing.assert_allclose(outputs(executable, data)[0], np.power(data, exponent), rtol=1e-5, atol=1e-6)
