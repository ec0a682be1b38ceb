"""Products in single precision with operands rounded to TF32: by a GPU of NumPy, and where they serve. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
import tvm_ffi
from tvm import relax, te
from tvm.relax import op

import tunehub
from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.compiler.schedule.request import Request
from tunehub.graph.products import gpu_products_in_tf32
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm.hopper import tf32
from tunehub.kernels.cuda.gemm.hopper.kernel import kernel
from tunehub.kernels.cuda.gemm.hopper.product import product_of
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile, tiles
from tunehub.kernels.te.products import nt_matmul
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.cuda.check import fault
from tunehub.tir.nodes import constant_array, main_module, tensor_class
from tunehub.tir.precision import precisions

from ......sweeps import swept
from ...scheduled import H200, ROOT
from ..half_products import half_product
from .emulator import run

pytestmark = pytest.mark.slow

TILES = {
    "one warpgroup": WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=4),
    "columns": WarpgroupTile(groups=(1, 2), rows=64, columns=64, stages=3),
    "K divided": WarpgroupTile(groups=(2, 1), rows=64, columns=96, stages=6, cluster=4),
}
_Tensor = tensor_class()


def _linear(rows: int, columns: int, depth: int) -> Any:
    return half_product(1, rows, columns, depth, transposed=(False, True), dtype="float32")


def _rounded(values: Any) -> Any:
    """To 10 bits behind the first, to nearest."""
    return (values.view("uint32") + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view("float32")


@pytest.mark.no_cover
@pytest.mark.parametrize("tile", TILES)
def test_results_are_those_of_rounded_operands(tile: str) -> None:
    mod, rng = _linear(100, 72, 140), np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape).astype("float32") for shape in ((1, 100, 140), (1, 72, 140), (72,)))
    out = np.full((1, 100, 72), np.nan, "float32")
    run(kernel(product_of(mod, tf32.matmul_in(mod)), TILES[tile]), a, b, bias, out)
    exact = a.astype("float64") @ b.astype("float64").transpose(0, 2, 1) + bias
    rounded = _rounded(a).astype("float64") @ _rounded(b).astype("float64").transpose(0, 2, 1) + bias
    assert np.abs(out - rounded).max() <= 1e-6 * np.abs(exact).max()
    assert 1e-5 < np.abs(out - exact).max() / np.abs(exact).max() <= 1e-3


@pytest.mark.no_cover
@pytest.mark.parametrize("transposed", [False, True], ids=["as it multiplies", "as a linear layer has it"])
def test_constant_weights_of_a_network_are_rounded_once_and_not_by_the_kernel(transposed: bool) -> None:
    rng = np.random.default_rng(0)
    given, weight = (rng.standard_normal(shape).astype("float32") for shape in ((100, 140), (140, 72)))
    x, builder = relax.Var("x", _Tensor((100, 140), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            constant = relax.const(weight.T.copy() if transposed else weight)
            factor = builder.emit(op.permute_dims(constant)) if transposed else constant
            result = builder.emit_output(op.matmul(x, factor))
        builder.emit_func_output(result)
    with H200:
        found = gpu_products_in_tf32(builder.get())
    (call,) = [each.value for block in found["main"].body.blocks for each in block.bindings]
    turned = constant_array(call.args[1].fields[1])
    np.testing.assert_array_equal(turned, _rounded(weight.T.copy()))
    mod = main_module(found[call.args[0]])
    scheduled = kernel(product_of(mod, tf32.matmul_in(mod)), TILES["one warpgroup"])
    out = np.full((100, 72), np.nan, "float32")
    run(scheduled, given, turned, out)
    exact = _rounded(given).astype("float64") @ turned.T.astype("float64")
    assert np.abs(out - exact).max() <= 1e-6 * np.abs(exact).max()
    assert tvm_ffi.structural_equal(mod["main"].body, _nt_of(100, 72, 140).body, map_free_vars=True)  # as records ask


def _nt_of(rows: int, columns: int, depth: int) -> Any:
    shapes = [te.placeholder((extent, depth), "float32", name="given") for extent in (rows, columns)]
    return te.create_prim_func([*shapes, nt_matmul(*shapes)], index_dtype_override="int64")


def test_numbers_are_rounded_to_nearest_and_those_that_are_not_finite_stay() -> None:
    values = np.array([1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 3 * 2**-12, np.inf, -np.inf, np.nan], "float32")
    values = np.append(values, np.array([0x7FFFFFFF], "uint32").view("float32"))
    wanted = [1 + 2**-10, 1 + 2**-10, 1, -1 - 2**-10, np.inf, -np.inf, np.nan, np.nan]
    np.testing.assert_array_equal(tf32.rounded(values), np.array(wanted, "float32"))


@pytest.mark.parametrize("each", swept([5], [1]))
def test_nothing_is_wrong_with_any_kind_of_tile(each: int) -> None:
    mod = _linear(500, 256, 1152)
    matmul = tf32.matmul_in(mod)
    assert matmul is not None
    product = product_of(mod, matmul)
    kinds = {(tile.groups, tile.stages, tile.cluster): tile for tile in tiles(tf32.as_halves(matmul))}
    assert len(kinds) > 12
    assert {fault(kernel(product, tile), H200) for tile in list(kinds.values())[::each]} == {None}


@pytest.mark.parametrize("precision,template", [("float32", "split_k"), ("tf32", tf32.NAME)])
def test_a_product_is_in_tf32_where_that_is_asked_for_alone(precision: Any, template: str) -> None:
    mod = _linear(512, 512, 2048)
    found = Scheduling(mod["main"], H200, EmptyLookup(), precision=precision)
    assert found.served is not None and found.served.template == template
    assert precisions([found.function]) == (["tf32"] if precision == "tf32" else [])


def test_what_computes_in_single_precision_as_fast_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = _linear(512, 512, 2048)
    found = by_one(tf32, mod, H200)
    assert found is not None
    monkeypatch.setattr(Request, "without_record_s", found[1])
    served = Scheduling(mod["main"], H200, EmptyLookup(), precision="tf32").served
    assert served is not None and served.template != tf32.NAME


@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_operands_that_lie_along_rows_or_columns_are_left(transposed: tuple[bool, bool]) -> None:
    assert tf32.matmul_in(half_product(1, 64, 64, 64, transposed=transposed, dtype="float32")) is None
    assert tf32.matmul_in(_linear(64, 64, 62)) is None


def test_a_network_has_its_weights_and_images_turned_and_the_report_says_so() -> None:
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return relax.const(rng.standard_normal(shape).astype("float32"))

    image, builder = relax.Var("image", _Tensor((8, 64, 28, 28), "float32")), relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            first = builder.emit(op.nn.conv2d(image, weight(128, 64, 3, 3), padding=1))
            rows = builder.emit(op.reshape(op.mean(first, axis=[3]), (8 * 28, 128)))
            result = builder.emit_output(op.matmul(rows, weight(128, 1000)))
        builder.emit_func_output(result)
    with tunehub.context(H200, registry=[str(ROOT)], verify="never", precision="tf32") as hub:
        pass
    with H200:
        tunehub.pipeline(H200, hub=hub)(builder.get())
    served = [each.name for each in hub.report().workloads if each.template == tf32.NAME]
    assert sorted("conv2d" in name for name in served) == [False, True]
    assert any("2 functions in float32" in str(note) for note in hub.report().notes)


def test_functions_that_are_rounded_may_differ_by_as_much() -> None:
    function = _linear(64, 64, 64)["main"]
    assert precisions([function]) == []
    assert precisions([function, function.with_attr("tunehub.precision", "tf32")]) == ["tf32"]


def test_target_without_such_tensor_cores_has_none() -> None:
    assert tf32.match(_linear(512, 512, 512), tvm.target.Target({"kind": "cuda", "arch": "sm_80"})) is None
