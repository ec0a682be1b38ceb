"""Records for other shapes on CUDA: what their tiles cost here, and where the rule takes their place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")


import tunehub
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.compiler.schedule.request import Request
from tunehub.kernels.cuda.adapted import adapted_s, tile_row
from tunehub.kernels.cuda.gemm import tiles
from tunehub.kernels.cuda.gemm.cost import as_tiles, seconds
from tunehub.kernels.cuda.gemm.rule import tile_for
from tunehub.kernels.cuda.gemm.split_k import rule as split_k_rule
from tunehub.kernels.cuda.gemm.tiles import reduction_block_of
from tunehub.kernels.cuda.promises import without_record_s
from tunehub.kernels.devices.known import default_device
from tunehub.target.descriptors import as_tvm_target
from tunehub.tir.nodes import main_module

from .convolutions import convolution
from .scheduled import H200

pytestmark = pytest.mark.slow
DEVICE = default_device()

ROOT = Path(__file__).parents[4]  # the registry that comes with tunehub


@pytest.fixture(scope="module")
def lookup() -> Any:
    """The published package."""
    with tunehub.context(H200, require="cuda-h200==0.2.0", registry=[str(ROOT)]) as hub:
        pass
    return hub.lookup


@pytest.fixture
def without_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules leave everything to TVM, so that transferred records are asked."""
    for rule in (split_k_rule, tiles):
        monkeypatch.setattr(rule, "match", lambda *_: None)


def test_what_rules_serve_needs_no_record_for_another_shape(lookup: Any) -> None:
    outcome, _ = schedule_function(convolution(64, 56, batch=3), H200, lookup)
    assert outcome.served is not None and outcome.served.template == split_k_rule.NAME


@pytest.mark.usefixtures("without_rules")
def test_a_tile_that_leaves_multiprocessors_idle_here_does_not_serve(lookup: Any) -> None:
    outcome, _ = schedule_function(convolution(512, 7, batch=3), H200, lookup)
    against = [str(item.reason) for item in outcome.rejected if item.step == "transfer"]
    assert any("µs without a record" in each for each in against)
    assert outcome.rung is None


@pytest.mark.usefixtures("without_rules")
def test_a_tile_that_suits_serves_with_the_time_that_it_should_take(
    lookup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_k_rule, "promised_s", lambda *_: None)
    function = convolution(64, 56, batch=3)
    outcome, _ = schedule_function(function, H200, lookup)
    served = outcome.served
    assert served is not None and served.rung == "transfer"
    mod = main_module(function)
    own_s, rule_s = adapted_s(mod, served.schedule.trace, DEVICE), without_record_s(mod, H200)
    assert own_s is not None and rule_s is not None
    assert served.predicted_s == own_s < 1.25 * rule_s


def test_the_time_is_that_of_the_tile_of_the_adapted_trace() -> None:
    mod = main_module(convolution(64, 28, batch=1))
    problem = reduction_block_of(mod).problem  # type: ignore[union-attr]
    assert problem is not None
    tile = tile_for(problem, DEVICE, shared_memory=49152, threads=1024)
    parts = zip(problem.spatial, tile.virtual, tile.threads, tile.inner, strict=True)
    spatial = [[extent // (a * b * c), a, b, 1, c] for extent, a, b, c in parts]
    steps = [[extent // step, 1, step] for extent, step in zip(problem.reduction, tile.step, strict=True)]
    row = tile_row([*spatial, *steps], problem)
    assert row is not None
    assert float(seconds(problem, as_tiles([row]), DEVICE)[0]) == pytest.approx(tile.expected_s)
    assert tile_row([*spatial, *steps][1:], problem) is None
    assert tile_row([*spatial, *([a * b, c] for a, b, c in steps)], problem) is None


class _Own:
    """A package's records as the user's own."""

    def __init__(self, lookup: Any) -> None:
        self._lookup = lookup

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookup, name)

    def by_exact(self, key: str) -> Any:
        found = self._lookup.by_exact(key)
        return None if found is None else replace(found, rung="user")

    def by_anchor(self, key: str) -> Any:
        return tuple(replace(each, rung="user") for each in self._lookup.by_anchor(key))


def test_a_published_record_gives_way_to_divided_sums_that_promise_much_less_and_a_users_own_stays(
    lookup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = convolution(512, 7, batch=1)
    outcome, _ = schedule_function(function, H200, lookup)
    assert outcome.served is not None and outcome.served.template == split_k_rule.NAME
    against = [str(item.reason) for item in outcome.rejected if item.step in ("exact", "anchor")]
    assert any("µs are promised without a record" in each for each in against)
    assert schedule_function(function, H200, _Own(lookup))[0].rung == "user"
    monkeypatch.setattr(Request, "split_k_s", None)
    assert schedule_function(function, H200, lookup)[0].rung in ("exact", "anchor")


def test_a_record_of_another_gpu_stays_whatever_rules_promise_for_this_one(
    lookup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Request, "split_k_s", 1e-12)
    function = convolution(512, 7, batch=1)
    a100 = as_tvm_target("cuda-a100")
    for target, is_compared in ((H200, True), (a100, False)):
        rejected = schedule_function(function, target, lookup)[0].rejected
        assert any("are promised without a record" in str(each.reason) for each in rejected) == is_compared
