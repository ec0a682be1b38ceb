"""Positions are applied as TVM applies them, with a sine and a cosine for several heads of a thread. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.relax.frontend.nn.llm.position_embedding", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from benchmarks.shared.threads_as_loops import threads_as_loops
from tvm import te, tirx, topi
from tvm.relax.frontend.nn.llm import kv_cache
from tvm.relax.frontend.nn.llm.position_embedding import llama_rope_with_position_map

from tunehub.graph.steps.appending import split_and_append
from tunehub.kernels.cuda.symbolic.rotation import open_sizes
from tunehub.tir.nodes import main_module

from ..scheduled import H200

pytestmark = pytest.mark.slow


def _rotated(module: Any, heads: tuple[int, int], depth: int, positions: list[int], apply: int) -> list[Any]:
    queries, keys = heads
    data = np.random.default_rng(0).standard_normal((len(positions), queries + 2 * keys, depth)).astype("float32")
    results = [np.full((len(positions), count, depth), np.nan, "float32") for count in (queries, keys, keys)]
    tensors = [tvm.runtime.tensor(each) for each in (data, np.array(positions, "int32"), *results)]
    tvm.compile(module, target="llvm")["main"](*tensors, apply)
    return [each.numpy() for each in tensors[2:]]


@pytest.mark.few(2)
@pytest.mark.parametrize("apply", [0, 1])
@pytest.mark.parametrize(("heads", "depth", "turned"), [((8, 2), 64, 64), ((3, 3), 32, 16)])
def test_positions_are_applied_as_tvm_does(heads: tuple[int, int], depth: int, turned: int, apply: int) -> None:
    function = llama_rope_with_position_map(1e4, 1.0, depth, *heads, "float32", {}, turned)
    found = open_sizes(main_module(function), H200)
    assert found is not None
    looped = threads_as_loops(found.mod, scopes="local", all_loops=True)
    positions, plain = [0, 1, 77, 4000, 3], main_module(function)
    pairs = zip(*(_rotated(each, heads, depth, positions, apply) for each in (looped, plain)), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_what_also_writes_into_pages_is_left_to_others() -> None:
    split = llama_rope_with_position_map(1e4, 1.0, 64, 8, 4, "float16", {})
    split = split.specialize({split.params[-1]: tirx.IntImm("int64", 1)})
    both = split_and_append(split, kv_cache._kv_cache_transpose_append(4, 64, "float16", 16))
    assert both is not None
    assert open_sizes(main_module(both), H200) is None
    assert open_sizes(main_module(split), H200) is not None


def test_functions_without_shared_angles_are_left_to_others() -> None:
    x = te.placeholder((tirx.Var("n", "int64"), 4, 64), "float32")
    for result in (topi.sin(x), topi.nn.relu(x)):
        assert open_sizes(main_module(te.create_prim_func([x, result])), H200) is None
