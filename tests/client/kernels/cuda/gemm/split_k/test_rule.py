"""Long sums divided in a block by rule: the tile that should cost least, and when others are left to serve. No GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.compiler.schedule.request import Request
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm import tiles as cuda_tiles
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.split_k import rule as split_k_rule
from tunehub.kernels.cuda.gemm.split_k.cost import counts, resident, seconds
from tunehub.kernels.cuda.gemm.split_k.rule import likeliest
from tunehub.kernels.cuda.gemm.split_k.sketch import all_tiles, matmul_of, sides
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.known import default_device
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.guard import GuardError
from tunehub.tir.schedules import open_schedule

from ...scheduled import H200
from .products import CASES, batched, conv, dense, pointwise, scores

pytestmark = pytest.mark.slow
DEVICE = default_device()


def test_everything_that_costs_is_counted_for_every_tile() -> None:
    costs = DEVICE.costs.split_k
    for case in CASES.values():
        matmul = matmul_of(case())
        assert matmul is not None
        found = all_tiles(matmul)
        number = counts(matmul, found, DEVICE)
        assert number.keys() == costs.keys() and min(costs.values()) >= 0
        assert all(len(column) == len(found) and np.isfinite(column).all() for column in number.values())
        both = sides(matmul)
        results = matmul.extents[0] * both[0].extent * both[1].extent
        assert (number["products"] * 32 * 132 >= results * matmul.extents[3]).all(), "all results are computed"
        assert (resident(matmul, found, DEVICE) >= 1).all()


def test_the_likeliest_tile_is_the_one_that_should_cost_least() -> None:
    matmul = matmul_of(dense(128, 768, 768))
    assert matmul is not None
    found = likeliest(matmul, 5, DEVICE)
    expected = seconds(matmul, all_tiles(matmul), DEVICE)
    assert [each for _, each in found] == sorted(expected)[:5]
    assert len({tile for tile, _ in found}) == 5


@pytest.mark.parametrize("mod", [dense(128, 768, 768), conv(512, 7, 512), pointwise()], ids=["dense", "conv", "1x1"])
def test_what_is_served_is_checked_and_promises_more(mod: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_k_rule, "default_s", lambda *_: 1.0)
    served = by_one(split_k_rule, mod, H200)
    assert served is not None
    schedule, expected_s = served
    assert 1e-6 < expected_s < 1e-3
    assert any(each.kind.name == "RFactor" for each in schedule.trace.insts)
    request = Request(mod=mod, target=H200, lookup=EmptyLookup())
    assert request.split_k_s in (expected_s, None)  # other tiles promise more


def test_others_serve_where_they_should_be_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = dense(128, 768, 768)
    matmul = matmul_of(mod)
    assert matmul is not None
    own_s = likeliest(matmul, 1, DEVICE)[0][1]
    monkeypatch.setattr(cuda_tiles, "candidates", lambda *_: iter([KernelCandidate(tile=None, seconds=0.9 * own_s)]))
    monkeypatch.setattr(cuda_tiles, "build", lambda workload, _: open_schedule(workload.mod))
    monkeypatch.setattr(Request, "check", lambda *_: None)
    outcome, _ = schedule_function(mod["main"], H200, EmptyLookup())
    assert outcome.served is not None and outcome.served.template == cuda_tiles.NAME
    assert any("another kernel should take" in each.reason for each in outcome.rejected)
    monkeypatch.setattr(split_k_rule, "default_s", lambda *_: own_s)
    with pytest.raises(NoTileError, match="a guess must promise"):
        by_one(split_k_rule, mod, H200)
    assert by_one(split_k_rule, dense(dtype="float16"), H200) is None


def test_costs_of_other_tiles_do_not_count_for_batches_by_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_tiles, "candidates", lambda *_: iter([KernelCandidate(tile=None, seconds=1e-9)]))
    divided = [
        Request(mod=mod, target=H200, lookup=EmptyLookup()).split_k_s for mod in (batched(16, 64, 98, 64), scores())
    ]
    assert divided[0] is not None and divided[1] is None


def test_the_next_tile_is_tried_where_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def check(*_: Any) -> None:
        tried.append(1)
        if len(tried) < 3:
            raise GuardError("refused")

    monkeypatch.setattr(split_k_rule, "default_s", lambda *_: None)
    monkeypatch.setattr(split_k_rule, "check_tiles", check)
    assert by_one(split_k_rule, dense(128, 768, 768), H200) is not None and len(tried) == 3
    tried[:] = [1] * -10
    monkeypatch.setattr(split_k_rule, "check_tiles", lambda *_: (_ for _ in ()).throw(GuardError("never")))
    with pytest.raises(GuardError, match="never"):
        by_one(split_k_rule, dense(128, 768, 768), H200)


def test_a_product_without_records_is_served_by_it_and_the_report_can_say_so() -> None:
    scheduled, function = schedule_function(dense(128, 768, 768)["main"], H200, EmptyLookup())
    served = scheduled.served
    assert served is not None and function is not None
    assert (served.rung, served.template) == ("template", split_k_rule.NAME)
