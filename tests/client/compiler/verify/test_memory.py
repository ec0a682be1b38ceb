"""Verdicts are remembered: nothing is asked twice, and no file is needed or trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunehub.compiler.verify.memory import RememberingVerifier
from tunehub.compiler.verify.port import KernelVerdict, ScheduledFunction, TrustingVerifier
from tunehub.exceptions import VerdictsError
from tunehub.report.ladder import Refusal

from .conftest import CountingVerifier

pytestmark = pytest.mark.fast

KEYS = [f"{number:064x}" for number in range(4)]
RIGHT = KernelVerdict(check="run")
WRONG = KernelVerdict(check="run", refusal=Refusal(check="run", difference=0.25, tolerance=1e-4))
NOT_FINITE = KernelVerdict(check="run", refusal=Refusal(check="run", tolerance=1e-4))
FAULTY = KernelVerdict(check="static", refusal=Refusal(check="static", reason="two threads write one place"))


class Told(TrustingVerifier):
    """Says what it is told to."""

    def __init__(self, verdict: KernelVerdict) -> None:
        self.told = verdict

    def verdict(self, asked: ScheduledFunction) -> KernelVerdict:
        return self.told


def question(key: str) -> ScheduledFunction:
    made = ScheduledFunction(exact="0", original=None, scheduled=None)
    made.__dict__["key"] = key
    return made


def test_every_kind_of_verdict_is_read_as_it_was_written(memory: Any) -> None:
    written = memory("a")
    part = KernelVerdict(check="run", not_run="n = 200: out of memory")
    verdicts = dict(zip((*KEYS, "f" * 64), (RIGHT, WRONG, NOT_FINITE, FAULTY, part), strict=True))
    for key, verdict in verdicts.items():
        written.add(key, verdict)
    written.save()
    again = memory("a")
    assert {key: again.get(key) for key in verdicts} == verdicts
    assert len(memory("b")) == 0


def test_the_second_time_nothing_is_asked_and_nothing_is_started(memory: Any) -> None:
    for expected in (1, 0):
        inner = CountingVerifier(Told(RIGHT))
        verifier = RememberingVerifier(inner, memory("a"), not_run=None)
        verifier.begin()
        verifier.submit(question(KEYS[0]))
        assert verifier.verdict(question(KEYS[0])) == RIGHT
        verifier.close()
        assert (inner.begun, len(inner.submitted)) == (expected, expected)


def test_what_only_passed_the_static_check_is_run_once_there_is_a_device(memory: Any) -> None:
    static = KernelVerdict(check="static", not_run="this machine has no CUDA device")
    here = static.not_run
    for not_run, told, asked in ((here, static, 1), (here, static, 0), (None, RIGHT, 1), (None, RIGHT, 0)):
        inner = CountingVerifier(Told(told))
        verifier = RememberingVerifier(inner, memory("a"), not_run=not_run)
        verifier.submit(question(KEYS[0]))
        assert verifier.verdict(question(KEYS[0])) == told
        verifier.close()
        assert len(inner.submitted) == asked


def test_what_was_not_verified_is_not_remembered(memory: Any) -> None:
    kept = memory("a")
    kept.add(KEYS[0], KernelVerdict(not_run="out of memory"))
    kept.save()
    assert kept.get(KEYS[0]) is None
    assert not kept.file.exists()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff\xfe",
        b"{",
        b"[" * 100_000,
        b'{"key": "../../etc/passwd", "check": "run"}',
        json.dumps({"key": KEYS[1], "check": "believe me"}).encode(),
        json.dumps({"key": KEYS[1], "check": "run", "refused": "no"}).encode(),
        json.dumps({"key": KEYS[1], "check": "run", "refused": True, "reason": "x" * 2000}).encode(),
        json.dumps({"key": KEYS[1], "check": "run", "difference": -1.0}).encode(),
    ],
)
def test_lines_that_are_no_verdicts_are_left_out(line: bytes, memory: Any) -> None:
    first = memory("a")
    first.add(KEYS[0], RIGHT)
    first.save()
    with first.file.open("ab") as stream:
        stream.write(line)  # torn: no newline
    second = memory("a")
    second.add(KEYS[2], WRONG)
    second.save()
    third = memory("a")
    assert [third.get(key) for key in KEYS] == [RIGHT, None, WRONG, None]


def test_what_would_move_the_cursor_of_a_terminal_is_not_printed(memory: Any) -> None:
    kept = memory("a")
    kept.add(KEYS[0], KernelVerdict(check="static", refusal=Refusal(check="static", reason="\x1b[2Jcleared")))
    kept.save()
    assert memory("a").get(KEYS[0]).refusal.reason == "\ufffd[2Jcleared"


def test_a_cache_that_cannot_be_written_is_a_problem_and_verdicts_hold_until_the_end(
    memory: Any, problems: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    kept = memory("a")
    kept.add(KEYS[0], RIGHT)
    kept.save()
    kept.save()
    assert kept.get(KEYS[0]) == RIGHT
    (problem,) = problems
    assert isinstance(problem, VerdictsError)
    assert "TUNEHUB_CACHE" in str(problem)


def test_a_file_that_grew_too_large_begins_anew(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.compiler.verify.memory._MOST_BYTES", 200)
    for key in KEYS[:3]:
        kept = memory("a")
        kept.add(key, WRONG)
        kept.save()
    assert memory("a").get(KEYS[2]) == WRONG
    assert memory("a").file.stat().st_size < 400
