from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tunehub_builder.tuning.progress import (
    BarReporter,
    LineReporter,
    Progress,
    duration,
    failures_text,
    milliseconds,
    native_output_to,
    reporter,
)
from tunehub_builder.tuning.tasks import TuningTask

pytestmark = pytest.mark.fast


def step(**changes: Any) -> Progress:
    task = TuningTask(name="fused_conv2d", exact="a" * 32, anchor=None, count=1, networks=("net",), mod=None)
    fields: dict[str, Any] = {
        "task": task, "position": 1, "tasks": 3, "done": 10, "planned": 30, "failed": 2, "measured_now": 5,
        "elapsed_s": 10.0, "best_s": 1.5e-3, "finished": False,
    }  # fmt: skip
    return Progress(**{**fields, **changes})


def test_lines_come_at_most_every_few_seconds_and_for_every_finished_task() -> None:
    stream = io.StringIO()
    with LineReporter(stream) as lines:
        for _ in range(50):
            lines.show(step())
        lines.show(step(finished=True))
        lines.show(step(position=2, finished=True, best_s=math.inf))
    first, second, third = stream.getvalue().splitlines()
    assert first == "[1/3] tuning fused_conv2d, best 1.5 ms, 10/30 trials, 2 failed, 1800 trials/h, 0:40 left"
    assert second.startswith("[1/3] finished fused_conv2d")
    assert "best none" in third


@pytest.mark.parametrize("kind", [LineReporter, BarReporter])
def test_the_name_of_a_task_is_plain_text(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "\n::e\x1b]\x07\u202e[link=h:]y[/link]"
    task = TuningTask(name=name, exact="a" * 32, anchor=None, count=1, networks=("net",), mod=None)
    stream = Terminal() if kind is BarReporter else io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    with kind(stream) as shown:
        shown.show(step(task=task))
        shown.show(step(task=task, finished=True))
    text = stream.getvalue()
    assert "[link=h:]y[/link]" in text and "\x1b]" not in text and "\u202e" not in text
    assert not any(line.strip().startswith("::") for line in text.splitlines())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_failures_come_with_their_reasons() -> None:
    assert failures_text(0, {}) == "0 failed"
    assert failures_text(3, {"RUN_TIMEOUT": 1, "COMPILE_HOST": 2}) == "3 failed (COMPILE_HOST 2, RUN_TIMEOUT 1)"


def test_the_bar_takes_every_step() -> None:
    stream = io.StringIO()
    with BarReporter(stream) as bar:
        bar.show(step())
        bar.show(step(finished=True, elapsed_s=0.0))
    assert "[1/3] fused_conv2d: 1.5 ms" in stream.getvalue()


def test_a_stream_that_is_no_terminal_gets_lines() -> None:
    assert isinstance(reporter(io.StringIO()), LineReporter)


def test_native_messages_go_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    with native_output_to(log) as stream:
        os.write(2, b"a warning of TVM\n")
        stream.write("progress\n")
    os.write(2, b"after\n")
    assert log.read_text() == "a warning of TVM\n"
    assert capfd.readouterr().err == "progress\nafter\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (61, "1:01"), (3723, "1:02:03"), (math.inf, "?"), (math.nan, "?")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times() -> None:
    assert (milliseconds(1.23456e-4), milliseconds(math.inf)) == ("0.1235 ms", "none")
