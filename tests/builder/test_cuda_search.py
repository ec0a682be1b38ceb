"""The search for CUDA starts with the client's rule."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, topi

from tunehub.cuda_rule import ranked
from tunehub.cuda_tiles import sums_of
from tunehub_builder.tuning.cuda_search import FIRST, CudaSearch

TARGET = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_80",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    }
)


def test_the_first_candidates_are_of_the_rule_and_by_chance() -> None:
    data, weight = te.placeholder((1, 64, 16, 16), name="data"), te.placeholder((64, 64, 1, 1), name="weight")
    sums = topi.nn.relu(topi.nn.conv2d(data, weight, 1, 0, 1))
    mod = tvm.IRModule({"main": te.create_prim_func([data, weight, sums]).with_attr("global_symbol", "main")})
    found = sums_of(mod)
    assert found is not None and found.problem is not None
    best = ranked(found.problem, shared_memory=49152, threads=1024, count=1)[0]
    proposed = CudaSearch(mod, TARGET, seed=0, threads=1).propose([], 32)
    tiles = [[tuple(value) for _, value in decisions if isinstance(value, list)] for _, decisions in proposed]
    assert len(tiles) == FIRST
    wanted = [*zip(best.virtual, best.threads, best.inner, strict=True)]
    of_rule = [each for each in tiles if [tile[1:4] for tile in each[:4]] == wanted]
    assert any([tile[1] for tile in each[4:]] == list(best.step) for each in of_rule)
    assert len({tuple(each) for each in tiles}) > FIRST // 2
