"""Products of an open number of rows by AMX: at every number what numpy computes, the instructions emulated in C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
ml_dtypes = pytest.importorskip("ml_dtypes")
from tvm import te, tirx, topi  # noqa: E402

import tunehub  # noqa: E402
from tunehub.compiler.schedule.ladder import Scheduling  # noqa: E402
from tunehub.kernels.cpu import amx  # noqa: E402
from tunehub.kernels.symbolic import matrix_rows  # noqa: E402
from tunehub.kernels.symbolic.schedule import by_tiles  # noqa: E402
from tunehub.kernels.te import grouped  # noqa: E402
from tunehub.tir.nodes import constant_array  # noqa: E402

from ...compiler.conftest import FakeHub  # noqa: E402

SAPPHIRE_RAPIDS = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2})
_DOUBT = amx.doubt(SAPPHIRE_RAPIDS, "bfloat16")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(_DOUBT is not None, reason=str(_DOUBT))]
DEPTH, OUTPUTS = 128, 120
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 40, 47, 48, 63, 64, 65, 131)


def product(groups: Any, kind: str, lead: tuple[Any, ...]) -> tuple[Any, Any]:
    """A product with a bias, and its packed weights."""
    rng = np.random.default_rng(0)
    if kind == "uint8":
        weights = rng.integers(-128, 128, (DEPTH, OUTPUTS)).astype("int8")
    else:
        weights = rng.standard_normal((DEPTH, OUTPUTS)).astype(ml_dtypes.bfloat16).astype("float32")
    packed = np.asarray(constant_array(grouped.pack_dense(weights, groups, out_block=16)))
    sums = "int32" if kind == "uint8" else "float32"
    x = te.placeholder((*lead, tirx.const(DEPTH, "int64")), kind, name="x")
    w = te.placeholder([tirx.const(each, "int64") for each in packed.shape], str(packed.dtype), name="w")
    b = te.placeholder((tirx.const(OUTPUTS, "int64"),), sums, name="b")
    made = topi.add(grouped.dense_grouped(x, w, outputs=OUTPUTS), b)
    function = te.create_prim_func([x, w, b, made], index_dtype_override="int64")
    return function.with_attr("global_symbol", "main"), (weights, packed)


def compiled(function: Any, template: str = "dense") -> Any:
    def inner(piece: Any) -> tuple[Any, Any]:
        found = Scheduling(piece, SAPPHIRE_RAPIDS, FakeHub().lookup)
        return found.function, found.served

    scheduled = by_tiles(function, SAPPHIRE_RAPIDS, inner)
    assert scheduled is not None
    assert scheduled.template == template
    return tvm.compile(scheduled.mod, target=tvm.target.Target(tunehub.host_target()))["main"]


def check(run: Any, x: Any, weights: tuple[Any, Any]) -> None:
    plain, packed = weights
    bias = np.arange(OUTPUTS).astype("int32" if x.dtype == np.uint8 else "float32")
    result = tvm.runtime.tensor(np.full((*x.shape[:-1], OUTPUTS), -7, bias.dtype))
    run(*map(tvm.runtime.tensor, (x, packed, bias)), result)
    expected = x.astype("float64") @ plain.astype("float64") + bias
    assert np.abs(result.numpy() - expected).max() <= 1e-5 * np.abs(expected).max(), x.shape


@pytest.mark.usefixtures("emulated")
def test_products_of_bfloat16_are_right_for_any_number_of_rows() -> None:
    function, weights = product(grouped.PAIRS, "bfloat16", (tirx.Var("n", "int64"),))
    run, rng = compiled(function), np.random.default_rng(1)
    for rows in ROWS:
        check(run, rng.standard_normal((rows, DEPTH)).astype(ml_dtypes.bfloat16), weights)


@pytest.mark.usefixtures("emulated")
def test_rows_of_a_batch_of_sequences_are_rows_together() -> None:
    lead = (tirx.Var("b", "int64"), tirx.Var("s", "int64"))
    function, weights = product(grouped.PAIRS, "bfloat16", lead)
    run, rng = compiled(function), np.random.default_rng(1)
    for size in ((1, 1), (3, 5), (4, 4), (2, 37), (1, 64)):
        check(run, rng.standard_normal((*size, DEPTH)).astype(ml_dtypes.bfloat16), weights)


@pytest.mark.usefixtures("emulated")
def test_products_of_bytes_are_right_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few have no instruction here: in place of them is what is for more."""

    def without_few(function: Any, axes: Any, row: int, least: int, ways: tuple[Any, Any]) -> Any:
        return ways[1] if least == 4 else joined(function, axes, row, least, ways)

    joined = matrix_rows._from
    monkeypatch.setattr(matrix_rows, "_from", without_few)
    function, weights = product(grouped.WORDS[4], "uint8", (tirx.const(1, "int64"), tirx.Var("n", "int64")))
    run, rng = compiled(function), np.random.default_rng(1)
    for rows in (each for each in ROWS if each >= 4):
        check(run, rng.integers(0, 256, (1, rows, DEPTH)).astype("uint8"), weights)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", ["bfloat16", "uint8"])
def test_images_of_an_open_batch_are_multiplied_one_after_the_other(kind: str) -> None:
    groups = grouped.TILES_INT8 if kind == "uint8" else grouped.TILES
    block, rng = groups.depth, np.random.default_rng(2)
    weights = rng.integers(-8, 8, (block, block, 3, 3)).astype("int8" if kind == "uint8" else "float32")
    packed = np.asarray(constant_array(grouped.pack_conv2d(weights, groups, in_block=block, out_block=block)))
    shape = [tirx.Var("n", "int64"), *(tirx.const(each, "int64") for each in (1, 7, 9, block))]
    x = te.placeholder(shape, kind, name="x")
    w = te.placeholder([tirx.const(each, "int64") for each in packed.shape], str(packed.dtype), name="w")
    made = grouped.conv2d_grouped(x, w, padding=(1, 1, 1, 1))
    function = te.create_prim_func([x, w, made], index_dtype_override="int64").with_attr("global_symbol", "main")
    run = compiled(function, "matrix_tiles")
    for batch in (1, 3):
        image = rng.integers(0, 9, (batch, 1, 7, 9, block)).astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
        result = tvm.runtime.tensor(np.full((batch, 1, 7, 9, block), -7, "int32" if kind == "uint8" else "float32"))
        run(*map(tvm.runtime.tensor, (image, packed)), result)
        padded = np.pad(image[:, 0].astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        expected = np.einsum("nhwcyx,ocyx->nhwo", windows, weights.astype("float64"))
        assert np.array_equal(result.numpy()[:, 0], expected)
