"""Copies into pairs of bfloat16: the very numbers, rounded to the nearest, and zeros behind the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import te, tirx  # noqa: E402

import tunehub  # noqa: E402
from tunehub.kernels.cpu import pairs  # noqa: E402
from tunehub.kernels.cpu.pair_copies import copy_pairs  # noqa: E402
from tunehub.tir.schedules import open_schedule  # noqa: E402

_DOUBT = pairs.doubt(tvm.target.Target({"kind": "llvm", "mcpu": "cooperlake"}))  # copies themselves run anywhere
pytestmark = [pytest.mark.slow, pytest.mark.skipif(_DOUBT is not None, reason=str(_DOUBT))]


def copied(source: Any, *, transposed: bool, along: str, dtype: str = "float32") -> tuple[Any, bool]:
    """``source`` ``[plane, row, column]`` in pairs along rows or columns, 32 of the other beside; if it can be."""
    x = te.placeholder(source.shape, dtype, name="x")
    rows, columns = source.shape[1:] if not transposed else source.shape[:0:-1]
    pair_axis, lane_axis = (rows, columns) if along == "rows" else (columns, rows)

    def number(p: Any, group: Any, pair: Any, lane: Any, item: Any) -> Any:
        at = (pair * 2 + item, group * 32 + lane)
        row, column = at if along == "rows" else at[::-1]
        there = tirx.all(row < rows, column < columns)
        value = x[p, column, row] if transposed else x[p, row, column]
        return tirx.if_then_else(there, value, tirx.const(0, dtype)).astype("bfloat16")

    shape = (source.shape[0], -(-lane_axis // 32), -(-pair_axis // 2), 32, 2)
    function = te.create_prim_func([x, te.compute(shape, number, name="copy")]).with_attr("global_symbol", "main")
    schedule = open_schedule(tvm.IRModule({"main": function}))
    could = copy_pairs(schedule, schedule.get_sblock("copy"))
    if not could:
        return None, False
    import ml_dtypes

    result = tvm.runtime.tensor(np.full(shape, np.nan, ml_dtypes.bfloat16))
    tvm.compile(schedule.mod, target=tunehub.host_target())["main"](tvm.runtime.tensor(source), result)
    return result.numpy(), True


@pytest.mark.few(4)
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (37, 51)])
def test_copies_are_exact(along: str, transposed: bool, rows: int, columns: int) -> None:
    import ml_dtypes

    whole = np.random.default_rng(0).standard_normal((2, rows, columns)).astype("float32")
    whole[0, 0, :3] = np.inf, 1.00390625, 1.01171875  # ties go to even
    found, could = copied(
        np.ascontiguousarray(whole.swapaxes(1, 2)) if transposed else whole, transposed=transposed, along=along
    )
    assert could
    plane = whole if along == "rows" else whole.swapaxes(1, 2)
    filled = np.pad(plane, ((0, 0), (0, plane.shape[1] % 2), (0, -plane.shape[2] % 32)))
    expected = filled.reshape(2, -1, 2, filled.shape[2] // 32, 32).transpose(0, 3, 1, 4, 2)
    assert np.array_equal(found.astype("float32"), expected.astype(ml_dtypes.bfloat16).astype("float32"))


def test_other_types_are_not_copied_so() -> None:
    _, could = copied(np.zeros((1, 32, 32), "float16"), transposed=False, along="rows", dtype="float16")
    assert not could
