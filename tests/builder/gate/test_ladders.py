"""Which choices a ladder has where, by their times."""

from __future__ import annotations

import math
from statistics import geometric_mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_builder.backends.relax.ladder_gate import LadderVerdict
from tunehub_builder.gate.again_ladders import is_ladder_disturbed, ladder_line, ladder_verdict
from tunehub_builder.gate.comparison import ComparedFinalists, Finalist
from tunehub_builder.gate.ladders import (
    ChosenStep,
    SizeTimes,
    is_doubtful,
    ladder_finalists,
    ladder_of,
    mean_seconds,
    no_gain_reason,
    seconds,
    sizes_to_check,
    with_more,
)
from tunehub_builder.tuning.journal import KnobChoice, Trial
from tunehub_registry.evidence import JudgedRule
from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt

pytestmark = pytest.mark.fast


def times(*rows: tuple[int, float, tuple[float, ...]]) -> list[SizeTimes]:
    """Of sizes: what the default and each choice take."""
    return [SizeTimes(at=(size,), default_s=default_s, run_s=run_s) for size, default_s, run_s in rows]


def steps(*found: tuple[int | None, int | None]) -> tuple[ChosenStep, ...]:
    return tuple(ChosenStep(up_to=up_to, choice=choice) for up_to, choice in found)


def test_probes_beyond_the_largest_tuned_size_are_checked_only_where_sizes_are_few() -> None:
    probes = [(1,), (2,), (3,), (7,), (16,), (61,), (128,)]
    assert sizes_to_check([(1,), (4,), (16,)], probes) == [(1,), (2,), (3,), (4,), (7,), (16,)]
    assert sizes_to_check([(1,), (2,)], probes) == [(1,), (2,), (3,), (7,), (16,), (61,)]
    assert sizes_to_check([(512,)], probes) == [*probes, (512,)]


def test_sizes_around_the_ends_of_the_tiles_that_choices_name_are_checked_too() -> None:
    rows = KnobChoice(template="rows", version=1, knobs={"large": 6, "small": 1, "blocks": 2})
    assert sizes_to_check([(1,), (64,)], [(1,)], [rows]) == [(n,) for n in (1, 2, 3, 5, 6, 7, 11, 12, 13, 64)]
    pieces = KnobChoice(template="cuda_tiles", version=1, knobs={"length": 32, "threads": [8, 16]})
    assert sizes_to_check([(1, 8), (4, 16)], [(1, 1)], [pieces]) == [
        (1, 1), (1, 8), (1, 31), (1, 32), (1, 33), (1, 63), (1, 64), (4, 16)
    ]  # fmt: skip
    conv2d = KnobChoice(template="conv2d", version=1, knobs={"columns": 4})
    assert sizes_to_check([(64,)], [(1,)], [conv2d]) == [(1,), (64,)]


def test_the_fastest_choice_serves_all_sizes_where_it_is_that() -> None:
    assert ladder_of(times((1, 9.0, (2.0, 3.0)), (8, 9.0, (2.0, 3.0))), 2) == steps((None, 0))


def test_each_size_has_the_choice_that_is_fastest_there() -> None:
    measured = times((1, 9.0, (1.0, 4.0)), (4, 9.0, (1.0, 4.0)), (16, 9.0, (4.0, 1.0)), (64, 9.0, (4.0, 1.0)))
    assert ladder_of(measured, 2) == steps((4, 0), (None, 1))


def test_a_gain_like_noise_makes_no_step() -> None:
    assert ladder_of(times((1, 9.0, (1.0, 1.04)), (8, 9.0, (1.04, 1.0))), 2) == steps((None, 0))


def test_a_choice_slower_than_the_default_anywhere_does_not_serve_there() -> None:
    measured = times((1, 1.0, (1.01,)), (2, 1.0, (0.5,)), (4, 1.0, (0.5,)))
    assert ladder_of(measured, 1) == steps((1, None), (None, 0))
    assert ladder_of(times((1, 1.0, (1.01,)), (2, 1.0, (1.01,))), 1) == steps((None, None))


