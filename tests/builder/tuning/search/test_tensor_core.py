"""The search among tiles for tensor cores. No GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile, matmul_of, tile_of
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.search.tensor_core import TensorCoreSearch, distance

from ....client.kernels.cuda.gemm.tensor_core.products import TARGET, dense

pytestmark = pytest.mark.slow

SMALL = TensorTile(warps=(1, 2), fragments=(1, 1), k_fragments=2, vectors=(8, 8))


def test_the_search_ends_and_proposes_nothing_twice() -> None:
    import tvm

    mod = dense(32, 32, 32)
    matmul = matmul_of(mod)
    assert matmul is not None
    search = TensorCoreSearch(mod, tvm.target.Target(TARGET), matmul, seed=1)
    trials: list[Trial] = []
    while found := search.propose(trials, 64):
        trials += [
            Trial(task="t", trace=trace, source="test", run_s=(1e-6 * (1 + len(trials) + n),))
            for n, trace in enumerate(found)
        ]
    proposed = [tile_of(trial.trace) for trial in trials]
    assert 10 < len(proposed) == len(set(proposed))
    again = TensorCoreSearch(mod, tvm.target.Target(TARGET), matmul, seed=2)
    assert not {*map(tile_of, again.propose(trials, 64))} & {*proposed}


def test_neighbours_differ_in_one_step() -> None:
    assert distance(SMALL, SMALL) == 0
    for change in (
        {"warps": (2, 2)},
        {"fragments": (1, 2)},
        {"k_fragments": 4},
        {"k_fragments": 1},
        {"pipelined": True},
        {"whole_windows": True},
        {"groups": 2},
    ):
        fields = {"warps": SMALL.warps, "fragments": SMALL.fragments, "k_fragments": 2, "vectors": (8, 8), **change}
        assert distance(SMALL, TensorTile(**fields)) == 1  # type: ignore[arg-type]
