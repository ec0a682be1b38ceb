"""Products in half precision with an open number of rows: pieces on tensor cores, and TVM's own schedule. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from benchmarks.shared.threads_as_loops import threads_as_loops
from tvm import te, tirx, topi

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.kernels.cuda.gemm.matmul import Axis, Matmul
from tunehub.kernels.cuda.gemm.open_rows import OpenMatmul, open_matmul
from tunehub.kernels.cuda.gemm.tensor_core import rule as tensor_core_rule
from tunehub.kernels.cuda.gemm.tensor_core import sketch as tensor_core
from tunehub.kernels.cuda.gemm.tensor_core.rule import ranked
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile
from tunehub.kernels.cuda.low_batch.open_rows import few_rows
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.pieces import NotPiecesError, _Masking
from tunehub.kernels.cuda.symbolic import tensor_cores as open_tensor_cores
from tunehub.kernels.cuda.symbolic.tensor_cores import _ROWS, open_sizes
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.branches import SizeBranch
from tunehub.tir.cuda import nvrtc
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import first_probes, probes

from ..scheduled import H200
from .open_functions import open_linear

pytestmark = pytest.mark.slow
needs_warpgroups = pytest.mark.skipif(not warpgroups.has_functions(), reason="needs TVM 0.27 or newer")
DEVICE = default_device()


@pytest.fixture(autouse=True)
def without_the_kernels_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own (low_batch/test_open_rows.py)."""
    monkeypatch.setattr(open_tensor_cores, "few_rows", lambda *_: [])