def test_several_values_of_one_size_are_one_step() -> None:
    measured = [
        SizeTimes(at=(2, 3), default_s=1.0, run_s=(0.5,)),
        SizeTimes(at=(3, 2), default_s=1.0, run_s=(2.0,)),
        SizeTimes(at=(7, 1), default_s=1.0, run_s=(0.5,)),
    ]
    assert ladder_of(measured, 1) == steps((6, None), (None, 0))


def test_a_ladder_without_gain_is_not_published() -> None:
    some = times((1, 1.0, (0.99,)), (8, 1.0, (0.99,)))
    assert no_gain_reason(some, ladder_of(some, 1)) == "no choice is faster than TVM's default: 1.01 times as fast"
    more = times((1, 1.0, (0.9,)), (8, 1.0, (0.4,)))
    assert no_gain_reason(more, ladder_of(more, 1)) is None
    assert mean_seconds(more, ladder_of(more, 1)) == (1.0, pytest.approx(0.6))


def test_a_ladder_that_gains_nothing_over_the_rule_is_not_published() -> None:
    measured = times((1, 9.0, (1.0, 1.0)), (8, 9.0, (1.01, 1.0)))
    found = ladder_of(measured, 2)
    assert no_gain_reason(measured, found) is None
    assert "1 times as fast as what serves" in str(no_gain_reason(measured, found, own=0))
    little = times((1, 9.0, (1.03, 1.0)), (8, 9.0, (1.03, 1.0)))
    assert "1.03 times as fast" in str(no_gain_reason(little, ladder_of(little, 2), own=0))
    slow = times((1, 9.0, (2.0, 1.0)), (8, 9.0, (2.0, 1.0)))
    assert no_gain_reason(slow, ladder_of(slow, 2), own=0) is None


def compared(default_s: tuple[float, ...], *run_s: tuple[float, ...]) -> ComparedFinalists:
    finalists = tuple(Finalist(source="s", tuning_s=1.0, run_s=each, difference=0.0) for each in run_s)
    return ComparedFinalists(finalists=finalists, default_s=default_s, winner=None, reason=None)


def test_a_choice_that_noise_may_have_made_slower_is_measured_again() -> None:
    assert is_doubtful(compared((1.0, 1.1, 1.2), (1.15, 2.0, 9.0)))
    assert not is_doubtful(compared((1.0, 1.1, 1.2), (1.3, 2.0, 9.0)))  # slower for sure
    assert not is_doubtful(compared((1.0, 1.1, 1.2), (0.5, 0.6, 9.0)))
    assert not is_doubtful(compared((), (0.5,)))
    both = with_more(compared((1.0,), (2.0,)), compared((1.5,), (0.5,)))
    assert (both.default_s, both.finalists[0].run_s, both.finalists[0].difference) == ((1.0, 1.5), (2.0, 0.5), 0.0)


RECORD = LadderRecord(
    exact="0" * 32, op="f", source="s", symbols=1,
    ladder=(LadderStep(own="rule", times=(TimesAt(at=(4,), run_s=1.0, default_s=4.0),)),),
)  # fmt: skip
RULE_OF_TODAY = JudgedRule(choice="0" * 16, text="1" * 16, run_s=1.0)


@pytest.mark.parametrize(
    ("own_s", "rule_s", "reason"),
    [
        (1.0, 1.1, None),
        (1.0, 1.03, "1.03 times as fast as what serves without a record; the least is 1.05"),
        (5.0, 6.0, "no choice is faster than TVM's default: 0.8 times as fast"),
    ],
)
def test_a_published_ladder_is_judged_beside_the_rule_of_today(own_s: float, rule_s: float, reason: str | None) -> None:
    both = compared((4.0,), (own_s,), (rule_s,))
    verdict = ladder_verdict(RECORD, {(1,): both, (4,): both}, threads=2)
    assert (verdict.admitted, verdict.reason) == (reason is None, reason)
    line = ladder_line(verdict, RULE_OF_TODAY, known=None)
    assert line is not None and line.rule
    assert (line.tuner, line.admitted) == ("ladder", reason is None)
    assert [line.tuned_s, line.rule.run_s] == pytest.approx([own_s, rule_s])


