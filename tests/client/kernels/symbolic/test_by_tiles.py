"""Functions with open axes, scheduled by tiles, compute what TVM's own loops do, at every size."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import te, tirx, topi  # noqa: E402

from tunehub.kernels.cpu import Machine, winograd  # noqa: E402
from tunehub.kernels.symbolic.images import by_images  # noqa: E402
from tunehub.tir.open_axes import open_axes  # noqa: E402

from .open_cases import CASES, dense, winograd_images  # noqa: E402

pytestmark = pytest.mark.slow


def _symbols(shapes: Any) -> int:
    return len({extent for shape in shapes for extent in shape if isinstance(extent, str)})


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(4)
def test_equal_to_the_loops_at_every_size(name: str, cpu: Any, opened: Any) -> None:
    check(name, cpu, opened)


@pytest.mark.parametrize("most", [3, 8])
@pytest.mark.parametrize("name", [name for name, (make, *_) in CASES.items() if make is winograd_images])
@pytest.mark.few(1)
def test_images_in_groups_are_right_at_every_size(
    name: str, most: int, cpu: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "_STAYS", 0)
    monkeypatch.setattr(winograd, "_MOST_IMAGES", most)
    assert "for group in range" in check(name, cpu, opened)


def check(name: str, cpu: Any, opened: Any) -> str:
    """Compares the results of a case with those of TVM's own loops at all sizes. Returns the schedule's text."""
    make, *shapes = CASES[name]
    dtypes = ("int64",) if name == "gather" else ()
    case = opened.open_case(make, *shapes, symbols=_symbols(shapes), dtypes=dtypes)
    found = opened.scheduled(case, cpu)
    assert found is not None
    fast, plain = opened.compiled(found.mod, cpu), opened.compiled(case.mod, cpu)
    rng = np.random.default_rng(3)
    for size in opened.SIZES:
        values = [size, *(2 + size % 5,) * (case.symbols - 1)]
        arrays, got = opened.outputs(fast, case, values, rng)
        expected = opened.written(plain, arrays, case.shapes(*values)[-1])
        nothing = max(1e-5, 1e-6 * np.abs(expected).max())
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=nothing, err_msg=f"{name} at {values}")
    return str(found.mod["main"].script())


def test_products_of_rows_are_register_tiles(cpu: Any, opened: Any) -> None:
    make, *shapes = CASES["dense"]
    found = opened.scheduled(opened.open_case(make, *shapes), cpu)
    assert found.template == "dense"


@pytest.mark.parametrize(("channels", "size", "together"), [(512, 8, True), (512, 56, False), (64, 8, False)])
def test_images_share_products_where_weights_would_be_read_again(
    channels: int, size: int, together: bool, opened: Any
) -> None:
    """Not where one image has enough tiles, nor where the cache keeps weights."""
    blocks = channels // 16
    shapes = (("s0", blocks, size, size, 16), (6, 6, blocks, blocks, 16, 16), (blocks, 1, 1, 16))
    function = opened.open_case(winograd_images, *shapes).mod["main"]
    axes = open_axes(function)
    assert axes is not None
    made = by_images(function, axes, Machine(vector=16, registers=32, cores=2))
    assert (made is not None) == together


def test_the_sums_of_a_tile_lie_at_known_places(cpu: Any, opened: Any) -> None:
    """Where these depended on the number of a thread, tiles of an even number of blocks took twice as long."""
    case = opened.open_case(dense, ("s0", 96), (48, 96, 16), (768,))
    lowered = tvm.s_tir.pipeline.default_s_tir_pipeline()[0](_bound(opened.scheduled(case, cpu).mod, cpu)).script()
    written = re.findall(r"tunehub_dense\w*\[(.+?)\] = ", lowered)
    assert len(written) > 12 and all(place.isdigit() for place in written)


def _bound(mod: Any, target: Any) -> Any:
    return tvm.IRModule({"main": mod["main"].with_attr("target", tvm.target.Target(target, host=target))})


@pytest.mark.parametrize("make", [lambda x: topi.sum(x, axis=0), lambda x: topi.flip(x, axis=0)])
def test_what_is_not_separate_along_an_open_axis_is_left_alone(make: Any, cpu: Any, opened: Any) -> None:
    """A sum over the axis, and elements of other places of it."""
    case = opened.open_case(make, ("s0", 64))
    assert opened.scheduled(case, cpu) is None or not opened.scheduled(case, cpu).tile


def test_a_value_that_depends_on_the_extent_is_not_separate(opened: Any) -> None:
    case = opened.open_case(
        lambda x: te.compute(x.shape, lambda i, j: x[i, j] * tirx.Cast("float32", i), name="scaled"), ("s0", 64)
    )
    assert open_axes(case.mod["main"]) is None
