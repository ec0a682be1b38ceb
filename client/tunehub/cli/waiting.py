"""What is being done, and for how long: on a terminal a line of stderr that moves, elsewhere a line once."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tunehub.cli.output import say
from tunehub.report.delayed_bar import folded_column

_PER_SECOND = 4  # seldom: it is shown while times are measured


class WaitingLine:
    """Show `text` while the context lasts."""

    def __init__(self, text: str) -> None:
        """Shows nothing yet."""
        self._text = text
        self._progress: Any = None

    def __enter__(self) -> WaitingLine:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            say(self._text, err=True)
            return self
        text = TextColumn("{task.description}", markup=False, table_column=folded_column())
        columns = (SpinnerColumn(), TimeElapsedColumn(), text)
        self._progress = Progress(*columns, console=console, transient=True, refresh_per_second=_PER_SECOND)
        self._progress.add_task(self._text, total=None)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