def test_a_published_ladder_that_fails_at_a_size_is_out_and_one_without_a_rule_is_beside_the_default() -> None:
    good, fails = Finalist(source="s", tuning_s=1.0, run_s=(1.0,)), Finalist(source="s", tuning_s=1.0, reason="fails")

    def verdict_on(own: Finalist, rule: Finalist) -> LadderVerdict:
        at = ComparedFinalists(finalists=(own, rule), default_s=(4.0,), winner=None, reason=None)
        return ladder_verdict(RECORD, {(1,): compared((4.0,), (1.0,), (1.1,)), (4,): at}, threads=2)

    out = verdict_on(fails, good)
    assert (out.reason, ladder_line(out, RULE_OF_TODAY, known=None)) == ("fails", None)
    alone = ladder_line(verdict_on(good, fails), RULE_OF_TODAY, known=None)
    assert alone is not None and alone.rule and alone.rule.run_s == alone.default_s and alone.admitted
    known = ladder_line(out, RULE_OF_TODAY, known=alone)
    assert known is not None and (known.admitted, known.reason) == (False, "fails")


def test_one_disturbed_size_of_many_says_little() -> None:
    steady, wild = compared((1.0, 1.0), (1.0, 1.0)), compared((1.0, 9.0), (1.0, 1.0))
    assert not is_ladder_disturbed({(1,): steady, (2,): wild, (3,): steady})
    assert is_ladder_disturbed({(1,): wild, (2,): wild, (3,): steady})


SECONDS = st.floats(min_value=1e-9, max_value=10)
ROWS = st.lists(st.tuples(st.integers(1, 500), SECONDS, st.tuples(SECONDS, SECONDS, SECONDS)), min_size=1, max_size=12)


@given(ROWS)
def test_no_ladder_is_ever_slower_than_the_default_or_than_a_choice_that_is_not(
    rows: list[tuple[int, float, tuple[float, ...]]],
) -> None:
    measured = times(*rows)
    found = ladder_of(measured, 3)
    bounds = [step.up_to for step in found]
    assert bounds[-1] is None and bounds[:-1] == sorted({b for b in bounds[:-1] if b is not None}) and len(found) <= 8
    assert all(seconds(each, found) <= each.default_s for each in measured)
    default_s, run_s = mean_seconds(measured, found)
    for choice in range(3):
        if all(each.run_s[choice] <= each.default_s for each in measured):
            assert run_s <= geometric_mean(each.run_s[choice] for each in measured) * (1 + 1e-9)
    assert run_s <= default_s * (1 + 1e-9)


def trial(name: str, *run_s: float, points: tuple[tuple[int, ...], ...] = ((1,), (8,))) -> Trial:
    choice = KnobChoice(template=name, version=1, knobs={})
    error = None if run_s else "does not build"
    return Trial(task="t", choice=choice, source="s", run_s=run_s, error=error, points=points)


def test_finalists_are_the_first_the_best_and_those_that_are_best_at_some_size() -> None:
    measured = [
        trial("own", 5.0, 5.0),
        trial("small", 1.0, 9.0),
        trial("best", 2.0, 2.0),
        trial("large", 9.0, 1.5),
        trial("fails"),
        trial("elsewhere", 0.1, 0.1, points=((1,), (2,))),
    ]
    found = [choice.template for choice in ladder_finalists(measured, ((1,), (8,)))]
    assert found == ["own", "best", "small", "large"]
    assert ladder_finalists([trial("fails")], ((1,), (8,))) == []
    on_cuda = [choice.template for choice in ladder_finalists([*measured, trial("split_k", 0.5, 9.0)], ((1,), (8,)))]
    assert on_cuda[0] == "rule" and "split_k" in on_cuda


def test_sizes_count_alike_when_trials_are_ranked() -> None:
    assert trial("t", 1e-6, 1e-2).mean_s == pytest.approx(math.sqrt(1e-8))
