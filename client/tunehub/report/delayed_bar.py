"""A progress bar on stderr: on a terminal, and only when something takes longer than people like to wait."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.table import Column

PATIENCE_S = 2.0
_BAR = 20  # letters; the rest of a line is for texts
Bar = TypeVar("Bar", bound="DelayedBar")


def whole_column() -> Column:
    """A column of rich that a narrow terminal does not cut."""
    from rich.table import Column

    return Column(no_wrap=True)


def folded_column() -> Column:
    """A column of rich whose text takes several lines on a narrow terminal."""
    from rich.table import Column

    return Column(overflow="fold")


class DelayedBar:
    """Count what is done of `total` steps; the bar shows itself after `PATIENCE_S`."""

    def __init__(self, text: str, total: int | None = None) -> None:
        """Shows nothing yet. `total` is None where it is not known before."""
        self._text = text
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._bar: Any = None
        self._on = sys.stderr.isatty()
        self._lock = threading.Lock()  # uploads count from several threads

    def __call__(self, count: int) -> None:
        """`count` more steps are done; 0 only looks whether it is time to show the bar."""
        with self._lock:
            self._done += count
            if self._bar is None and self._on and time.monotonic() - self._began > PATIENCE_S:
                self._show()
            if self._bar is not None:
                self._bar.update(0, completed=self._done if self._total is None else min(self._done, self._total))

    def __enter__(self: Bar) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def columns(self) -> tuple[Any, ...]:
        """What stands behind the bar: columns of rich."""
        from rich.progress import MofNCompleteColumn

        return (MofNCompleteColumn(table_column=whole_column()),)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        bar = BarColumn(bar_width=_BAR, table_column=whole_column())
        text = TextColumn("{task.description}", markup=False, table_column=folded_column())
        columns = (text, bar, *self.columns())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bar.add_task(self._text, total=self._total)
        self._bar.start()
