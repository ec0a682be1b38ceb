"""A progress bar for transfers."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

from tunehub.report.delayed_bar import DelayedBar, whole_column


class TransferBar(DelayedBar):
    """Count the bytes of a transfer."""

    def counting(self, stream: BinaryIO) -> BinaryIO:
        """What writes to `stream`, and counts."""
        return cast("BinaryIO", _Counted(stream, self))

    def columns(self) -> tuple[Any, ...]:
        """As the base says."""
        from rich.progress import DownloadColumn, TransferSpeedColumn

        return DownloadColumn(table_column=whole_column()), TransferSpeedColumn(table_column=whole_column())


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
