"""Rows of a package know beside which choice of the rules they were judged: the faster serves by what is known."""

from __future__ import annotations

from typing import Any

import pytest

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.compiler.schedule.request import Request
from tunehub.compiler.schedule.rule_choice import text_hash
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.keys import workload_key
from tunehub_registry.evidence import JudgedRule, RecordEvidence

from ..conftest import Nets
from .conv_records import conv, conv_function, record_of

pytestmark = pytest.mark.slow
OTHER = "0" * 16


@pytest.fixture
def alone(nets: Nets, target: Any) -> Any:
    return conv_function(conv(nets), target)


def judged(alone: Any, choice: str, rule_s: float) -> RecordEvidence:
    return RecordEvidence(
        exact=workload_key(alone), default_s=1e-2, tuned_s=1e-3, speedup=10.0, repeats=5, spread=0.0,
        output_max_rel_diff=0.0, threads=2, admitted=True, tuner="template",
        rule=JudgedRule(choice=choice, text=OTHER, run_s=rule_s),
    )  # fmt: skip


def chosen(alone: Any, target: Any) -> str:
    found = Request(mod=alone, target=target, lookup=EmptyLookup()).rule_choice
    assert found is not None
    return found.hash


def test_a_row_judged_beside_todays_choice_serves_without_a_word(alone: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub([record_of(alone)], evidence=[judged(alone, chosen(alone, target), rule_s=2e-3)])
    served = schedule_function(alone["main"], target, hub)[0].served
    assert (served.rung, served.stale) == ("exact", None)


def test_a_row_slower_than_todays_choice_does_not_serve(alone: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub([record_of(alone)], evidence=[judged(alone, chosen(alone, target), rule_s=9e-4)])
    outcome = schedule_function(alone["main"], target, hub)[0]
    assert outcome.rung == "template"
    assert [item.reason for item in outcome.rejected] == ["it took 1e+03 µs, against 900 µs without it"]


def test_a_row_judged_beside_another_choice_serves_and_says_so(alone: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub([record_of(alone)], evidence=[judged(alone, OTHER, rule_s=2e-3)])
    served = schedule_function(alone["main"], target, hub)[0].served
    assert served.rung == "exact"
    assert served.stale.startswith("stale: it took 1e+03 µs, against 2e+03 µs by the rules of its day")


def test_the_choice_of_rules_is_the_workloads_own(alone: Any, nets: Nets, target: Any) -> None:
    other = conv_function(nets.conv(channels=64, out=64, size=28), target)
    assert chosen(alone, target) == chosen(alone, target)
    assert chosen(alone, target) != chosen(other, target)


def test_the_text_of_the_choice_is_that_of_the_schedule(alone: Any, target: Any) -> None:
    scheduled = schedule_function(alone["main"], target, EmptyLookup())[1]
    assert text_hash(scheduled) == text_hash(scheduled.with_attr("global_symbol", "else"))
    assert text_hash(scheduled) not in (text_hash(None), text_hash(alone["main"]))
