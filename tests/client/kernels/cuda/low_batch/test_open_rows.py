"""Products with an open number of rows: kernels for the first 32 of them, in front of what serves more. No GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, tirx

from tunehub.kernels.cuda.default import default_schedule
from tunehub.kernels.cuda.gemm.hopper.rule import for_own_target, has_functions
from tunehub.kernels.cuda.low_batch import open_rows
from tunehub.kernels.cuda.low_batch.open_rows import few_rows, quantised_apart
from tunehub.kernels.cuda.low_batch.taken_apart import WEIGHTS_MADE
from tunehub.kernels.cuda.low_batch.tile import StagedTile, WgmmaTile
from tunehub.kernels.cuda.low_batch.weights import QUANTISED, Format
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.symbolic import packed
from tunehub.kernels.cuda.symbolic import tensor_cores as open_tensor_cores
from tunehub.tir.cuda.nvrtc import source_of
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import instance, probes

from .....unoptimised import UNOPTIMISED
from ....compiler.outputs import one_after_the_other
from ..scheduled import H200
from .on_cpu import run, weights
from .products import quantised_open_product

pytestmark = pytest.mark.slow

A100 = tvm.target.Target({**dict(H200.attrs.items()), "kind": "cuda", "arch": "sm_80", "model": "a100"})


def _linear(columns: int, depth: int, dtype: str = "float16", lead: tuple[int, ...] = ()) -> Any:
    rows = tirx.Var("n", "int64")
    x, w = te.placeholder((*lead, rows, depth), dtype, name="x"), te.placeholder((columns, depth), dtype, name="w")
    bias, k = te.placeholder((columns,), dtype, name="bias"), te.reduce_axis((0, depth), name="k")

    def product(*at: Any) -> Any:
        return te.sum(x[(*at[:-1], k)].astype("float32") * w[at[-1], k].astype("float32"), axis=k)

    y = te.compute((*lead, rows, columns), product, name="product")
    z = te.compute(y.shape, lambda *at: y(*at).astype(dtype) + bias[at[-1]], name="out")
    return main_module(te.create_prim_func([x, w, bias, z], index_dtype_override="int64"))


@pytest.mark.few(1)
@pytest.mark.parametrize("lead", [(), (1,)], ids=["matrix", "batch of one"])
def test_few_rows_have_kernels_of_their_own(lead: tuple[int, ...]) -> None:
    mod = _linear(64, 128, lead=lead)
    whole = open_function(mod["main"])
    assert whole is not None
    assert [branch.up_to for branch in few_rows(whole, A100)] == [8, 16, 32]
    found = open_tensor_cores.open_sizes(mod, A100)
    assert found is not None
    assert {(8,), (9,), (32,), (33,)} <= set(probes(found.mod["main"]))


def test_others_have_none() -> None:
    for mod in (_linear(64, 128, "float32"), _linear(64, 60)):
        whole = open_function(mod["main"])
        assert whole is not None and not few_rows(whole, H200)


@pytest.mark.few(1)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("rows", [1, 5, 8])
def test_no_row_beyond_the_end_is_read_or_written(rows: int, tmp_path: Path) -> None:
    """The source of the first kernel, on a CPU; the arrays end with the last row, and what follows is not touched."""
    whole = open_function(_linear(40, 72)["main"])
    assert whole is not None
    source = source_of(tvm.tirx.build(main_module(few_rows(whole, H200)[0].function), target=H200))
    (w,), wide = weights(16, 40, 72, seed=3)
    chance = np.random.default_rng(4)
    bias, guarded = (chance.standard_normal(shape).astype(np.float16) for shape in (40, (16, 72)))
    guarded[rows:] = np.nan
    out = np.full((16, 40), 7, np.float16)
    run(source, {"x": guarded, "w": w, "bias": bias, "out": out, "n": rows}, (1, 3), tmp_path)
    expected = (guarded[:rows].astype(np.float32) @ wide.T).astype(np.float16) + bias
    np.testing.assert_allclose(out[:rows], expected, rtol=2e-3, atol=2e-2)
    assert (out[rows:] == 7).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("form", QUANTISED, ids=["q4f16", "q8f16"])
@pytest.mark.parametrize("target", [H200, A100], ids=["sm_90", "sm_80"])
def test_quantised_weights_are_read_packed_by_up_to_64_rows_and_made_once_for_more(form: Format, target: Any) -> None:
    mod = quantised_open_product(form, 128, 256)
    found = open_tensor_cores.open_sizes(mod, target)
    assert found is not None
    assert {(8,), (9,), (32,), (33,), (64,), (65,)} <= set(probes(found.mod["main"]))
    check_function(found.mod["main"], mod["main"], target)
    assert tvm.tirx.build(found.mod, target=target) is not None
    assert WEIGHTS_MADE in found.mod["main"].attrs
    whole = open_function(mod["main"], shared=True)
    assert whole is not None
    assert [branch.up_to for branch in few_rows(whole, target)] == [8, 16, 32, 64]


@pytest.mark.few(1)
@pytest.mark.skipif(not has_functions(), reason="needs TVM 0.27 or newer")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_weights_are_made_on_warpgroups(dtype: str) -> None:
    mod = quantised_open_product(QUANTISED[0], 512, 512, dtype=dtype)
    found = packed.open_sizes(mod, H200)
    assert found is not None and WEIGHTS_MADE not in found.mod["main"].attrs
    assert {(8,), (9,)} <= set(probes(found.mod["main"]))
    check_function(found.mod["main"], mod["main"], H200)
    assert "global" not in {str(each.scope()) for each in found.mod["main"].body.block.alloc_buffers}
    assert packed.open_sizes(mod, A100) is None


@pytest.mark.few(2)
@pytest.mark.parametrize("form", QUANTISED, ids=["q4f16", "q8f16"])
@pytest.mark.parametrize(("columns", "depth"), [(24, 64), (64, 128)], ids=["one by one", "in vectors"])
def test_the_weights_that_are_made_for_many_rows_are_the_right_ones(form: Format, columns: int, depth: int) -> None:
    mod = quantised_open_product(form, columns, depth)
    whole = open_function(mod["main"], shared=True)
    assert whole is not None
    apart = quantised_apart(whole)
    assert apart is not None
    made = apart.together(default_schedule(apart.product, H200), H200)
    chance = np.random.default_rng(5)
    (words, scales), wide = weights(form.bits, columns, depth, seed=6)
    x, more = (chance.standard_normal(shape).astype(np.float16) for shape in ((1, 70, depth), (1, 70, columns)))
    buffers = [tvm.runtime.tensor(each) for each in (x, words, scales, more, np.zeros_like(more))]
    looped = one_after_the_other(main_module(instance(made, [70])))
    tvm.tirx.build(looped, target=tvm.target.Target(UNOPTIMISED))["main"](*buffers)
    expected = (x[0].astype(np.float32) @ wide.T).astype(np.float16) + more
    np.testing.assert_allclose(buffers[-1].numpy(), expected, rtol=2e-3, atol=2e-2)


OPEN_TILES = {
    "warpgroups": WgmmaTile(groups=1, cluster=1, stages=3, depth=128),
    "x in registers": StagedTile(tiles=2, warps=(2, 2), stages=1, depth=256, held=True),
}


needs_warpgroups = pytest.mark.skipif(not has_functions(), reason="needs TVM 0.27 or newer")


@pytest.mark.few(1)
@needs_warpgroups
@pytest.mark.no_cover
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("tile", OPEN_TILES)
def test_tiles_of_many_columns_read_and_write_no_row_beyond_the_end(
    tile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_rows, "chosen", lambda *_: OPEN_TILES[tile])
    rows, columns, depth = 11, 100, 512
    whole = open_function(quantised_open_product(QUANTISED[0], columns, depth)["main"], shared=True)
    assert whole is not None
    branch = few_rows(whole, H200)[1]
    assert branch.up_to == 16 and ("target" in (branch.function.attrs or {})) == (tile == "warpgroups")
    source = source_of(tvm.tirx.build(main_module(for_own_target(branch.function, H200)), target=H200))
    (words, scales), wide = weights(4, columns, depth, seed=7)
    chance = np.random.default_rng(8)
    x, more = (chance.standard_normal((1, 32, size)).astype(np.float16) for size in (depth, columns))
    x[:, rows:] = np.nan
    out = np.full((1, 32, columns), 7, np.float16)
    blocks = -(-columns // OPEN_TILES[tile].columns)
    grid = (blocks, 1) if tile == "warpgroups" else (1, blocks)
    run(source, {"x": x, "w": words, "s": scales, "r": more, "out": out, "n": rows}, grid, tmp_path)
    expected = (x[0, :rows].astype(np.float32) @ wide.T).astype(np.float16) + more[0, :rows]
    np.testing.assert_allclose(out[0, :rows], expected, rtol=2e-3, atol=2e-2)
    assert (out[:, rows:] == 7).all()


@needs_warpgroups
@pytest.mark.parametrize("is_batch", [False, True], ids=["rows", "a batch of single rows"])
@pytest.mark.parametrize("columns", [6144, 28672], ids=["clusters", "x in registers"])
def test_quantised_weights_have_the_tiles_of_known_numbers_of_rows(columns: int, is_batch: bool) -> None:
    whole = open_function(quantised_open_product(QUANTISED[0], columns, 4096, is_batch=is_batch)["main"], shared=True)
    assert whole is not None
    branches = few_rows(whole, H200)
    assert [branch.up_to for branch in branches] == [8, 16, 32, 64]
    assert "wgmma" in branches[-1].function.script()
