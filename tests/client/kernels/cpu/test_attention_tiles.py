"""Attention by AMX: near that in float64 with emulated instructions and without any, and real code of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import te, tirx  # noqa: E402

import tunehub  # noqa: E402
from tunehub.graph.attention.cpu.rule import Lengths, chosen  # noqa: E402
from tunehub.graph.layout.narrowing import Narrowing  # noqa: E402
from tunehub.kernels.cpu import Machine  # noqa: E402
from tunehub.kernels.cpu.attention import lacks, schedule_attention  # noqa: E402
from tunehub.kernels.cpu.base import Rates  # noqa: E402
from tunehub.kernels.te.attention import Scores, Step, attention  # noqa: E402
from tunehub.kernels.te.grouped import TILES  # noqa: E402
from tunehub.tir.guard import check_function  # noqa: E402

from ....cpu_features import AMX, cpu, needs, needs_tvm  # noqa: E402

SAPPHIRE_RAPIDS = cpu(AMX)
pytestmark = [pytest.mark.slow, needs_tvm]
INTEL = Narrowing(
    machine=Machine(vector=16, registers=32, cores=2, rates=Rates(pairs=0.6)), winograd=False, tiles=True,
)  # fmt: skip
BETWEEN = [Step("relax.multiply", 0.125, None, False), Step("relax.add", None, 0, False)]
Array = Any


def tiles(queries: int | None, keys: int | None, depth: int, outputs: int) -> Scores | None:
    return chosen(Lengths(queries=queries, keys=keys, depth=depth, outputs=outputs), 16, INTEL)


def module(queries: Any, keys: Any, depth: int, outputs: int) -> Any:
    """Attention of three heads with a mask, each tensor ``[length, heads, …]``."""
    shapes = ((queries, 3, depth), (keys, 3, depth), (keys, 3, outputs), (1, 1, keys))
    shapes = [[tirx.const(each, "int64") if isinstance(each, int) else each for each in shape] for shape in shapes]
    q, k, v, mask = (te.placeholder(shape, "float32", name=f"x{at}") for at, shape in enumerate(shapes))
    known = (each if isinstance(each, int) else None for each in (queries, keys))
    scores = tiles(*known, depth, outputs)
    assert scores is not None
    assert scores.groups == TILES
    result = attention(q, k, v, [mask], steps=BETWEEN, axes=((1, 0, 2), (1, 2, 0), (1, 0, 2)), scores=scores)
    function = te.create_prim_func([q, k, v, mask, result], index_dtype_override="int64")
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def scheduled(*sizes: Any) -> Any:
    mod = module(*sizes)
    found = schedule_attention(mod, INTEL.machine).mod
    if all(isinstance(each, int) for each in sizes):
        check_function(found["main"], mod["main"], SAPPHIRE_RAPIDS)
    return found


def check_near(mod: Any, target: Any, *sizes: int) -> None:
    check_at(tvm.compile(mod, target=target)["main"], *sizes)


def check_at(run: Any, queries: int, keys: int, depth: int, outputs: int) -> None:
    rng = np.random.default_rng(0)
    shapes = ((queries, 3, depth), (keys, 3, depth), (keys, 3, outputs))
    q, k, v = (rng.standard_normal(shape).astype("float32") for shape in shapes)
    mask = np.where(rng.random((1, 1, keys)) < 0.2, -3.4e38, 0).astype("float32")
    mask[..., -1] = 0
    found = tvm.runtime.tensor(np.full((3, queries, outputs), np.nan, "float32"))
    run(*map(tvm.runtime.tensor, (q, k, v, mask)), found)
    scores = np.einsum("ihd,jhd->hij", q.astype("float64"), k) / 8 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hij,jhd->hid", weights / weights.sum(-1, keepdims=True), v)
    assert 1e-5 < np.abs(found.numpy() - expected).max() / np.abs(expected).max() < 2e-2


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("sizes", [(197, 197, 64, 64), (40, 33, 32, 48), (16, 96, 96, 16)])
def test_attention_of_any_lengths(sizes: tuple[int, int, int, int]) -> None:
    check_near(scheduled(*sizes), tunehub.host_target(), *sizes)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("queries", [1, None])
def test_attention_of_open_lengths(queries: int | None) -> None:
    rows, keys = queries or tirx.Var("s", "int64"), tirx.Var("t", "int64")
    run = tvm.compile(scheduled(rows, keys, 64, 48), target=tunehub.host_target())["main"]
    for size in ((1, 9), (1, 64), (1, 333)) if queries else ((1, 1), (3, 40), (16, 16), (17, 33), (61, 130)):
        check_at(run, *size, 64, 48)


@needs(AMX)
def test_the_instructions_of_this_cpu_compute_the_same() -> None:
    check_near(scheduled(40, 33, 32, 48), SAPPHIRE_RAPIDS, 40, 33, 32, 48)


def test_a_library_made_for_amx_computes_attention_without_it(refused_target: Any) -> None:
    check_near(scheduled(40, 33, 32, 48), refused_target, 40, 33, 32, 48)


def test_the_instructions_are_in_the_code() -> None:
    code = tvm.compile(scheduled(40, 64, 32, 32), target=SAPPHIRE_RAPIDS).mod.inspect_source("asm")
    assert "tdpbf16ps" in code
    assert "vdpbf16ps" not in code
    plain = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+amx-tile", "+amx-bf16"]})
    code = tvm.compile(scheduled(40, 64, 32, 32), target=plain).mod.inspect_source("asm")
    assert "truncsfbf2" not in code  # a function that nobody links


def test_targets_without_it_never_see_the_instructions() -> None:
    mod = module(40, 64, 32, 32)
    assert "amx" in str(lacks(mod, tvm.target.Target({"kind": "llvm", "mcpu": "cooperlake"})))
    assert lacks(mod, SAPPHIRE_RAPIDS) is None


def test_rows_are_cut_so_that_few_are_filled_up() -> None:
    assert tiles(197, 197, 64, 64) == Scores(22, 32, TILES)
    assert tiles(128, 128, 64, 64) == Scores(32, 32, TILES)
    assert tiles(197, 197, 48, 64) is None  # 32 numbers are added up in a step
    assert tiles(1, 128, 64, 64) is None  # fifteen of sixteen rows would be computed for nothing
    assert tiles(512, 512, 36, 64) == Scores(6, 32)
    assert tiles(None, None, 64, 64) == Scores(16, 32, TILES)
    assert tiles(1, None, 64, 64) == Scores(1, 32, TILES)
