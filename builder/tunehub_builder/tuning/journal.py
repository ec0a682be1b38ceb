"""The work directory's journal: one line for every trial, appended and synced, so that a kill loses what is in flight.

A reader tolerates a torn last line (the writer was killed in the middle of it).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from tunehub._files.atomic import fill_file
from tunehub_builder.exceptions import WorkDirectoryError

T = TypeVar("T")


class KnobChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate of the tuner ``template``: the template's name and version, and its knobs by name."""

    template: str
    version: int
    knobs: dict[str, Any]


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured candidate: ``run_s`` in seconds (empty after a failure, which ``error`` explains).

    The candidate is a ``trace``, or for the tuner ``template`` a ``choice`` of knobs. Of a symbolic workload there is a
    time for each of the values of its symbols in ``points``.
    """

    task: str
    trace: Any = None
    choice: KnobChoice | None = None
    source: str
    run_s: tuple[float, ...] = ()
    error: str | None = None
    points: tuple[tuple[int, ...], ...] = ()

    @property
    def candidate(self) -> Any:
        """What a worker builds: the trace or the choice."""
        return self.trace if self.choice is None else self.choice

    @property
    def mean_s(self) -> float:
        """Mean of the measured times in seconds; infinite for a failure. Of sizes, which differ by orders of magnitude,
        the geometric mean."""
        return geometric_mean(self.run_s) if self.points and self.run_s else mean(self.run_s)

    @property
    def reason(self) -> str | None:
        """Why it failed: "", as the kinds of failures have no names here; None when it did not."""
        return None if self.error is None else ""


def mean(run_s: Sequence[float]) -> float:
    """The mean of measured times; infinite when there are none."""
    return sum(run_s) / len(run_s) if run_s else math.inf


def is_time(seconds: float) -> bool:
    """Whether this can be a measured time: JSON has no NaN, and 0 would win."""
    return math.isfinite(seconds) and seconds > 0


class LineJournal(Generic[T]):
    """Structures of one type, a line each, in a file that only grows. One process writes at a time."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self._kind = kind

    def append(self, *entries: T) -> None:
        """Write a line for each and sync them. Raises WorkDirectoryError when the disk refuses."""
        if entries:
            append_synced(self.path, b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))

    def entries(self) -> Iterator[T]:
        """Yield what was written so far, one line in memory at a time.

        Raises WorkDirectoryError for a line, not the last, that is something else.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    if line.strip():
                        yield msgspec.json.decode(line, type=self._kind)
                except msgspec.DecodeError as error:
                    if not line.endswith(b"\n"):  # the last line, torn by a kill
                        return
                    remedy = "delete that line, or start a new work directory"
                    reason = f"line {number} is not a {self._kind.__name__.lower()}: {error}"
                    raise WorkDirectoryError(self.path, reason, remedy) from error

    def heal(self) -> None:
        """Cut a torn last line off, so that the next entry starts on a line of its own."""
        cut_torn_line(self.path)


class Journal(LineJournal[Trial]):
    """Trials of one work directory, in ``trials.jsonl``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "trials.jsonl", Trial)

    def trials(self) -> Iterator[Trial]:
        """The trials written so far; see :meth:`entries`."""
        return self.entries()


def append_synced(path: Path, lines: bytes) -> None:
    """Add whole lines to a file and sync it. Raises WorkDirectoryError when the disk refuses."""
    try:
        with path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        remedy = "free some space and run the same command again: it goes on from what is written"
        raise WorkDirectoryError(path, f"cannot append a line: {error}", remedy) from error


def write_atomically(path: Path, chunks: Iterable[bytes]) -> None:
    """Write ``path`` so that a reader sees the old or the new content, never a part. Raises WorkDirectoryError."""

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.writelines(chunks)
        temporary.chmod(0o644)  # temporary files are private

    try:
        fill_file(path, fill)
    except OSError as error:
        raise WorkDirectoryError(
            path, f"cannot be written: {error}", "free some space or mend its permissions"
        ) from error


def cut_torn_line(path: Path) -> None:
    """Cut what follows the last newline off a file of lines: its writer was killed in the middle of it."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = _end_of_last_line(file, size)
        if end != size:
            file.truncate(end)


def _end_of_last_line(file: BinaryIO, size: int) -> int:
    """The position after the last newline, found from the end."""
    block = 1 << 16
    for start in range(max(0, size - block), -block, -block):
        begin = max(0, start)
        file.seek(begin)
        found = file.read(block).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
    return 0
