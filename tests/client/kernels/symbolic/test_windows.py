"""Convolutions and pooling of images of open height and width compute what TVM's own loops do, at every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import topi  # noqa: E402

from tunehub.kernels.te import blocked  # noqa: E402

pytestmark = pytest.mark.slow

SIZES = ((1, 1), (2, 9), (5, 3), (7, 7), (6, 16), (9, 31), (17, 13), (3, 64), (1, 147))


def _residual(x: Any, w: Any, b: Any, y: Any) -> Any:
    return topi.nn.relu(topi.add(topi.add(blocked.conv2d_blocked(x, w, padding=(1, 1, 1, 1)), b), y))


def _dilated(x: Any, w: Any) -> Any:
    return blocked.conv2d_blocked(x, w, padding=(2, 2, 2, 2), dilation=(2, 2))


def _plain_result(x: Any, w: Any) -> Any:
    return blocked.from_blocked(blocked.conv2d_blocked(x, w, padding=(0, 1, 0, 1)), 21)


def _pooling(x: Any) -> Any:
    return blocked.pool2d_blocked(x, kind="max", pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))


def _average(x: Any) -> Any:
    return blocked.pool2d_blocked(
        x, kind="avg", pool_size=(3, 2), strides=(2, 1), padding=(1, 0, 1, 1), count_include_pad=True
    )


CASES = {
    "residual": (_residual, (1, 2, "s0", "s1", 16), (2, 2, 3, 3, 16, 16), (2, 1, 1, 16), (1, 2, "s0", "s1", 16)),
    "stem": (
        lambda x, w: blocked.conv2d_blocked(x, w, strides=(2, 2), padding=(3, 3, 3, 3)),
        (1, 3, "s0", "s1"),
        (4, 3, 7, 7, 16),
    ),
    "strided, no padding": (
        lambda x, w: topi.nn.relu(blocked.conv2d_blocked(x, w, strides=(2, 2))),
        (2, 1, "s0", "s1", 16),
        (2, 1, 1, 1, 16, 16),
    ),
    "pointwise": (
        lambda x, w, b: topi.add(blocked.conv2d_blocked(x, w), b),
        (1, 3, "s0", "s1", 16),
        (4, 3, 1, 1, 16, 16),
        (1, 4, 1, 1, 16),
    ),
    "dilated": (_dilated, (1, 1, "s0", "s1", 8), (3, 1, 3, 3, 8, 8)),
    "copied by blocks of channels": (_dilated, (1, 16, "s0", "s1", 4), (1, 16, 3, 3, 4, 4)),
    "one row": (
        lambda x, w: blocked.conv2d_blocked(x, w, strides=(1, 2), padding=(0, 2, 0, 2)),
        (1, 2, 1, "s1", 16),
        (2, 2, 1, 5, 16, 16),
    ),
    "known width": (_dilated, (1, 1, "s0", 23, 16), (2, 1, 3, 3, 16, 16)),
    "open batch": (_dilated, ("s2", 1, "s0", "s1", 16), (2, 1, 3, 3, 16, 16)),
    "plain result": (_plain_result, (1, 1, "s0", "s1", 16), (2, 1, 1, 3, 16, 16)),
    "depthwise": (
        lambda x, w: blocked.depthwise_blocked(x, w, strides=(2, 1), padding=(1, 2, 1, 2)),
        (1, 3, "s0", "s1", 16),
        (3, 3, 5, 16),
    ),
    "far": (
        lambda x, w: blocked.depthwise_blocked(x, w, padding=(2, 0, 1, 3)),
        (1, 2, "s0", "s1", 16),
        (2, 3, 3, 16),
    ),
    "pooling": (_pooling, (1, 3, "s0", "s1", 16)),
    "average": (_average, (1, 3, "s0", "s1", 16)),
}


def _check(name: str, opened: Any, cpu: Any, sizes: Any) -> Any:
    make, *shapes = CASES[name]
    case = opened.open_case(make, *shapes, symbols=3)
    found = opened.scheduled(case, cpu)
    assert found is not None
    fast, plain = opened.compiled(found.mod, cpu), opened.compiled(case.mod, cpu)
    rng = np.random.default_rng(3)
    for size in sizes:
        values = (*map(int, size), 3)
        arrays, got = opened.outputs(fast, case, values, rng)
        expected = opened.written(plain, arrays, case.shapes(*values)[-1])
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {values}")
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(3)
def test_equal_to_the_loops_at_every_size(name: str, cpu: Any, opened: Any) -> None:
    assert _check(name, opened, cpu, SIZES).template in ("conv2d", "depthwise", "pooling")


@pytest.mark.parametrize(("name", "copied"), [("depthwise", False), ("pooling", False), ("residual", True)])
def test_only_convolutions_of_all_channels_copy_their_padded_input(
    name: str, copied: bool, cpu: Any, opened: Any
) -> None:
    make, *shapes = CASES[name]
    found = opened.scheduled(opened.open_case(make, *shapes, symbols=3), cpu)
    assert ("pad_temp" in [str(each.name) for each in found.mod["main"].body.block.alloc_buffers]) == copied


def test_a_window_that_can_be_all_outside_of_the_image_is_of_a_padded_copy(cpu: Any, opened: Any) -> None:
    found = _check("far", opened, cpu, SIZES)
    assert [str(each.name) for each in found.mod["main"].body.block.alloc_buffers] == ["pad_temp"]


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_loops_at_random_sizes(name: str, cpu: Any, opened: Any) -> None:
    _check(name, opened, cpu, np.random.default_rng(7).integers(1, 100, (60, 2)))


def test_an_average_that_counts_what_is_inside_the_image_is_no_tile(cpu: Any, opened: Any) -> None:
    """How much that is depends on the place of the window."""

    def make(x: Any) -> Any:
        return blocked.pool2d_blocked(
            x, kind="avg", pool_size=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1), count_include_pad=False
        )

    case = opened.open_case(make, (1, 3, "s0", "s1", 16), symbols=2)
    found = opened.scheduled(case, cpu)
    assert found.template == "loops"
    fast, plain = opened.compiled(found.mod, cpu), opened.compiled(case.mod, cpu)
    arrays, got = opened.outputs(fast, case, (7, 9), np.random.default_rng(0))
    np.testing.assert_allclose(got, opened.written(plain, arrays, case.shapes(7, 9)[-1]), rtol=1e-5)
