"""Operators of every kind on templates' default knobs compute what TVM's default computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.compiler.preparing import prepare

from .conftest import Nets

pytestmark = pytest.mark.slow

op = relax.op
Shape = tuple[int, ...]


def _index(*values: int) -> Any:
    return relax.const(np.array(values, "int64"))


def _residual(b: Any, x: Any) -> Any:
    return b.emit(op.multiply(b.emit(op.tanh(x)), b.emit(op.add(x, relax.const(1.0)))))


def _softmax_of_scores(b: Any, x: Any) -> Any:
    scores = b.emit(op.matmul(x, b.emit(op.permute_dims(x, [0, 2, 1]))))
    return b.emit(op.nn.softmax(b.emit(op.multiply(scores, relax.const(0.125))), axis=-1))


def _layer_norm(b: Any, x: Any) -> Any:
    ones, zeros = (relax.const(np.full(37, value, "float32")) for value in (1.5, 0.25))
    return b.emit(op.nn.layer_norm(x, ones, zeros, axes=[-1]))


def _two_results(b: Any, x: Any) -> Any:
    first, second = (b.emit(relax.TupleGetItem(b.emit(op.split(x, 2, axis=1)), i)) for i in (0, 1))
    return b.emit(op.concat([second, b.emit(op.exp(first))], axis=1))


def _zeros(*shape: int) -> Any:
    return relax.const(np.zeros(shape, "float32"))


def _ones(*shape: int) -> Any:
    return relax.const(np.ones(shape, "float32"))


def _places(shape: Shape, most: int) -> Any:
    return relax.const(np.random.default_rng(0).integers(0, most, shape))


def _rows(*shape: int) -> Any:
    """Row numbers, each once in a column."""
    return relax.const(np.broadcast_to(np.arange(shape[0])[:, None], shape).astype("int64"))


def _gather_points(b: Any, x: Any) -> Any:
    return b.emit(op.gather_nd(x, b.emit(op.astype(_places((5, 2), 7), "int64"))))


def _group_norm(b: Any, x: Any) -> Any:
    return b.emit(op.nn.group_norm(x, _ones(8), _zeros(8), num_groups=2, channel_axis=1, axes=[2, 3]))


def _conv_nhwc(b: Any, x: Any) -> Any:
    return b.emit(op.nn.conv2d(x, _ones(3, 3, 8, 16), data_layout="NHWC", kernel_layout="HWIO"))


def _conv_nhwc_padded(b: Any, x: Any) -> Any:
    y = b.emit(op.nn.conv2d(x, _ones(3, 3, 8, 19), padding=1, strides=2, data_layout="NHWC", kernel_layout="HWIO"))
    return b.emit(op.nn.relu(y))


def _conv1d_strided(b: Any, x: Any) -> Any:
    return b.emit(op.nn.gelu(b.emit(op.nn.conv1d(x, _ones(32, 8, 3), strides=2, padding=1))))


def _local_response(b: Any, x: Any) -> Any:
    squares = b.emit(op.expand_dims(b.emit(op.multiply(x, x)), 1))
    mean = b.emit(op.nn.avg_pool3d(squares, (5, 1, 1), (1, 1, 1), (2, 0, 0), count_include_pad=True))
    return b.emit(op.divide(x, b.emit(op.squeeze(b.emit(op.add(mean, relax.const(1.0))), [1]))))


def _small_products(b: Any, x: Any) -> Any:
    wide = b.emit(op.astype(x, "int32"))
    return b.emit(op.matmul(wide, b.emit(op.permute_dims(wide))))


# name -> (shape of the input, its type, what is computed)
OPERATORS: dict[str, tuple[Shape, str, Callable[[Any, Any], Any]]] = {
    "chain": ((3, 17, 5), "float32", _residual),
    "scalar": ((), "float32", lambda b, x: b.emit(op.exp(x))),
    "one_element": ((1,), "float32", lambda b, x: b.emit(op.exp(x))),
    "one_axis": ((37,), "float32", lambda b, x: b.emit(op.sigmoid(x))),
    "integers": ((7, 9), "int32", lambda b, x: b.emit(op.multiply(x, x))),
    "bytes": ((7, 70), "int8", lambda b, x: b.emit(op.add(x, x))),
    "halves": ((7, 70), "float16", lambda b, x: b.emit(op.add(x, x))),
    "cast": ((7, 70), "float32", lambda b, x: b.emit(op.astype(x, "int32"))),
    "compare": ((7, 70), "float32", lambda b, x: b.emit(op.greater(x, relax.const(0.0)))),
    "where": ((7, 70), "float32", lambda b, x: b.emit(op.where(b.emit(op.greater(x, relax.const(0.0))), x, x))),
    "transpose": ((7, 9, 70), "float32", lambda b, x: b.emit(op.permute_dims(x, [2, 0, 1]))),
    "broadcast": ((7, 1, 70), "float32", lambda b, x: b.emit(op.broadcast_to(x, (7, 9, 70)))),
    "slice": ((7, 70), "float32", lambda b, x: b.emit(op.strided_slice(x, [1], [1], [70], [3]))),
    "flip": ((7, 70), "float32", lambda b, x: b.emit(op.flip(x, 1))),
    "pad": ((7, 70), "float32", lambda b, x: b.emit(op.nn.pad(x, [1, 2, 3, 4]))),
    "two_results": ((3, 20, 7), "float32", _two_results),
    "take": ((7, 70), "float32", lambda b, x: b.emit(op.take(x, _index(6, 0, 3, 3), axis=0))),
    "tile": ((7, 10), "float32", lambda b, x: b.emit(op.tile(x, [2, 3]))),
    "triangle": ((7, 70), "float32", lambda b, x: b.emit(op.triu(x, 1))),
    "cumulative_sum": ((7, 70), "float32", lambda b, x: b.emit(op.cumsum(x, axis=1))),
    "sum_of_last": ((7, 70), "float32", lambda b, x: b.emit(op.sum(x, [-1]))),
    "sum_of_first": ((7, 70), "float32", lambda b, x: b.emit(op.sum(x, [0]))),
    "sum_of_all": ((7, 70), "float32", lambda b, x: b.emit(op.sum(x))),
    "mean_kept": ((2, 7, 70), "float32", lambda b, x: b.emit(op.mean(x, [-1], keepdims=True))),
    "variance": ((2, 7, 70), "float32", lambda b, x: b.emit(op.variance(x, [-1]))),
    "maximum": ((2, 7, 71), "float32", lambda b, x: b.emit(op.max(x, [-1]))),
    "product": ((2, 7, 12), "float32", lambda b, x: b.emit(op.prod(x, [-1]))),
    "place_of_maximum": ((7, 70), "float32", lambda b, x: b.emit(op.argmax(x, axis=1))),
    "sum_of_integers": ((7, 70), "int32", lambda b, x: b.emit(op.sum(x, [-1]))),
    "softmax": ((3, 7, 70), "float32", lambda b, x: b.emit(op.nn.softmax(x, axis=-1))),
    "softmax_of_a_prime": ((2, 3, 197), "float32", lambda b, x: b.emit(op.nn.softmax(x, axis=-1))),
    "softmax_of_channels": ((3, 16, 7), "float32", lambda b, x: b.emit(op.nn.softmax(x, axis=1))),
    "log_softmax": ((3, 71), "float32", lambda b, x: b.emit(op.nn.log_softmax(x, axis=-1))),
    "layer_norm": ((3, 5, 37), "float32", _layer_norm),
    "gelu": ((3, 5, 37), "float32", lambda b, x: b.emit(op.nn.gelu(x))),
    "attention": ((3, 11, 16), "float32", _softmax_of_scores),
    "max_pool_plain": ((1, 3, 12, 12), "float32", lambda b, x: b.emit(op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)))),
    "average_pool_plain": ((1, 3, 12, 12), "float32", lambda b, x: b.emit(op.nn.avg_pool2d(x, (3, 3), (2, 2)))),
    "max_pool": ((1, 32, 13, 13), "float32", lambda b, x: b.emit(op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)))),
    "global_pool": ((1, 33, 7, 7), "float32", lambda b, x: b.emit(op.nn.adaptive_avg_pool2d(x, (1, 1)))),
    "resize": ((1, 3, 8, 8), "float32", lambda b, x: b.emit(op.image.resize2d(x, (16, 16), layout="NCHW"))),
    "gather": ((7, 70), "float32", lambda b, x: b.emit(op.gather_elements(x, _places((3, 70), 7), axis=0))),
    "gather_points": (
        (7, 71),
        "float32",
        lambda b, x: b.emit(op.gather_nd(x, b.emit(op.astype(_places((5, 2), 7), "int64")))),
    ),
    "scatter": ((7, 70), "float32", lambda b, x: b.emit(op.scatter_elements(x, _rows(2, 70), _zeros(2, 70), axis=0))),
    "scatter_points": ((7, 70), "float32", lambda b, x: b.emit(op.scatter_nd(x, _rows(3, 1), _zeros(3, 70)))),
    "repeat": ((7, 70), "float32", lambda b, x: b.emit(op.repeat(x, 3, axis=1))),
    "top": ((3, 70), "float32", lambda b, x: b.emit(op.topk(x, 5, axis=1, ret_type="values"))),
    "sort": ((3, 70), "float32", lambda b, x: b.emit(op.sort(x, axis=1))),
    "order": ((3, 70), "float32", lambda b, x: b.emit(op.argsort(x, axis=1))),
    "remainder": ((7, 70), "int32", lambda b, x: b.emit(op.floor_divide(x, relax.const(3, "int32")))),
    "shift": ((7, 70), "int32", lambda b, x: b.emit(op.left_shift(x, relax.const(3, "int32")))),
    "logic": ((7, 70), "bool", lambda b, x: b.emit(op.logical_not(b.emit(op.logical_and(x, x))))),
    "error_function": ((7, 70), "float32", lambda b, x: b.emit(op.erf(x))),
    "round": ((7, 70), "float32", lambda b, x: b.emit(op.round(b.emit(op.floor(x))))),
    "power": ((7, 70), "float32", lambda b, x: b.emit(op.power(b.emit(op.abs(x)), relax.const(1.7)))),
    "leaky": ((7, 70), "float32", lambda b, x: b.emit(op.nn.leakyrelu(x, 0.1))),
    "sines": ((7, 70), "float32", lambda b, x: b.emit(op.add(b.emit(op.sin(x)), b.emit(op.cos(x))))),
    "prelu": ((2, 7, 5), "float32", lambda b, x: b.emit(op.nn.prelu(x, _zeros(7), axis=1))),
    "group_norm": ((1, 8, 5, 7), "float32", _group_norm),
    "rms_norm": ((3, 5, 37), "float32", lambda b, x: b.emit(op.nn.rms_norm(x, _ones(37), axes=[-1]))),
    "deviation": ((3, 5, 37), "float32", lambda b, x: b.emit(op.std(x, [2]))),
    "last_two": ((3, 5, 37), "float32", lambda b, x: b.emit(op.sum(x, [1, 2]))),
    "conv1d": ((1, 8, 37), "float32", lambda b, x: b.emit(op.nn.conv1d(x, _ones(16, 8, 3), padding=1))),
    "conv_transposed": ((1, 8, 7, 7), "float32", lambda b, x: b.emit(op.nn.conv2d_transpose(x, _ones(8, 16, 3, 3)))),
    "conv3d": ((1, 2, 5, 6, 7), "float32", lambda b, x: b.emit(op.nn.conv3d(x, _ones(4, 2, 3, 3, 3)))),
    "conv1d_strided": ((1, 8, 41), "float32", _conv1d_strided),
    "conv_transposed_strided": (
        (1, 8, 7, 5),
        "float32",
        lambda b, x: b.emit(op.nn.conv2d_transpose(x, _ones(8, 16, 4, 4), strides=2, padding=1)),
    ),
    "conv1d_transposed": (
        (1, 8, 13),
        "float32",
        lambda b, x: b.emit(op.nn.conv1d_transpose(x, _ones(8, 17, 4), strides=2)),
    ),
    "local_response": ((1, 24, 13, 13), "float32", _local_response),
    "max_pool_of_volumes": (
        (1, 3, 8, 9, 16),
        "float32",
        lambda b, x: b.emit(op.nn.max_pool3d(x, (2, 2, 2), (1, 1, 1))),
    ),
    "average_pool_of_rows": (
        (1, 3, 37),
        "float32",
        lambda b, x: b.emit(op.nn.avg_pool1d(x, (3,), (2,), (1,), count_include_pad=True)),
    ),
    "sum_of_leading": ((5, 7, 33), "float32", lambda b, x: b.emit(op.sum(x, [0, 1]))),
    "sum_of_many": ((197, 101, 7), "float32", lambda b, x: b.emit(op.sum(x, [0, 1]))),
    "sum_of_all_of_many": ((197, 101, 7), "float32", lambda b, x: b.emit(op.mean(x))),
    "minimum_of_middle": ((5, 17, 33), "float32", lambda b, x: b.emit(op.min(x, [1], keepdims=True))),
    "maximum_of_bytes": ((5, 17, 70), "int8", lambda b, x: b.emit(op.max(x, [0, 1]))),
    "sum_of_moved": ((5, 17, 33), "float32", lambda b, x: b.emit(op.sum(b.emit(op.permute_dims(x, [2, 0, 1])), [1]))),
    "matmul_of_integers": ((9, 37), "int8", _small_products),
    "conv_of_rows_padded": ((1, 9, 11, 8), "float32", _conv_nhwc_padded),
    "conv_of_rows": ((1, 9, 9, 8), "float32", _conv_nhwc),
    "matmul_of_a_prime": ((3, 19, 23), "float32", lambda b, x: b.emit(op.matmul(x, _ones(3, 23, 37)))),
    "grouped_conv": ((1, 68, 7, 9), "float32", lambda b, x: b.emit(op.nn.conv2d(x, _ones(68, 17, 1, 1), groups=4))),
    "matrix_vector": ((8,), "float32", lambda b, x: b.emit(op.matmul(x, _ones(8, 5)))),
    "matmul_of_halves": ((8, 16), "float16", lambda b, x: b.emit(op.matmul(x, b.emit(op.permute_dims(x))))),
    "matmul_transposed": ((8, 17), "float32", lambda b, x: b.emit(op.matmul(x, b.emit(op.permute_dims(x))))),
    "matmul_broadcast": ((2, 8, 17), "float32", lambda b, x: b.emit(op.matmul(x, _ones(3, 1, 17, 5)))),
    "einsum": ((5, 6, 7), "float32", lambda b, x: b.emit(op.einsum((x,), "ijk->jki"))),
    "empty": ((0, 4), "float32", lambda b, x: b.emit(op.exp(x))),
}


@pytest.fixture(autouse=True)
def templates_whatever_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """These functions are so small that they would be left to TVM, but templates have to be right for them, too."""
    monkeypatch.setattr("tunehub.kernels.cpu.doubt", lambda *_: None)


def layouts(mod: Any, target: Any) -> list[str]:
    """The ways to compile ``mod``: to choose layouts only where that changes what is scheduled."""
    ways: list[Literal["keep", "auto"]] = ["keep", "auto"]
    kept, chosen = (prepare(mod, target, layout=way) for way in ways)
    return ways[:1] if tvm_ffi.structural_equal(kept, chosen) else [*ways]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.few(7)
def test_operators_compute_the_same(name: str, nets: Nets, target: Any, run: Any, make_hub: Any) -> None:
    shape, dtype, make = OPERATORS[name]
    mod = nets.build(make, shape, dtype=dtype)
    data = (10 * nets.rng.uniform(-1, 1, shape)).astype(dtype)
    expected = run(tvm.compile(mod, target), data)
    for layout in layouts(mod, target):
        hub = make_hub(layout=layout)
        found = run(compile_module(mod, target, hub), data)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), layout
        most = 1e-3 * float(np.abs(expected).max()) if dtype == "float16" else 1e-4  # TVM adds up in float16, we do not
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=most, err_msg=layout)
        assert not hub.failures, layout
        assert set(hub.rungs()) <= {"template", "default"}, layout


def test_functions_of_unknown_size_compute_the_same(nets: Nets, target: Any, run: Any, make_hub: Any) -> None:
    length = tvm.tirx.Var("n", "int64")
    mod = nets.build(_residual, (length, 16))
    hub, data = make_hub(layout="auto"), nets.array(7, 16)
    found = run(compile_module(mod, target, hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    assert hub.rungs() == ["template"] and not hub.failures
