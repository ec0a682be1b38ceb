"""What an importer wrote as kernels is operators again, and paddings are inside what reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, topi

from tunehub.compiler.preparing import prepare, simplifying_passes
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import main_module, static_shape

pytestmark = pytest.mark.slow

op = relax.op
INFINITY = float("inf")


def operators(mod: Any) -> list[str]:
    calls = [each.value for block in mod["main"].body.blocks for each in block.bindings]
    return [str(call.op.name).rpartition(".")[2] for call in calls if isinstance(call, relax.Call)]


def simplified(mod: Any) -> Any:
    return tvm.transform.Sequential(simplifying_passes(mod))(mod)


def importers_clip(b: Any, x: Any, low: float | None, high: float | None) -> Any:
    """As TVM's importer writes ONNX's Clip of opset 11 and later."""
    for kernel, bound, unbounded in ((topi.maximum, low, -np.inf), (topi.minimum, high, np.inf)):
        if bound is not None:
            number = relax.const(bound, "float32")
            checked = b.emit(op.where(b.emit(op.isnan(number)), relax.const(unbounded, "float32"), number))
            x = b.emit_te(kernel, x, checked)
    return x


@pytest.fixture
def same(target: Any, run: Any, nets: Any) -> Callable[..., Any]:
    """Simplify a network; it computes what TVM computes without that."""

    def check(make: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
        mod = nets.build(make, *shapes)
        after = simplified(mod)
        arrays = [3 * nets.array(*shape) for shape in shapes]
        expected, found = (run(tvm.compile(each, target), *arrays) for each in (mod, after))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        return after

    return check


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 6.0, ["clip"]),
        (-1.5, 0.25, ["clip"]),
        (0.0, None, ["relu"]),
        (-1.0, None, ["maximum"]),
        (None, 2.0, ["minimum"]),
        (0.0, INFINITY, ["relu"]),
        (float("nan"), 6.0, ["minimum"]),
        (2.0, 1.0, ["maximum", "minimum"]),
    ],
)
def test_clip_of_an_importer_is_an_operator(same: Any, low: Any, high: Any, expected: list[str]) -> None:
    after = same(lambda b, x: importers_clip(b, x, low, high), (1, 4, 5, 5))
    assert operators(after) == expected


def test_clip_of_images_of_open_height_and_width_is_an_operator(nets: Any) -> None:
    """Their sizes, functions of that of the input, are parameters of the kernels."""
    height, width, weight = tvm.tirx.Var("h", "int64"), tvm.tirx.Var("w", "int64"), nets.const(4, 3, 3, 3)

    def make(b: Any, x: Any) -> Any:
        return importers_clip(b, b.emit(op.nn.conv2d(x, weight, strides=2, padding=1)), 0.0, 6.0)

    assert operators(simplified(nets.build(make, (1, 3, height, width)))) == ["conv2d", "clip"]


def test_bounds_in_a_row_of_one_kind_stay_two(same: Any) -> None:
    after = same(lambda b, x: importers_clip(b, importers_clip(b, x, 0.0, None), -1.0, None), (1, 4, 5, 5))
    assert operators(after) == ["relu", "maximum"]


def test_bounds_inside_of_the_kernels_are_found_too(same: Any) -> None:
    after = same(lambda b, x: b.emit_te(topi.maximum, b.emit_te(topi.minimum, x, 0.5), -0.5), (1, 4, 5, 5))
    assert operators(after) == ["clip"]


def test_a_maximum_of_two_tensors_stays_one(same: Any) -> None:
    after = same(lambda b, x, y: b.emit_te(topi.maximum, x, y), (1, 4, 5, 5), (1, 4, 5, 5))
    assert operators(after) == ["call_tir"]


def test_a_kernel_that_only_looks_like_one_of_tvms_stays(same: Any) -> None:
    def beyond(x: Any) -> Any:
        return tvm.te.compute(x.shape, lambda *i: tvm.te.max(x[i], tvm.tirx.const(1.0) + x[i]), name="T_maximum")

    def shifted(x: Any) -> Any:
        inside = topi.nn.pad(x, [0, 0, 1, 1], [0, 0, 1, 1], 0.0)
        return tvm.te.compute(x.shape, lambda n, c, h, w: inside[n, c, h, w + 1], name="PadInput")

    assert operators(same(lambda b, x: b.emit_te(beyond, x), (1, 4, 5, 5))) == ["call_tir"]
    assert operators(same(lambda b, x: b.emit_te(shifted, x), (1, 4, 5, 5))) == ["call_tir"]


def test_workloads_are_those_of_the_operators(nets: Any, target: Any) -> None:
    weight = nets.const(16, 8, 3, 3)

    def keys(activation: Callable[[Any, Any], Any]) -> set[str]:
        def make(b: Any, x: Any) -> Any:
            return b.emit(activation(b, b.emit(op.nn.conv2d(x, weight, padding=1))))

        mod = prepare(nets.build(make, (1, 8, 8, 8)), target, layout="auto")
        return {
            workload_key(main_module(each)) for each in mod.functions.values() if isinstance(each, tvm.tirx.PrimFunc)
        }

    assert keys(lambda b, x: importers_clip(b, x, 0.0, 6.0)) == keys(lambda _b, x: op.clip(x, 0, 6))
    assert keys(lambda b, x: importers_clip(b, x, 0.0, None)) == keys(lambda _b, x: op.nn.relu(x))


@pytest.mark.parametrize("own", [(0, 0, 0, 0), (1, 0, 2, 1)])
def test_zeros_around_an_image_are_the_padding_of_its_convolution(nets: Any, same: Any, own: Any) -> None:
    weight = nets.const(4, 3, 3, 3)

    def make(b: Any, x: Any) -> Any:
        padded = b.emit_te(topi.nn.pad, x, [0, 0, 0, 1], [0, 0, 1, 2], 0.0)
        return b.emit(op.nn.conv2d(padded, weight, strides=2, padding=own))

    after = same(make, (1, 3, 9, 8))
    assert operators(after) == ["conv2d"]
    assert [int(each) for each in after["main"].body.blocks[0].bindings[0].value.attrs.padding] == [
        own[0],
        own[1] + 1,
        own[2] + 1,
        own[3] + 2,
    ]


@pytest.mark.parametrize(
    ("before", "after", "value"), [((0, 0, 1, 1), (0, 0, 1, 1), 1.0), ((0, 1, 0, 0), (0, 2, 0, 0), 0.0)]
)
def test_other_paddings_stay(nets: Any, same: Any, before: Any, after: Any, value: float) -> None:
    weight = nets.const(4, 3 + before[1] + after[1], 3, 3)

    def make(b: Any, x: Any) -> Any:
        return b.emit(op.nn.conv2d(b.emit_te(topi.nn.pad, x, before, after, value), weight))

    assert operators(same(make, (1, 3, 9, 8))) == ["pad", "conv2d"]


@pytest.mark.parametrize("value", [-INFINITY, float(np.finfo(np.float32).min)])
def test_the_lowest_values_around_an_image_are_the_padding_of_a_maximum(same: Any, value: float) -> None:
    def make(b: Any, x: Any) -> Any:
        padded = b.emit_te(topi.nn.pad, x, [0, 0, 0, 1], [0, 0, 1, 1], value)
        return b.emit(op.nn.max_pool2d(padded, 3, 2))

    assert operators(same(make, (1, 3, 9, 8))) == ["max_pool2d"]


def test_windows_of_nothing_but_padding_stay_as_they_are(same: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        padded = b.emit_te(topi.nn.pad, x, [0, 0, 2, 2], [0, 0, 0, 0], -INFINITY)
        return b.emit(op.nn.relu(b.emit(op.nn.max_pool2d(padded, 2, 2))))

    assert "pad" in operators(same(make, (1, 3, 8, 8)))


@pytest.mark.parametrize(("padding", "counted", "inside"), [(0, False, True), (1, True, True), (1, False, False)])
def test_zeros_around_an_image_count_in_an_average(same: Any, padding: int, counted: bool, inside: bool) -> None:
    def make(b: Any, x: Any) -> Any:
        padded = b.emit_te(topi.nn.pad, x, [0, 0, 0, 1], [0, 0, 1, 1], 0.0)
        return b.emit(op.nn.avg_pool2d(padded, 3, 2, padding, count_include_pad=counted))

    assert operators(same(make, (1, 3, 9, 8))) == (["avg_pool2d"] if inside else ["pad", "avg_pool2d"])


@pytest.mark.parametrize("slopes", [1, 6])
def test_slopes_below_zero_are_arithmetic(nets: Any, same: Any, slopes: int) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(op.nn.prelu(x, nets.const(slopes), 1))

    assert set(operators(same(make, (2, 6, 5, 5)))) == {"minimum", "multiply", "relu", "add"}


@pytest.mark.parametrize(
    ("dilation", "padding", "strides", "kernel"),
    [
        ((8, 8), (8, 8, 8, 8), (1, 1), (1, 1)),
        ((6, 9), (6, 9, 6, 9), (1, 1), (3, 1)),
        ((4, 4), (4, 4, 4, 4), (2, 2), (3, 3)),
        ((7, 7), (7, 0, 1, 8), (1, 1), (2, 2)),
        ((9, 9), (12, 9, 9, 12), (3, 2), (2, 2)),
    ],
)
def test_taps_that_only_read_padding_are_left_out(
    nets: Any, same: Any, dilation: Any, padding: Any, strides: Any, kernel: tuple[int, int]
) -> None:
    weight = nets.const(4, 3, 3, 3)

    def make(b: Any, x: Any) -> Any:
        return b.emit(op.nn.conv2d(x, weight, strides=strides, padding=padding, dilation=dilation))

    after = same(make, (1, 3, 8, 8))
    assert operators(after) == ["conv2d"]
    assert static_shape(after["main"].body.blocks[0].bindings[-1].value.args[1]) == (4, 3, *kernel)


def test_a_padding_of_nothing_is_left_out(same: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(op.nn.relu(b.emit_te(topi.nn.pad, x, [0, 0], [0, 0], 0.0)))

    assert operators(same(make, (4, 5))) == ["relu"]


@pytest.mark.parametrize(
    ("equation", "shapes", "transposed"),
    [
        ("bhid,bhjd->bhij", ((2, 3, 4, 8), (2, 3, 5, 8)), 1),
        ("bhij,bhjd->bihd", ((2, 3, 4, 5), (2, 3, 5, 8)), 1),
        ("ij,jk->ik", ((4, 5), (5, 6)), 0),
    ],
)
def test_an_einsum_of_two_tensors_is_a_matmul(same: Any, equation: str, shapes: Any, transposed: int) -> None:
    after = operators(same(lambda b, x, y: b.emit(b.emit_te(topi.einsum, equation, x, y)), *shapes))
    assert (after.count("matmul"), after.count("permute_dims"), after.count("call_tir")) == (1, transposed, 0)


def test_an_einsum_that_is_no_matmul_stays(same: Any) -> None:
    mod = same(lambda b, x, y: b.emit(b.emit_te(topi.einsum, "ij,ij->ij", x, y)), (4, 5), (4, 5))
    assert operators(mod) == ["call_tir"]


def test_parts_of_a_weight_are_weights(same: Any, nets: Any) -> None:
    """The projections of PyTorch's MultiheadAttention: one weight, split and transposed."""
    whole = relax.const(nets.array(48, 16), "float32")

    def make(b: Any, x: Any) -> Any:
        parts = b.emit(op.split(whole, [16], axis=0))
        first, second = (b.emit(op.permute_dims(b.emit(relax.TupleGetItem(parts, at)))) for at in (0, 1))
        wide = b.emit(op.matmul(x, second))
        return b.emit(op.concat([b.emit(op.matmul(x, first)), wide], axis=-1))

    assert "strided_slice" not in operators(same(make, (5, 16)))
