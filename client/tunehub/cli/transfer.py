"""A progress bar for transfers: on a terminal, and only when they take longer than people like to wait."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, BinaryIO, cast

PATIENCE_S = 2.0


class TransferBar:
    """Count the bytes of a transfer of `total` bytes; the bar shows itself after `PATIENCE_S`, on stderr."""

    def __init__(self, text: str, total: int | None = None) -> None:
        """Shows nothing yet. `total` is None where it is not known before."""
        self._text = text
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._bar: Any = None
        self._on = sys.stderr.isatty()

    def __call__(self, count: int) -> None:
        """`count` more bytes were moved."""
        self._done += count
        if self._bar is None and self._on and time.monotonic() - self._began > PATIENCE_S:
            self._show()
        if self._bar is not None:
            self._bar.update(0, completed=self._done if self._total is None else min(self._done, self._total))

    def counting(self, stream: BinaryIO) -> BinaryIO:
        """What writes to `stream`, and counts."""
        return cast("BinaryIO", _Counted(stream, self))

    def __enter__(self) -> TransferBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bar.add_task(self._text, total=self._total)
        self._bar.start()


class _Counted:
    """The part of a stream that downloads use."""

    def __init__(self, stream: BinaryIO, bar: TransferBar) -> None:
        self._stream = stream
        self._bar = bar

    def write(self, data: bytes, /) -> int:
        self._bar(len(data))
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()
