"""The kernel of attention, its threads in lockstep on a CPU, against numpy in float64; and what TVM makes of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.backend.cuda.ptx", reason="needs TVM 0.27")

import tvm
from tvm import tirx

from tunehub.graph.attention.cuda.joining import join_attention
from tunehub.kernels.cuda.attention.kernel import AttentionTile
from tunehub.kernels.cuda.attention.kernels import kernel_of
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda.lowering import lowered
from tunehub.tir.guard import GuardError, check_function
from tunehub.tir.nodes import blocks_in, buffer_shapes, main_module, statements_in
from tunehub.tir.versions import LOADS, VECTORIZED

from .....sweeps import swept
from .....unoptimised import UNOPTIMISED
from .cases import H200, Case, expected, function_of
from .graphs import GRAPHS, module
from .lockstep import run as run_in_lockstep

pytestmark = pytest.mark.slow
MULTIPROCESSORS = default_device().multiprocessors


def check(case: Case, multiprocessors: int = MULTIPROCESSORS) -> None:
    rng, own = np.random.default_rng(0), case.heads // case.group
    q = rng.standard_normal((case.batch, case.heads, case.queries, case.depth)).astype(case.dtype) * 2
    k = rng.standard_normal((case.batch, own, case.keys, case.depth)).astype(case.dtype)
    v = rng.standard_normal((case.batch, own, case.keys, case.outputs)).astype(case.dtype)
    mask = None
    if case.mask:
        mask = rng.standard_normal(case.mask).astype(case.dtype)
        mask[..., 1:] = np.where(rng.random(mask[..., 1:].shape) < 0.2, -np.inf, mask[..., 1:])
    given = [x.transpose(0, 2, 1, 3).copy() if case.behind else x for x in (q, k, v)]
    found = attention_of(function_of(case))
    assert found is not None
    shape = (case.batch, case.heads, case.queries, case.outputs)
    out = np.full([shape[axis] for axis in ((0, 2, 1, 3) if case.behind else range(4))], np.nan, case.dtype)
    run_in_lockstep(kernel_of(found, case.tile, multiprocessors), *given, *([] if mask is None else [mask]), out)
    want, got = expected(case, q, k, v, mask), out.transpose(0, 2, 1, 3) if case.behind else out
    assert np.abs(got.astype("float64") - want).max() <= _WITHIN[case.dtype] * np.abs(want).max(), case


_WITHIN = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6}  # of the largest result
FIRST = [
    Case("float16", 1, 2, 32, 64, 32, 32, AttentionTile(warps=(2, 1), rows=1, keys=32)),
    Case("float16", 1, 1, 33, 40, 32, 48, AttentionTile(warps=(1, 4), rows=1, keys=16)),
    Case("float16", 1, 2, 50, 50, 64, 32, AttentionTile(warps=(1, 2), rows=2, keys=16), mask=(50, 50)),
    Case("float16", 1, 4, 20, 70, 32, 32, AttentionTile(warps=(2, 2), rows=1, keys=16), 2, True, (1, 4, 1, 70)),
    Case("float16", 2, 1, 40, 40, 16, 16, AttentionTile(warps=(1, 1), rows=1, keys=16, stages=1), behind=False),
    Case("float16", 1, 1, 90, 90, 32, 32, AttentionTile(warps=(2, 1), rows=1, keys=16), causal=True),
    Case("float16", 1, 1, 20, 9, 16, 16, AttentionTile(warps=(1, 1), rows=1, keys=32)),
    Case("bfloat16", 1, 2, 33, 40, 32, 48, AttentionTile(warps=(2, 2), rows=1, keys=16), 2, True, (1, 1, 1, 40)),
    Case("float32", 1, 1, 18, 20, 32, 32, AttentionTile(warps=(1, 2), rows=1, keys=16)),
    Case("float32", 1, 2, 17, 40, 16, 48, AttentionTile(warps=(1, 1), rows=1, keys=16), 2, True, (1, 1, 1, 40)),
]


def _wide(rows: int, along: int, keys: int, **more: Any) -> AttentionTile:
    return AttentionTile(warps=(4 * rows, along), rows=1, keys=keys, warpgroups=True, **more)


WARPGROUPS = [
    Case("float16", 1, 1, 64, 64, 64, 64, _wide(1, 1, 64)),
    Case("float16", 1, 2, 130, 200, 64, 64, _wide(1, 1, 64)),
    Case("bfloat16", 1, 2, 200, 200, 64, 128, _wide(2, 1, 32), causal=True, behind=False),
    Case("float16", 1, 4, 70, 300, 128, 64, _wide(1, 2, 64), 2, True, (1, 4, 1, 300)),
    Case("float16", 2, 2, 65, 40, 128, 128, _wide(1, 1, 128), mask=(65, 40)),
    Case("float16", 1, 1, 130, 200, 64, 64, _wide(2, 1, 32)),
    Case("float16", 1, 2, 130, 200, 64, 64, _wide(2, 1, 32, copying=True)),
    Case("float16", 1, 2, 70, 200, 128, 64, _wide(2, 1, 48, copying=True), 2, True, (1, 2, 1, 200), behind=False),
    Case("bfloat16", 1, 1, 129, 129, 64, 128, _wide(3, 1, 32, copying=True), causal=True),
]
BULK = {"copying": True, "bulk": True}
BY_THE_COPY_ENGINE = [
    Case("float16", 1, 4, 130, 200, 128, 128, _wide(2, 1, 48, **BULK), 2),
    Case("float16", 1, 2, 70, 200, 128, 64, _wide(2, 1, 48, **BULK), 2, True, (1, 2, 1, 200), behind=False),
    Case("bfloat16", 2, 2, 130, 100, 64, 128, _wide(3, 1, 32, stages=3, **BULK), behind=False),
    Case("float16", 1, 1, 129, 129, 128, 128, _wide(2, 1, 144, **BULK), causal=True),
    Case("float16", 1, 2, 200, 200, 64, 64, _wide(3, 1, 128, **BULK)),
    Case("float16", 1, 4, 200, 300, 64, 64, _wide(2, 1, 48, **BULK), 2, causal=True),
]


CLUSTERS = [
    Case("float16", 1, 2, 1, 200, 32, 32, AttentionTile(warps=(1, 2), rows=1, keys=16, cluster=4)),
    Case("float32", 1, 2, 3, 90, 32, 48, AttentionTile(warps=(1, 1), rows=1, keys=16, cluster=2), 2, True),
    Case("float16", 1, 1, 20, 40, 64, 32, AttentionTile(warps=(2, 2), rows=1, keys=16, cluster=8), mask=(20, 40)),
]


@pytest.mark.parametrize("case", CLUSTERS)
@pytest.mark.few(1)
def test_blocks_of_a_cluster_share_the_keys(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("at_once", [MULTIPROCESSORS, 3], ids=["a part each", "several parts"])
@pytest.mark.parametrize("case", BY_THE_COPY_ENGINE)
@pytest.mark.few(2)
def test_the_copy_engine_brings_keys(case: Case, at_once: int) -> None:
    check(case, at_once)


def test_heads_that_the_copy_engine_cannot_take_are_refused() -> None:
    case = Case("float16", 1, 2, 64, 64, 64, 64, _wide(2, 1, 32, **BULK), behind=False)
    found = attention_of(function_of(case))
    assert found is not None
    moved = replace(found, key=lambda b, h, row, column: found.key(b, h, row, tirx.max(column, 1)))
    with pytest.raises(GuardError, match="the copy engine"):
        kernel_of(moved, case.tile, MULTIPROCESSORS)


@pytest.mark.parametrize("case", WARPGROUPS)
@pytest.mark.few(2)
def test_warpgroups_compute_attention(case: Case) -> None:
    check(case)


def _random_cases(count: int) -> list[Case]:
    draw, found = random.Random(7), []
    for _ in range(count):
        group = draw.choice((1, 1, 2))
        heads, queries, keys = group * draw.choice((1, 2)), draw.randint(1, 70), draw.randint(1, 100)
        causal = draw.random() < 0.4 and keys >= queries
        masks = [(), (), (1, 1, 1, keys), (1, heads, queries, keys), (queries, 1)]
        tile = AttentionTile(
            warps=draw.choice(((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1))),
            rows=draw.choice((1, 1, 2)),
            keys=draw.choice((16, 32, 48)),
            stages=draw.choice((1, 2)),
        )
        found.append(
            Case(
                draw.choice(("float16", "bfloat16", "float32")),
                draw.choice((1, 2)),
                heads,
                queries,
                keys,
                draw.choice((16, 32, 64, 80)),
                draw.choice((16, 32, 64)),
                tile,
                group,
                causal,
                draw.choice(masks),
                draw.random() < 0.5,
            )
        )
    return found


@pytest.mark.parametrize("case", swept(FIRST, _random_cases(60)))
@pytest.mark.few(3)
def test_all_threads_together_compute_attention(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("name", swept(["bert", "exported"], GRAPHS))
@pytest.mark.few(1)
def test_the_kernel_of_an_exported_graph_computes_what_its_function_says(name: str) -> None:
    joined = join_attention(module(GRAPHS[name], "float32"))
    (function,) = (each for each in joined.functions.values() if isinstance(each, tirx.PrimFunc))
    found = attention_of(function)
    assert found is not None
    rng = np.random.default_rng(0)
    *given, (shape, dtype) = buffer_shapes(function)
    arrays = [
        (rng.random(size) < 0.7) if kind == "bool" else rng.uniform(-2, 2, size).astype(kind) for size, kind in given
    ]
    want = tvm.runtime.tensor(np.zeros(shape, dtype))
    plain = tvm.compile(main_module(function), tvm.target.Target(UNOPTIMISED))
    plain["main"](*map(tvm.runtime.tensor, arrays), want)
    out = np.full(shape, np.nan, dtype)
    run_in_lockstep(kernel_of(found, AttentionTile(warps=(1, 1), rows=1, keys=16), MULTIPROCESSORS), *arrays, out)
    np.testing.assert_allclose(out, want.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rows", [1, 2])
def test_registers_of_a_thread_are_all_there(dtype: str, rows: int) -> None:
    """TVM leaves out elements that it does not see in use, and functions of CUDA C++ use neighbours of what they are
    given."""
    tile = AttentionTile(warps=(1, 1), rows=rows, keys=32)
    case = Case(dtype, 1, 1, 64, 64, 32, 32, tile)
    function = function_of(case)
    found = attention_of(function)
    assert found is not None
    kernel, target = kernel_of(found, tile, MULTIPROCESSORS), tvm.target.Target(H200)
    check_function(kernel, function, target)
    wanted = {
        str(buffer.name): math.prod(int(extent) for extent in buffer.shape)
        for block in blocks_in(kernel.body)
        for buffer in block.alloc_buffers
        if str(buffer.scope()) == "local"
    }
    have = {
        str(node.buffer.name): math.prod(int(extent) for extent in node.buffer.shape)
        for node in statements_in(lowered(kernel, target).body)
        if type(node).__name__ == "AllocBuffer"
    }
    assert len(wanted) > 5
    assert all(have.get(name, size) == size for name, size in wanted.items())


@pytest.mark.parametrize("warps", [(4, 1), (1, 4)])
def test_vectors_copy_and_compute_nothing(warps: tuple[int, int]) -> None:
    """TVM writes a selection in a vector as code that no compiler takes."""
    (function,) = (
        each
        for each in join_attention(module(GRAPHS["bert"], "float16")).functions.values()
        if isinstance(each, tirx.PrimFunc)
    )
    found = attention_of(function)
    assert found is not None
    kernel = kernel_of(found, AttentionTile(warps=warps, rows=1, keys=16), MULTIPROCESSORS)
    loops = [node for node in statements_in(kernel.body) if type(node).__name__ == "For"]
    vectors = [loop for loop in loops if int(loop.kind) == VECTORIZED]
    assert vectors
    assert {type(loop.body.value).__name__ for loop in vectors} <= set(LOADS)


def test_tiles_that_take_too_much_shared_memory_are_refused() -> None:
    tile = AttentionTile(warps=(8, 1), rows=2, keys=64)
    function = function_of(Case("float32", 1, 1, 512, 512, 128, 128, tile))
    found = attention_of(function)
    assert found is not None
    with pytest.raises(GuardError, match="shared memory"):
        check_function(kernel_of(found, tile, MULTIPROCESSORS), function, tvm.target.Target(H200))
