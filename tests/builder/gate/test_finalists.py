from __future__ import annotations

import math
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_builder.backends.relax.workload_gate import case_of
from tunehub_builder.gate.comparison import plan_for
from tunehub_builder.gate.finalists import best_trials, distill
from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial
from tunehub_builder.tuning.search.knobs import RULE
from tunehub_builder.tuning.trial_record import as_trial, record_of
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory
from tunehub_registry.any_record import encode_any_record, parse_any_record
from tunehub_registry.record import encode_record, parse_record

pytestmark = pytest.mark.fast

TIMES = st.one_of(
    st.floats(min_value=1e-9, max_value=10.0),
    st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300]),
)
TRIALS = st.lists(
    st.builds(
        Trial,
        task=st.sampled_from(["a", "b"]),
        trace=st.integers(0, 1000),
        source=st.just("sketch"),
        run_s=st.lists(TIMES, max_size=3).map(tuple),
        error=st.sampled_from([None, None, "crashed"]),
    ),
    max_size=30,
)


def usable(trial: Trial) -> bool:
    return trial.error is None and len(trial.run_s) > 0 and all(math.isfinite(s) and s > 0 for s in trial.run_s)


@given(TRIALS, st.integers(1, 5))
def test_the_best_are_the_fastest_of_those_that_were_measured(trials: list[Trial], top: int) -> None:
    found = best_trials(trials, top)
    for task in ("a", "b"):
        mine = sorted((t for t in trials if t.task == task and usable(t)), key=lambda t: t.mean_s)
        best, count = (found[task].best, found[task].so_far.trials) if task in found else ([], 0)
        assert best == mine[:top]
        assert count == sum(t.task == task for t in trials)


@given(TRIALS)
def test_the_best_so_far_falls_at_each_step(trials: list[Trial]) -> None:
    mine = [trial for trial in trials if trial.task == "a"]
    times = [trial.mean_s if usable(trial) else math.inf for trial in mine]
    least = [math.inf, *accumulate(times, min)]
    falls = [(k, now) for k, (before, now) in enumerate(pairwise(least), 1) if now < before]
    assert not mine or best_trials(trials, 1)["a"].so_far.steps == falls


def task(key: str) -> TaskEntry:
    return TaskEntry(name="matmul", exact=key * 32, anchor=None, counts={"net": 2}, module="{}")


def test_a_work_directory_gives_one_entry_per_task(tmp_path: Path) -> None:
    directory = WorkDirectory(tmp_path)
    directory.save_tasks([task("a"), task("b")])
    journal = Journal(tmp_path)
    for key, seconds in (("a", 3.0), ("a", 1.0), ("c", 0.1), ("a", 2.0)):
        journal.append(Trial(task=key * 32, trace=[[], []], source="sketch", run_s=(seconds,)))
    journal.append(Trial(task="b" * 32, trace=[[], []], source="sketch", error="crashed"))
    first, second = distill(directory, top=2)
    assert ([t.mean_s for t in first.best], first.trials) == ([1.0, 2.0], 3)
    assert (second.best, second.trials) == ((), 1)
    assert first.digest == distill(directory, top=2)[0].digest


def test_a_trial_becomes_a_record_that_can_be_read() -> None:
    trial = Trial(task="a" * 32, trace=[[["EnterPostproc", [], [], []]], []], source="sketch", run_s=(1e-3, 2e-3))
    record = record_of(task("a"), trial.candidate, trial.run_s, trial.source)
    assert parse_record(encode_record(record)[:-1], "test") == record
    assert (record.networks, record.source, record.run_s) == (("net",), "sketch", (1e-3, 2e-3))


def knob_trial(columns: int, seconds: float, version: int = 1) -> Trial:
    choice = KnobChoice(template="conv2d", version=version, knobs={"columns": columns})
    return Trial(task="a" * 32, choice=choice, source=f"conv2d {version}", run_s=(seconds,))


def test_a_templates_own_choice_is_among_the_best_however_slow(tmp_path: Path) -> None:
    directory, journal = WorkDirectory(tmp_path), Journal(tmp_path)
    directory.save_tasks([task("a")])
    own, fast, faster = (knob_trial(columns, seconds) for columns, seconds in ((7, 3.0), (5, 2.0), (6, 1.0)))
    for trial in (own, fast, faster):
        journal.append(trial)
    (entry,) = distill(directory, 2)
    assert (entry.best, entry.preferred) == ((faster, own), 1)
    (entry,) = distill(directory, 3)
    assert (entry.best, entry.preferred) == ((faster, fast, own), 2)


def test_only_the_newest_version_of_a_template_counts(tmp_path: Path) -> None:
    directory, journal = WorkDirectory(tmp_path), Journal(tmp_path)
    directory.save_tasks([task("a")])
    new = [knob_trial(7, 3.0, version=2), knob_trial(8, 2.5, version=2)]
    for trial in (knob_trial(7, 1.0), *new):
        journal.append(trial)
    (entry,) = distill(directory, 3)
    assert (entry.best, entry.preferred, entry.trials) == ((new[1], new[0]), 1, 2)


def test_a_choice_of_knobs_becomes_a_record_and_back() -> None:
    trial = knob_trial(7, 1e-3)
    record = record_of(task("a"), trial.candidate, trial.run_s, trial.source, default_s=1.0)
    assert parse_any_record(encode_any_record(record)[:-1], "test") == record
    assert record.default_s == 1.0
    assert as_trial(record) == trial


def test_finalists_on_a_gpu_are_judged_beside_the_rule_and_verdicts_of_before_are_due(tmp_path: Path) -> None:
    directory = WorkDirectory(tmp_path)
    directory.save_tasks([task("a")])
    Journal(tmp_path).append(knob_trial(7, 1.0))
    (alone,), (beside,) = distill(directory), distill(directory, beside_rule=True)
    assert alone.digest != beside.digest
    case = case_of(beside, {"kind": "cuda"}, 1, plan_for("cuda"))
    assert [finalist.source for finalist in case.finalists] == ["conv2d 1", RULE.template]
    assert (case.rules.own, case_of(alone, {"kind": "cuda"}, 1, plan_for("cuda")).rules.own) == (1, None)
    assert case.request([0, 1])[-1] == [beside.best[0].choice, RULE]
