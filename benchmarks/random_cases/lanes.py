"""Processes that try random cases one after the other, started again after a crash; what crashed one is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

_PATIENCE_S = 60.0  # for one case; a kernel whose barriers do not match may never end


def tried_in_lanes(command: Sequence[str], out: Path, seconds: float, seed: int, processes: int) -> None:
    """Run ``python -m *command FILE --alone --seed … --seconds …`` in ``processes`` at once for ``seconds``, and append
    the lines of all to ``out``. Such a process keeps the case that it tries in :func:`pending_of` of its file."""
    end = time.monotonic() + seconds
    lanes = [_Lane(command, out.with_name(f"{out.name}.{number}"), end) for number in range(processes)]
    seeds = count(1000 * seed)
    while sum(lane.goes_on(seeds) for lane in lanes):
        time.sleep(0.5)
    with out.open("ab") as whole:
        for lane in lanes:
            whole.write(lane.lines())


def pending_of(file: Path) -> Path:
    """Where the case lies that is being tried, as a line that says that it did not come back."""
    return file.with_name(f"{file.name}.pending")


class _Lane:
    """Processes that try cases one after the other, each until a case ends it, and write into one file."""

    def __init__(self, command: Sequence[str], file: Path, end: float) -> None:
        self._command, self._file, self._end = command, file, end
        self._process: subprocess.Popen[bytes] | None = None

    def goes_on(self, seeds: Iterator[int]) -> bool:
        """Start a process where none runs, end one that does not come back; False when the time is over."""
        left = self._end - time.monotonic()
        if self._process is None or self._process.poll() not in (None, 0):
            self._keep_pending()
            if left <= 0:
                return False
            command = [sys.executable, "-m", *self._command, str(self._file), "--alone"]
            self._process = subprocess.Popen([*command, "--seed", str(next(seeds)), "--seconds", str(left)])
        elif self._process.poll() == 0:
            return False
        elif self._is_stuck():
            self._process.kill()
            self._process.wait()
        return True

    def lines(self) -> bytes:
        """What was found; the file goes."""
        found = self._file.read_bytes() if self._file.exists() else b""
        self._file.unlink(missing_ok=True)
        return found

    def _is_stuck(self) -> bool:
        pending = pending_of(self._file)
        return pending.exists() and time.time() - pending.stat().st_mtime > _PATIENCE_S

    def _keep_pending(self) -> None:
        """A case that ended its process is a wrong one."""
        pending = pending_of(self._file)
        if pending.exists():
            with self._file.open("ab") as lines:
                lines.write(pending.read_bytes())
            pending.unlink()
