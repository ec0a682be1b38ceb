from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.tuning.journal import Journal, Trial

pytestmark = pytest.mark.fast


def trial(number: int) -> Trial:
    return Trial(task="a" * 32, trace=[[["GetSBlock", [], [str(number)], ["b0"]]], []], source="sketch", run_s=(1e-3,))


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    failed = Trial(task="b" * 32, trace=[[], []], source="evolutionary", error="does not build")
    for entry in (trial(0), failed, trial(1)):
        journal.append(entry)
    assert list(Journal(tmp_path).trials()) == [trial(0), failed, trial(1)]


def test_no_file_means_no_trials(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.heal()
    assert list(journal.trials()) == []
    assert not journal.path.exists()


@pytest.mark.parametrize("cut", [1, 2, 40, 100])
def test_a_torn_last_line_is_ignored_and_healed(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    for number in range(3):
        journal.append(trial(number))
    journal.path.write_bytes(journal.path.read_bytes()[:-cut])
    complete = [trial(0), trial(1)]
    if cut > 1:  # with only the newline missing the trial itself is whole, but its line is still open
        assert list(journal.trials()) == complete
    journal.heal()
    assert list(journal.trials()) == complete
    journal.append(trial(7))
    assert list(journal.trials()) == [*complete, trial(7)]


def test_a_file_that_is_one_torn_line_heals_to_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.path.write_bytes(b'{"task": "' + b"x" * 200_000)
    journal.heal()
    assert journal.path.read_bytes() == b""


def test_healing_looks_further_back_than_one_block(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(trial(0))
    good = journal.path.read_bytes()
    journal.path.write_bytes(good + b"y" * 200_000)
    journal.heal()
    assert journal.path.read_bytes() == good


@pytest.mark.parametrize(
    "line", [b"hello\n", b'{"task": "a"}\n', b'{"task":"a","trace":[],"source":"s","run_s":[null]}\n']
)
def test_a_foreign_line_is_an_error_with_its_number_and_a_remedy(tmp_path: Path, line: bytes) -> None:
    journal = Journal(tmp_path)
    journal.append(trial(0))
    with journal.path.open("ab") as file:
        file.write(line)
    journal.append(trial(1))
    with pytest.raises(WorkDirectoryError, match=r"trials\.jsonl: line 2 is not a trial.*delete that line"):
        list(journal.trials())


def test_a_full_disk_is_an_error_that_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.append(trial(0))

    def full(_descriptor: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(WorkDirectoryError, match=r"No space left on device.*free some space"):
            journal.append(trial(1))
    journal.heal()
    journal.append(trial(2))
    assert trial(0) in journal.trials()
    assert trial(2) in journal.trials()
