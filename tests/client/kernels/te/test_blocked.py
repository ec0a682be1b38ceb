"""Operators on blocked tensors equal TVM's on plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import te, topi  # noqa: E402

from tunehub.kernels.te import blocked, weights  # noqa: E402

from ....unoptimised import UNOPTIMISED  # noqa: E402

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]


def evaluate(make: Callable[..., Any], *inputs: Array) -> Array:
    """Run the tensor expression ``make(*inputs)`` without any schedule."""
    placeholders = [te.placeholder(array.shape, str(array.dtype), name=f"p{i}") for i, array in enumerate(inputs)]
    result = make(*placeholders)
    function = te.create_prim_func([*placeholders, result])
    library = tvm.compile(tvm.IRModule({"main": function}), target=tvm.target.Target(UNOPTIMISED))
    output = tvm.runtime.tensor(np.zeros([int(extent) for extent in result.shape], "float32"))
    library["main"](*[tvm.runtime.tensor(array) for array in inputs], output)
    return np.asarray(output.numpy())


def random(*shape: int) -> Array:
    return np.random.default_rng(7).uniform(-1, 1, shape).astype("float32")


def block(array: Array, size: int) -> Array:
    return evaluate(lambda data: blocked.to_blocked(data, size), array)


def unblock(array: Array, channels: int) -> Array:
    return evaluate(lambda data: blocked.from_blocked(data, channels), array)


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "strides", "padding", "dilation", "groups", "in_block", "out_block"),
    [
        (8, 16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, 8, 8),
        (3, 16, (3, 2), (2, 1), (1, 0, 1, 2), (1, 1), 1, None, 8),
        (7, 11, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, 4, 8),
        (8, 8, (3, 3), (1, 2), (2, 2, 2, 2), (2, 2), 1, 4, 4),
        (16, 32, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2, 8, 8),
        (16, 16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4, 8, 8),
        (12, 18, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 3, 4, 4),
        (18, 21, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3, 4, 8),
        (68, 68, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 4, 8, 8),
        (24, 20, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 4, 8, 8),
        (9, 33, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 3, 8, 16),
    ],
)  # fmt: skip
@pytest.mark.few(3)
def test_conv2d(
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    in_block: int | None,
    out_block: int,
) -> None:
    data, weight = random(2, channels, 7, 6), random(outputs, channels // groups, *kernel)
    expected = evaluate(
        lambda x, w: (
            topi.nn.group_conv2d_nchw(x, w, strides, padding, dilation, groups)
            if groups > 1
            else topi.nn.conv2d_nchw(x, w, strides, padding, dilation)
        ),
        data,
        weight,
    )
    packed = weights.pack_conv2d_weight(weight, in_block=in_block, out_block=out_block, groups=groups)
    result = evaluate(
        lambda x, w: blocked.conv2d_blocked(
            x, w, strides=strides, padding=padding, dilation=dilation, groups=groups, channels=(channels, outputs)
        ),
        block(data, in_block) if in_block else data,
        packed,
    )
    np.testing.assert_allclose(unblock(result, outputs), expected, rtol=1e-4, atol=1e-4)
    filled_up = np.moveaxis(result, -1, 2).reshape(2, -1, *result.shape[2:4])[:, outputs:]
    assert not filled_up.any()


def test_depthwise() -> None:
    data, weight = random(2, 11, 7, 6), random(11, 1, 3, 3)
    expected = evaluate(lambda x, w: topi.nn.depthwise_conv2d_nchw(x, w, (2, 1), (1, 1, 1, 1), (1, 1)), data, weight)
    result = evaluate(
        lambda x, w: blocked.depthwise_blocked(x, w, strides=(2, 1), padding=(1, 1, 1, 1)),
        block(data, 8),
        weights.pack_depthwise_weight(weight, block=8),
    )
    np.testing.assert_allclose(unblock(result, 11), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outputs", [16, 19])
def test_dense(outputs: int) -> None:
    data, weight = random(2, 3, 13), random(13, outputs)
    result = evaluate(
        lambda x, w: blocked.dense_blocked(x, w, outputs=outputs), data, weights.pack_dense_weight(weight, out_block=8)
    )
    np.testing.assert_allclose(result, data @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("ceil_mode", "count_include_pad"), [(False, False), (True, True), (True, False)])
@pytest.mark.few(3)
def test_pool2d(kind: Any, ceil_mode: bool, count_include_pad: bool) -> None:
    data = random(2, 11, 8, 7)
    size, strides, padding = (3, 3), (2, 2), (1, 0, 1, 1)

    def plain(x: Any) -> Any:
        return topi.nn.pool2d(
            x, size, strides, (1, 1), padding, kind, ceil_mode, "NCHW", count_include_pad=count_include_pad
        )

    def in_blocks(x: Any) -> Any:
        return blocked.pool2d_blocked(
            x, kind=kind, pool_size=size, strides=strides, padding=padding, ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
        )  # fmt: skip

    result = unblock(evaluate(in_blocks, block(data, 4)), 11)
    np.testing.assert_allclose(result, evaluate(plain, data), rtol=1e-5, atol=1e-5)


def test_adaptive_pool2d() -> None:
    data = random(1, 11, 8, 7)
    result = evaluate(lambda x: blocked.adaptive_pool2d_blocked(x, kind="avg", output_size=(1, 1)), block(data, 8))
    np.testing.assert_allclose(unblock(result, 11)[:, :, 0, 0], data.mean((2, 3)), rtol=1e-4, atol=1e-5)


def test_layouts_fill_up_with_zeros() -> None:
    data = random(2, 11, 3, 2)
    result = block(data, 8)
    assert result.shape == (2, 2, 3, 2, 8)
    assert not result[:, 1, :, :, 3:].any()
    np.testing.assert_array_equal(unblock(result, 11), data)
    smaller = evaluate(lambda x: blocked.reblock(x, 11, 4), result)
    np.testing.assert_array_equal(smaller, block(data, 4))
    np.testing.assert_array_equal(evaluate(lambda x: blocked.reblock(x, 11, 8), smaller), result)


@pytest.mark.parametrize("channels", [(8, 11), (5, 3, 8), (8, 8), (1, 10), (4, 8, 8), (12, 2)])
@pytest.mark.few(3)
def test_concat(channels: tuple[int, ...]) -> None:
    parts = [random(2, count, 3, 2) * (i + 1) for i, count in enumerate(channels)]
    result = evaluate(lambda *t: blocked.concat_blocked(t, channels), *[block(part, 8) for part in parts])
    np.testing.assert_array_equal(result, block(np.concatenate(parts, 1), 8))


@pytest.mark.parametrize(("begin", "count"), [(8, 3), (0, 8), (4, 8), (4, 5), (3, 16), (1, 1)])
def test_slice(begin: int, count: int) -> None:
    data = random(2, 19, 3, 2)
    result = evaluate(lambda x: blocked.slice_blocked(x, begin, count), block(data, 8))
    np.testing.assert_array_equal(unblock(result, count), data[:, begin : begin + count])


def test_runs_are_what_stays_side_by_side() -> None:
    assert blocked.run_of(16, (24, 40)) == 8
    assert blocked.run_of(8, (12, 29)) == 1
    assert [blocked.run_in_name(name) for name in ("tunehub_concat_8", "tunehub_slice", "tunehub_slice_4")] == [8, 0, 4]


@pytest.mark.parametrize("method", ["nearest_neighbor", "linear", "cubic"])
def test_resize(method: str) -> None:
    data, how = random(1, 11, 4, 5), {"roi": [0.0] * 4, "size": (7, 10), "method": method}
    expected = evaluate(lambda x: topi.image.resize2d(x, layout="NCHW", **how), data)
    result = evaluate(lambda x: blocked.resize2d_blocked(x, **how), block(data, 8))
    np.testing.assert_allclose(unblock(result, 11), expected, rtol=1e-6, atol=1e-6)


def test_pad() -> None:
    data = random(1, 11, 4, 5)
    result = evaluate(lambda x: blocked.pad_blocked(x, (1, 0), (2, 3), 1.5), block(data, 8))
    expected = np.pad(data, [(0, 0), (0, 0), (1, 2), (0, 3)], constant_values=1.5)
    np.testing.assert_array_equal(unblock(result, 11), expected)


def test_pack_channels() -> None:
    bias = random(11, 1, 1)
    assert weights.pack_channels(bias, block=8).shape == (2, 1, 1, 8)
    whole = random(1, 11, 3, 2)
    np.testing.assert_array_equal(weights.pack_channels(whole, block=8), block(whole, 8))
    assert weights.pack_channels(random(1, 1, 3, 2), block=8).shape == (1, 1, 3, 2, 1)
