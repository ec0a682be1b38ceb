"""The work directory's journal: one line for every trial, appended and synced, so that a kill loses what is in flight.

A reader tolerates a torn last line (the writer was killed in the middle of it).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tunehub_builder.exceptions import WorkDirectoryError


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured candidate: ``run_s`` in seconds (empty after a failure, which ``error`` explains)."""

    task: str
    trace: Any
    source: str
    run_s: tuple[float, ...] = ()
    error: str | None = None

    @property
    def mean_s(self) -> float:
        """Mean of the measured times in seconds; infinite for a failure."""
        return sum(self.run_s) / len(self.run_s) if self.run_s else float("inf")


class Journal:
    """Trials of one work directory, in ``trials.jsonl``. One process writes at a time (the tuner holds a lock)."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "trials.jsonl"

    def append(self, trial: Trial) -> None:
        """Write one line and sync it. Raises WorkDirectoryError when the disk refuses."""
        line = msgspec.json.encode(trial) + b"\n"
        try:
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WorkDirectoryError(
                self.path, f"cannot append a trial: {error}", "free some space and resume"
            ) from error

    def trials(self) -> Iterator[Trial]:
        """Yield the trials written so far, one line in memory at a time.

        Raises WorkDirectoryError for a line, not the last, that is no trial.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    if line.strip():
                        yield msgspec.json.decode(line, type=Trial)
                except msgspec.DecodeError as error:
                    if not line.endswith(b"\n"):  # the last line, torn by a kill
                        return
                    remedy = "delete that line, or start a new work directory"
                    raise WorkDirectoryError(self.path, f"line {number} is not a trial: {error}", remedy) from error

    def heal(self) -> None:
        """Cut a torn last line off, so that the next trial starts on a line of its own."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            with self.path.open("r+b") as file:
                file.truncate(end)
