from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FieldError, FormatError
from tunehub_registry.manifest import Provenance
from tunehub_registry.review import CHECKS, Review, ReviewCheck, encode_review, parse_review
from tunehub_registry.submission import (
    COMPARISONS,
    LINES,
    TRIALS,
    NetworkTimes,
    SizesComparison,
    Submission,
    SubmittedFile,
    SubmittedTrial,
    encode_lines,
    encode_submission,
    parse_submission,
    parse_submitted_line,
    sign_off_problem,
)

pytestmark = pytest.mark.fast

FILE = SubmittedFile(sha256="0" * 64, size=1)
SUBMISSION = Submission(
    name="llvm-znver5", version="0.1.0", license="CC0-1.0", sign_off="Ada Byron <ada@example.org>", written_by="x",
    provenance=Provenance(
        machine={"cpu": "test"}, tvm_version="0.27.0", tvm_ffi_version="0.1.14", tuner_options={}, trials=1, seed=0,
        command="test", started="2026-01-31T10:00:00Z", finished="2026-01-31T12:00:00Z", threads=2,
    ),
    files=dict.fromkeys([*LINES, "llvm-znver5-0.1.0.tunepkg"], FILE),
)  # fmt: skip
PASSED = tuple(ReviewCheck(name=name, verdict="passed", reason="good") for name in CHECKS)
NAMED: dict[str, Any] = {"submission": "0" * 64, "package": "1" * 64, "name": "llvm-znver5", "version": "0.1.0"}
seconds = st.floats(min_value=1e-12, max_value=1e9)


def test_what_is_written_is_read_again() -> None:
    assert parse_submission(encode_submission(SUBMISSION), "x") == SUBMISSION


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {}}, {"files": {**msgspec.to_builtins(SUBMISSION.files), "../x": {"sha256": "0" * 64, "size": 1}}},
        {"version": "1.0.0-x"}, {"name": "../x"}, {"format_version": "2.0"}, {"format_version": 1}, {"provenance": {}},
    ],
)  # fmt: skip
def test_a_wrong_submission_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        parse_submission(json.dumps({**msgspec.to_builtins(SUBMISSION), **changes}).encode(), "submission.json")


@given(data=st.binary(max_size=200), name=st.sampled_from(LINES))
def test_any_bytes_are_refused(data: bytes, name: str) -> None:
    for parse in (lambda: parse_submission(data, "x"), lambda: parse_submitted_line(name, data, "x")):
        with pytest.raises(FormatError):
            parse()


@given(run_s=st.lists(seconds, max_size=5), source=st.text(min_size=1, max_size=50))
def test_any_trial_is_read_as_it_was_written(run_s: list[float], source: str) -> None:
    trial = SubmittedTrial(exact="0" * 32, source=source, candidate="f" * 16, run_s=tuple(run_s))
    assert parse_submitted_line(TRIALS, encode_lines(TRIALS, [trial])[:-1], "x") == trial


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists))
def test_a_comparison_with_any_value_is_read_or_refused(value: Any) -> None:
    line = {"type": "network", "network": "x", "threads": 1, "default_s": value, "tuned_s": [1.0]}
    try:
        found = parse_submitted_line(COMPARISONS, json.dumps(line).encode(), "x")
    except FormatError:
        return
    assert isinstance(found, NetworkTimes) and all(s > 0 for s in found.default_s)


def test_sizes_need_as_many_times() -> None:
    with pytest.raises(FieldError, match="as many"):
        SizesComparison(exact="0" * 32, threads=1, at=((1,),), default_s=(), run_s=())


@pytest.mark.parametrize("text", [None, "", "Ada", "<ada@x.org>", "Ada Byron ada@x.org", "A\nda <a@example.org>"])
def test_what_is_no_sign_off(text: str | None) -> None:
    assert sign_off_problem(text) is not None


def test_a_sign_off_is_a_name_and_an_address() -> None:
    assert sign_off_problem("Åsa Öst-Byron <asa+x@mail.example.org>") is None


def test_a_review_is_verified_when_all_passed_and_cannot_say_otherwise() -> None:
    review = Review(state="verified", checks=PASSED, **NAMED)
    assert parse_review(encode_review(review), "x") == review
    refused = (*PASSED[:-1], ReviewCheck(name=CHECKS[-1], verdict="refused", reason="no"))
    for checks in (refused, PASSED[:-1], (), (*PASSED, PASSED[0])):
        with pytest.raises(FieldError, match="the checks say quarantined"):
            Review(state="verified", checks=checks, **NAMED)
    with pytest.raises(FieldError, match="not named"):
        Review(state="verified", checks=PASSED)


def test_only_checks_about_a_registry_may_be_skipped() -> None:
    for name in CHECKS:
        checks = tuple(msgspec.structs.replace(c, verdict="skipped") if c.name == name else c for c in PASSED)
        state = "verified" if name in ("version", "delegation") else "quarantined"
        assert Review(state=state, checks=checks, **NAMED).state == state