@pytest.mark.no_cover  # the sketch is covered where it replays
@pytest.mark.parametrize("lead", [(), (1,)], ids=["matrix", "batch of one"])
def test_all_rows_are_computed(lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, without the intrinsics: threads become loops, which take turns at what they share."""

    def plain(matmul: Matmul, count: int, device: GpuDevice) -> list[TensorTile]:
        return [each for each in ranked(matmul, 400, device) if not each.pipelined][:count]

    monkeypatch.setattr(open_tensor_cores.warpgroups, "serves", lambda _: False)
    monkeypatch.setattr(tensor_core, "_tensorize", lambda *_: None)
    monkeypatch.setattr(open_tensor_cores, "ranked", plain)
    monkeypatch.setattr(open_tensor_cores, "_ROWS", _ROWS._replace(tried=(16, 64)))
    monkeypatch.setattr(open_tensor_cores, "check_function", lambda *_: None)  # follows fragments
    mod = open_linear(40, 72, lead=lead)
    found = open_sizes(mod, H200)
    assert found is not None
    looped = threads_as_loops(found.mod, scopes=r"local|shared.*|wmma.*", all_loops=True)
    run = tvm.tirx.build(looped, target="llvm")["main"]
    rng = np.random.default_rng(0)
    w, bias = (rng.standard_normal(shape).astype("float16") for shape in ((40, 72), (40,)))
    for rows in (1, 15, 17, 33, 64, 130):
        x = rng.standard_normal((*lead, rows, 72)).astype("float16")
        out = tvm.runtime.tensor(np.full((*lead, rows, 40), np.nan, "float16"))
        run(*map(tvm.runtime.tensor, (x, w, bias)), out)
        expected = (x.astype("float32") @ w.T.astype("float32")).astype("float16") + bias
        np.testing.assert_allclose(out.numpy(), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.no_cover
def test_all_images_are_computed_whose_pixels_no_tile_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, a convolution of 6 x 6 images, 36 pixels, by blocks of 16 rows and more."""

    def plain(matmul: Matmul, count: int, device: GpuDevice) -> list[TensorTile]:
        return [each for each in ranked(matmul, 400, device) if not each.pipelined][:count]

    monkeypatch.setattr(tensor_core, "_tensorize", lambda *_: None)
    monkeypatch.setattr(open_tensor_cores, "ranked", plain)
    monkeypatch.setattr(open_tensor_cores, "check_function", lambda *_: None)
    batch, shape, kernel = tirx.Var("n", "int64"), (16, 6, 6), (24, 16, 3, 3)
    x, w = te.placeholder((batch, *shape), "float16", name="x"), te.placeholder(kernel, "float16", name="w")
    y = topi.nn.conv2d(x, w, 1, 1, 1, out_dtype="float32")
    z = te.compute(y.shape, lambda *at: y(*at).astype("float16"), name="out")
    found = open_sizes(main_module(te.create_prim_func([x, w, z], index_dtype_override="int64")), H200)
    assert found is not None
    looped = threads_as_loops(found.mod, scopes=r"local|shared.*|wmma.*", all_loops=True)
    run = tvm.tirx.build(looped, target="llvm")["main"]
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(kernel).astype("float16")
    for images in (1, 2, 3, 7, 17):
        data = rng.standard_normal((images, *shape)).astype("float16")
        out = tvm.runtime.tensor(np.full((images, 24, 6, 6), np.nan, "float16"))
        run(*map(tvm.runtime.tensor, (data, weight)), out)
        padded = np.pad(data.astype("float32"), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        expected = np.einsum("nchwij,ocij->nohw", windows, weight.astype("float32"), optimize=True)
        np.testing.assert_allclose(out.numpy(), expected, rtol=2e-3, atol=2e-2)


def test_a_function_without_a_record_has_pieces_on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_tensor_cores, "_ROWS", _ROWS._replace(tried=(16, 64)))
    scheduled, function = schedule_function(open_linear(512, 256)["main"], H200, EmptyLookup())
    assert scheduled.served is not None and function is not None
    assert (scheduled.served.rung, scheduled.served.template) == ("template", tensor_core_rule.NAME)
    assert "wmma" in function.script()
    assert probes(function)


def _llm(rows: int) -> Matmul:
    """6144 x 4096, with weights as they lie."""
    return Matmul(
        name="product", batch=(), rows=(Axis(0, rows),), columns=(Axis(1, 6144),), k=(Axis(2, 4096),),
        rows_first=False, k_last=True, columns_first=False, runs=(1, 1), window=1,
    )  # fmt: skip


def test_each_range_of_sizes_has_the_tile_that_should_take_least() -> None:
    tiles = [*ranked(_llm(16), 1, DEVICE), *ranked(_llm(1024), 1, DEVICE)]
    chosen = open_tensor_cores._chosen(OpenMatmul(_llm(2)), tiles, DEVICE)
    assert chosen[0][0] == tiles[0]
    assert chosen[-1] == (None, None)  # dlight's tile for large products along K is the better one there


@needs_warpgroups
def test_many_rows_of_a_large_product_have_kernels_with_tma_loads_as_a_known_number_of_rows_has() -> None:
    whole = open_function(open_linear(6144, 4096)["main"])
    assert whole is not None
    matmul = open_matmul(whole, warpgroups.matmul_in)
    assert matmul is not None
    tiles = list(open_tensor_cores._likely(whole, matmul, H200))
    chosen = open_tensor_cores._within_reach(whole, matmul, tiles, DEVICE)
    for rows in (32, 128, 256, 1024, 4096):
        tile = next(each for each, up_to in chosen if up_to is None or rows <= up_to)
        assert isinstance(tile, BulkTile) == isinstance(warpgroups.best(matmul.at(rows), DEVICE)[0][1], BulkTile)
    (*_, (_, reach), (last, beyond)) = chosen
    assert reach == 349525 and beyond is None and not isinstance(last, BulkTile)


@pytest.mark.few(1)
@needs_warpgroups
@pytest.mark.parametrize("shape", [(6144, 4096), (28672, 4096), (4096, 14336), (896, 4864)], ids=str)
def test_no_kernel_is_for_sizes_alone_that_take_too_long_to_run(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel is run at the first size that leads to it before it serves: beyond places of 32 bits another one has
    to be one that fewer rows have, too."""
    monkeypatch.setattr(open_tensor_cores, "few_rows", few_rows)
    found = open_sizes(open_linear(*shape), H200)
    assert found is not None
    assert max(first_probes(found.mod["main"])) < (4096,)


def test_few_rows_keep_their_kernels_unless_warpgroups_serve_them() -> None:
    few = [SizeBranch(up_to=rows, function=None) for rows in (8, 16, 32)]  # type: ignore[arg-type]
    own = WarpgroupTile(groups=(1, 1), rows=64, columns=64, stages=4)
    kept = open_tensor_cores._kept
    assert kept(few, [(None, None)], quantised=False) == few
    assert kept(few, [(own, None)], quantised=False) == few[:1]
    assert kept(few, [(own, 16), (None, None)], quantised=False) == few[:1]
    assert kept(few, [(None, 16), (own, None)], quantised=False) == few[:2]
    assert kept(few, [(own, None)], quantised=True) == few


@needs_warpgroups
def test_a_function_of_all_sizes_has_a_range_for_each_kind_of_kernel() -> None:
    _, function = schedule_function(open_linear(4096, 4096)["main"], H200, EmptyLookup())
    assert function is not None
    source = nvrtc.source_of(tvm.tirx.build(main_module(function), target=H200))
    assert "cp.async.bulk.tensor" in source and "cp.async.cg.shared" in source


def test_a_tile_that_makes_no_piece_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    made = open_tensor_cores._tiled
    refused: list[TensorTile] = []

    def first_refused(whole: Any, tile: TensorTile, target: Any) -> Any:
        if not refused or tile in refused:
            refused.append(tile)
            raise NotPiecesError("a piece of another kind")
        return made(whole, tile, target)

    monkeypatch.setattr(open_tensor_cores, "_tiled", first_refused)
    monkeypatch.setattr(open_tensor_cores, "_ROWS", _ROWS._replace(tried=(16, 1024)))
    assert open_sizes(open_linear(512, 256), H200) is not None
    assert len(refused) == 1


def test_other_types_are_none_of_its_business() -> None:
    assert open_sizes(open_linear(40, 72, "float32"), H200) is None


def test_calls_on_what_a_piece_takes_are_refused() -> None:
    """Fragments that are read from memory of other pieces, too, could go beyond the end."""
    whole, own = (tirx.decl_buffer((16, 16), "float16", name) for name in ("whole", "own"))
    masking = _Masking({hash(whole): 0}, frozenset(map(hash, (whole, whole.data))), tirx.const(3))
    call = tirx.Evaluate(tirx.call_extern("int32", "load", own.data))
    assert masking.statement(call).same_as(call)
    with pytest.raises(NotPiecesError, match="Evaluate"):
        masking.statement(tirx.Evaluate(tirx.call_extern("int32", "load", whole.data)))
