"""Heads that have keys in common, as queries of one head."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.backend.cuda.ptx", reason="needs TVM 0.27")

import tvm

from tunehub.kernels.cuda.attention import rule
from tunehub.kernels.cuda.attention.kernel import AttentionTile
from tunehub.kernels.cuda.attention.kernels import kernel_of
from tunehub.kernels.cuda.attention.shared_heads import heads_of_a_key, with_heads_as_queries
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.devices.known import default_device
from tunehub.tir.nodes import main_module

from .cases import H200, Case, expected, function_of
from .lockstep import run as run_in_lockstep

pytestmark = pytest.mark.slow
MULTIPROCESSORS = default_device().multiprocessors

TILE = AttentionTile(warps=(1, 2), rows=1, keys=16, cluster=2)


def _case(queries: int, group: int, behind: bool = True) -> Case:
    return Case("float16", 2, 8, queries, 200, 32, 64, TILE, group, True, (1, 8, queries, 200), behind)


@pytest.mark.parametrize("behind", [True, False])
def test_heads_of_a_key_are_counted(behind: bool) -> None:
    counts = {group: attention_of(function_of(_case(1, group, behind))) for group in (1, 2, 4)}
    assert {group: heads_of_a_key(found) for group, found in counts.items() if found is not None} == {1: 1, 2: 2, 4: 4}


def test_several_queries_stay_apart() -> None:
    found = attention_of(function_of(_case(3, 4)))
    assert found is not None and heads_of_a_key(found) == 1


def test_results_are_those_of_the_heads() -> None:
    case = _case(1, 4)
    found = attention_of(function_of(case))
    assert found is not None
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((2, heads, rows, width)).astype("float16")
        for heads, rows, width in ((8, 1, 32), (2, 200, 32), (2, 200, 64))
    )
    mask = rng.standard_normal(case.mask).astype("float16")
    out = np.full((2, 1, 8, 64), np.nan, "float16")
    given = [x.transpose(0, 2, 1, 3).copy() for x in (q, k, v)]
    run_in_lockstep(kernel_of(with_heads_as_queries(found, 4), TILE, MULTIPROCESSORS), *given, mask, out)
    want = expected(case, q, k, v, mask)
    assert np.abs(out.transpose(0, 2, 1, 3) - want).max() <= 1e-3 * np.abs(want).max()


def test_one_query_of_many_keys_is_shared_by_the_blocks_of_a_cluster() -> None:
    case = _case(1, 4)._replace(keys=2000, mask=(1, 8, 1, 2000))
    mod = main_module(function_of(case))
    found = by_one(rule, mod, tvm.target.Target(H200))
    older = by_one(rule, mod, tvm.target.Target({**H200, "arch": "sm_80"}))
    assert found is not None and older is not None
    assert "clusterCtaIdx.x" in str(found[0].mod) and "clusterCtaIdx.x" not in str(older[0].mod)
