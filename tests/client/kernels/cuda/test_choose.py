"""Which of several kernels serves: by what they should take, whatever goes wrong in one. No TVM function, no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.kernels.cuda.choose import ChosenKernel, choose, likeliest, offers
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.known import default_device

pytestmark = pytest.mark.fast


@dataclass
class Rule:
    """With a time for each tile, and those that it fails to build."""

    NAME: str
    times: Sequence[float | None]
    compared: float | None = None
    fails: frozenset[int] = frozenset()
    ends: str | None = None
    ALONE: bool = False
    VERSION: int = 1
    asked: list[str] = field(default_factory=list)

    def match(self, mod: Any, target: Any) -> Any:
        self.asked.append("match")
        return True

    def candidates(self, workload: Any, device: Any) -> Iterator[KernelCandidate]:
        for tile, seconds in enumerate(self.times):
            self.asked.append(f"tile {tile}")
            yield KernelCandidate(tile=tile, seconds=seconds, compared_s=self.compared)
        if self.ends is not None:
            raise ValueError(self.ends)

    def build(self, workload: Any, tile: int) -> str:
        if tile in self.fails:
            raise RuntimeError(f"tile {tile} fails")
        return f"{self.NAME} {tile}"


def _chosen(*rules: Rule, refused: Sequence[str] = ()) -> list[str]:
    def check(schedule: str) -> None:
        if schedule in refused:
            raise ValueError("refused")

    found = choose(offers(rules, None, None, default_device()), check)
    return [each.schedule if isinstance(each, ChosenKernel) else f"{each.rule.NAME}: {each.error}" for each in found]


def test_what_should_take_least_is_first_and_of_two_alike_the_first_rule() -> None:
    found = _chosen(Rule("a", [2.0]), Rule("b", [1.0]), Rule("c", [1.0]))
    assert [each for each in found if ":" not in each] == ["b 0", "c 0", "a 0"]


def test_a_rule_before_what_serves_says_by_how_much_it_should_be_slower() -> None:
    assert _chosen(Rule("a", [2e-6]), Rule("b", [1e-6]))[0] == "a: another kernel should take 1 µs, this one 2"
    adjusted = _chosen(Rule("a", [9e-7], compared=2e-6), Rule("b", [1e-6]))
    assert adjusted[0] == "a: another kernel should take 1 µs, this one 0.9, which counts as 2"


def test_tiles_of_all_rules_are_compared_when_one_cannot_be_built() -> None:
    assert _chosen(Rule("a", [1.0, 3.0], fails=frozenset({0})), Rule("b", [2.0]))[-2:] == ["b 0", "a 1"]
    assert _chosen(Rule("a", [1.0, 1.5]), Rule("b", [2.0]), refused=["a 0"]) == ["a 1", "b 0"]


def test_the_last_thing_that_speaks_against_a_rule_is_said_once() -> None:
    assert _chosen(Rule("a", [1.0, 2.0], fails=frozenset({0, 1}))) == ["a: tile 1 fails"]
    assert _chosen(Rule("a", [1.0], fails=frozenset({0}), ends="no more")) == ["a: no more"]
    assert _chosen(Rule("a", [], ends="nothing fits"), Rule("b", [1.0])) == ["a: nothing fits", "b 0"]
    assert _chosen(Rule("a", [1.0]), Rule("b", [], ends="nothing fits")) == ["a 0", "b: nothing fits"]


def test_a_rule_may_be_compared_by_other_seconds_than_it_reports() -> None:
    found = offers([Rule("a", [1.0]), Rule("b", [5.0], compared=0.0)], None, None, default_device())
    best = likeliest(found)
    assert best is not None and best.best is not None and (best.rule.NAME, best.best.seconds) == ("b", 5.0)


def test_what_has_no_cost_is_first() -> None:
    assert _chosen(Rule("a", [1e-9]), Rule("b", [None]))[0] == "b 0"


def test_no_other_rule_is_asked_for_what_is_made_for_one() -> None:
    own, other = Rule("a", [None], fails=frozenset({0}), ALONE=True), Rule("b", [1.0])
    assert _chosen(own, other) == ["a: tile 0 fails"] and not other.asked


def test_the_next_tile_is_made_when_it_is_needed() -> None:
    rule = Rule("a", [1.0, 2.0, 3.0])
    found = choose(offers([rule], None, None, default_device()), lambda _: None)
    next(found)
    assert rule.asked == ["match", "tile 0"]
