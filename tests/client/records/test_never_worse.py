"""Measurements that speak against a schedule, and where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub.records.lookup import Measured
from tunehub.records.never_worse import (
    against_borrowing,
    against_default_knobs,
    against_judged,
    against_promise,
    against_record,
    against_transfer,
    is_stale,
    stale_text,
)
from tunehub_registry.evidence import JudgedRule, RecordEvidence, encode_evidence

from ..conftest import RegistryFolder, key, lines, make_record
from .template_records import opened, template_lines, template_record

pytestmark = pytest.mark.fast


def line(number: int = 1, **changes: Any) -> RecordEvidence:
    return msgspec.structs.replace(
        RecordEvidence(
            exact=key(number), default_s=6e-6, tuned_s=7e-6, speedup=6 / 7, repeats=5, spread=0.0,
            output_max_rel_diff=0.0, threads=2, admitted=False, reason="slower", tuner="template",
        ),
        **changes,
    )  # fmt: skip


def found(**changes: Any) -> Measured:
    return Measured(evidence=line(**changes), package="p 1")


@pytest.mark.parametrize(
    ("default_s", "run_s", "borrowed", "used"),
    [
        (2.0, 1.0, False, True),
        (1.0, 1.0, False, False),
        (1.0, 2.0, False, False),
        (1.2, 1.0, False, True),
        (1.2, 1.0, True, False),
        (1.3, 1.0, True, True),
        (None, 9.0, True, True),
    ],
)
def test_a_record_must_promise_to_beat_the_default(
    default_s: float | None, run_s: float, borrowed: bool, used: bool
) -> None:
    against = against_record(make_record(run_s=(run_s,), default_s=default_s), borrowed=borrowed)
    assert (against is None) == used
    assert used or "times as fast as TVM's default" in str(against)


def test_measurements_of_the_very_workload_come_before_guesses() -> None:
    assert against_borrowing(None) is None
    reason = "measured no faster than TVM's default by p 1: 7 against 6 µs"
    assert against_borrowing(found()) == reason
    assert against_borrowing(found(tuned_s=5.95e-6)) is not None, "one per cent is noise"
    assert against_borrowing(found(tuned_s=3e-6)) is None, "rejected for what it does in networks"


def test_own_knobs_are_judged_by_their_own_time() -> None:
    assert against_default_knobs(found(), "elementwise") is not None
    assert against_default_knobs(found(tuned_s=3e-6), "elementwise") is None
    slow = found(tuned_s=3e-6, untuned_s=9e-6, template="elementwise", admitted=True)
    assert "9 against 6" in str(against_default_knobs(slow, "elementwise"))
    assert against_default_knobs(slow, "loops") is None, "another template was measured"


def known(registry: RegistryFolder, tuner: str, records: bytes, **options: Any) -> dict[int, Measured | None]:
    """What a package says of this tuner and of workloads 1 to 3, with evidence on one of each tuner."""
    evidence = [line(1), line(2, tuner=msgspec.UNSET), line(3, tuner="autotvm")]
    registry.publish(evidence=b"".join(map(encode_evidence, evidence)).decode(), data=records, tuner=tuner)
    hub = opened(registry, **options)
    try:
        return {number: hub.lookup.measured(tuner, key(number)) for number in (1, 2, 3)}
    finally:
        hub.close()


def test_a_package_says_what_was_measured(registry: RegistryFolder) -> None:
    of_knobs = known(registry, "template", template_lines(template_record(9)))
    assert of_knobs == {1: Measured(evidence=line(1), package="llvm-znver5 0.1.0"), 2: None, 3: None}


def test_evidence_without_a_tuner_is_on_traces(registry: RegistryFolder, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(lines(make_record(8)) + template_lines(template_record(8)))
    of_traces = known(registry, "meta_schedule", lines(make_record(9)), user_records=mine)
    assert [number for number, item in of_traces.items() if item] == [2]


def test_evidence_on_records_of_no_use_here_is_not_asked(registry: RegistryFolder) -> None:
    registry.publish(evidence=encode_evidence(line(1)).decode(), data=lines(make_record(9)))
    hub = opened(registry)
    assert hub.lookup.measured("template", key(1)) is None
    assert hub.lookup.measured("meta_schedule", key(1)) is None
    assert hub.lookup.measured("meta_schedule", "nonsense") is None
    hub.close()


@pytest.mark.parametrize(("expected_s", "rule_s", "used"), [(1.2e-6, 1e-6, True), (1.3e-6, 1e-6, False)])
def test_a_record_for_another_shape_gives_way_to_a_rule_that_promises_more(
    expected_s: float, rule_s: float, used: bool
) -> None:
    assert (against_transfer(expected_s, rule_s) is None) == used


@pytest.mark.parametrize(("record_s", "promised_s", "used"), [(1e-6, 1e-6, True), (1.05e-6, 1e-6, False)])
def test_a_published_record_gives_way_to_a_rule_that_promises_less(
    record_s: float, promised_s: float, used: bool
) -> None:
    assert (against_promise(record_s, promised_s) is None) == used


OLD, NEW = "0" * 16, "1" * 16


@pytest.mark.parametrize(
    ("rule_s", "choice", "promised_s", "reason"),
    [
        (9e-6, OLD, None, None),
        (9e-6, OLD, 1e-6, None),  # the same choice was measured: what it promises says nothing more
        (6e-6, OLD, None, "it took 7 µs, against 6 µs without it"),
        (9e-6, NEW, None, None),
        (9e-6, NEW, 6e-6, None),  # within the margin of a guess
        (9e-6, NEW, 5e-6, "it took 7 µs, and rules now promise 5 µs"),
        (7e-6, NEW, None, None),  # as fast as the rules of its day, and measured, which today's are not
        (6e-6, NEW, None, "it took 7 µs, against 6 µs by the rules of its day, now replaced"),
    ],
)
def test_a_row_gives_way_to_the_rules_of_today_where_these_are_known_to_be_faster(
    rule_s: float, choice: str, promised_s: float | None, reason: str | None
) -> None:
    judged = line(admitted=True, rule=JudgedRule(choice=OLD, text=OLD, run_s=rule_s))
    assert against_judged(judged, choice, promised_s) == reason


def test_a_row_that_was_never_judged_beside_rules_serves_as_ever() -> None:
    assert against_judged(line(admitted=True, untuned_s=1e-6), NEW, 1e-9) is None
    assert stale_text(line(admitted=True), NEW, None) is None


def test_a_row_is_stale_by_the_choice_of_rules_and_by_their_code_only_where_no_choice_is_known() -> None:
    rule = JudgedRule(choice=OLD, text="b" * 16, run_s=1e-6)
    assert not is_stale(rule, OLD, lambda: "c" * 16)
    assert is_stale(rule, NEW, lambda: rule.text)
    assert is_stale(rule, None, lambda: "c" * 16)
    assert not is_stale(rule, None, lambda: rule.text)


def test_a_stale_row_that_serves_says_by_what() -> None:
    judged = line(admitted=True, rule=JudgedRule(choice=OLD, text=OLD, run_s=9e-6))
    assert stale_text(judged, OLD, None) is None
    said = "stale: it took 7 µs, against 9 µs by the rules of its day; theirs is another kernel now, "
    assert stale_text(judged, NEW, None) == said + "of unknown time"
    assert stale_text(judged, NEW, 6e-6) == said + "promised to take 6 µs"
