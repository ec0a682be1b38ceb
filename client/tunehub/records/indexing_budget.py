"""What indexing packages may cost a compile: a package is somebody else's, and valid ones can be endless work."""

from __future__ import annotations

import time
from typing import BinaryIO, cast

MAX_PACKAGE_BYTES = 64 << 20  # a hundred times the largest embedded one
MAX_UNPACKED_BYTES = 64 << 20  # of records and evidence together
_LEAST_S = 1.0
_SHARE = 0.1  # of the time that a compile may wait for the network
_PACKAGES = 2  # so many may use all of their time in one opening
_STRIDE = 1 << 16  # work between two looks at the clock
_LINE = 64  # of that, what a line costs besides its bytes


class TooExpensiveError(Exception):
    """Indexing a package would take more than it may. `allowed`: the seconds that it had; infinite where more time
    would not help."""

    def __init__(self, reason: str, allowed: float = float("inf")) -> None:
        super().__init__(reason)
        self.allowed = allowed


class IndexingBudget:
    """Processor time of one opening: that of the clock would make it depend on what else the machine does."""

    def __init__(self, budget: float | None) -> None:
        """`budget`: the seconds that a compile may wait for the network, None for no limit."""
        self._each = float("inf") if budget is None else max(_LEAST_S, _SHARE * budget)
        self._left = _PACKAGES * self._each

    @property
    def allowed(self) -> float:
        """The seconds that the next package may take."""
        return min(self._each, self._left)

    def meter(self) -> Meter:
        """For one package, which begins now."""
        return Meter(self.allowed)

    def spend(self, seconds: float) -> None:
        """A package took so long."""
        self._left = max(0.0, self._left - seconds)


class Meter:
    """Limits the work on what is read of one package's files, line by line."""

    def __init__(self, allowed: float) -> None:
        """`allowed`: seconds of this thread's processor time from now on."""
        self._allowed = allowed
        self._began = time.thread_time()

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.thread_time() - self._began

    def check(self) -> None:
        """Raises TooExpensiveError when the time is over."""
        if self.spent > self._allowed:
            raise TooExpensiveError(f"indexing it takes over {self._allowed:.3g} s of processor time", self._allowed)

    def limited(self, stream: BinaryIO) -> BinaryIO:
        """The stream; reading its lines raises TooExpensiveError when the time is over."""
        return cast("BinaryIO", _MeteredLines(stream, self))


class _MeteredLines:
    def __init__(self, stream: BinaryIO, meter: Meter) -> None:
        self._stream, self._meter = stream, meter
        self._until_check = 0

    def readline(self, size: int = -1, /) -> bytes:
        line = self._stream.readline(size)
        self._until_check -= len(line) + _LINE
        if self._until_check <= 0:
            self._meter.check()
            self._until_check = _STRIDE
        return line

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _MeteredLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
