"""What a person sees while tuning: a bar on a terminal, plain lines elsewhere; nothing of what TVM's C++ prints."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from tunehub.report.delayed_bar import folded_column, whole_column
from tunehub_registry.printable import plain

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_SECONDS_BETWEEN_LINES = 5.0


class Named(Protocol):
    """What is tuned, as far as progress is concerned."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Label:
    """A name for what has no other object."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One step of tuning, for whoever shows it: counts of trials, seconds since the start, the task's best time.

    ``planned`` is an estimate: how many candidates a task has shows when it is tuned. ``finished``: the step ends the
    task, number ``position`` (from 1) of ``tasks``. ``failures``: the failed trials by reason, where that is known.
    """

    task: Named
    position: int
    tasks: int
    done: int
    planned: int
    failed: int
    measured_now: int
    elapsed_s: float
    best_s: float
    finished: bool
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialTotals:
    """What a tuner did. ``trials``, ``failed`` and ``failures`` (by reason, where that is known) are those of the tuned
    tasks in the work directory, earlier runs included; ``notes`` are lines for the user."""

    tasks: int
    trials: int
    failed: int
    measured_now: int
    elapsed_s: float
    failures: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class TrialCount:
    """Counts trials over the tasks of a run, and makes the steps of progress out of them.

    ``planned`` is for all tasks and includes the trials that are known from earlier runs. A failure whose reason is not
    told has the reason "".
    """

    def __init__(self, tasks: int, show: Callable[[Progress], None], planned: int = 0) -> None:
        self.tasks = tasks
        self.planned = planned
        self.trials = 0
        self.measured_now = 0
        self.failures: Counter[str] = Counter()
        self._show = show
        self._start = monotonic()

    def known(self, trials: int, failures: Mapping[str, int]) -> None:
        """Add trials of earlier runs; ``failures`` among them by reason."""
        self.trials += trials
        self.failures.update(failures)

    def measured(self, reason: str | None) -> None:
        """Add a trial of this run; ``reason`` says why it failed, None that it did not."""
        self.known(1, {} if reason is None else {reason: 1})
        self.measured_now += 1

    @property
    def elapsed_s(self) -> float:
        """Seconds since the count began."""
        return monotonic() - self._start

    def step(self, task: Named, position: int, best_s: float = math.inf, *, finished: bool = False) -> None:
        """Show a step of ``task``, number ``position`` from 1; see :class:`Progress`."""
        self._show(
            Progress(
                task=task,
                position=position,
                tasks=self.tasks,
                done=self.trials,
                planned=max(self.trials, self.planned),
                failed=self.failures.total(),
                measured_now=self.measured_now,
                elapsed_s=self.elapsed_s,
                best_s=best_s,
                finished=finished,
                failures=self._by_reason(),
            )
        )

    def totals(self, notes: Iterable[str] = ()) -> TrialTotals:
        """The end of it."""
        return TrialTotals(
            tasks=self.tasks,
            trials=self.trials,
            failed=self.failures.total(),
            measured_now=self.measured_now,
            elapsed_s=self.elapsed_s,
            failures=self._by_reason(),
            notes=tuple(notes),
        )

    def _by_reason(self) -> dict[str, int]:
        return {reason: count for reason, count in self.failures.items() if reason}


class Reporter(Protocol):
    """Shows the steps of a tuning run. Use it as a context manager."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, progress: Progress) -> None:
        """Show one step; called after every batch and at the end of every task."""


@contextmanager
def native_output_to(log: Path) -> Iterator[TextIO]:
    """Send file descriptor 2 to ``log``, where TVM's C++ warnings go then; yields a stream to the real one."""
    sys.stderr.flush()
    real = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 2)
    os.close(target)
    try:
        with os.fdopen(os.dup(real), "w", buffering=1, encoding="utf-8", errors="replace") as stream:
            yield stream
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        os.close(real)


def reporter(stream: TextIO) -> Reporter:
    """The bar when ``stream`` is a terminal, else lines."""
    return BarReporter(stream) if stream.isatty() else LineReporter(stream)


class LineReporter:
    """One line for every finished task, and for the task at work at most one every 5 s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = -math.inf

    def __enter__(self) -> LineReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()

    def show(self, progress: Progress) -> None:
        """See :class:`Reporter`."""
        if not progress.finished and monotonic() - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = monotonic()
        what = "finished" if progress.finished else "tuning"
        parts = [
            f"[{progress.position}/{progress.tasks}] {what} {plain(progress.task.name)}",
            f"best {milliseconds(progress.best_s)}",
            f"{progress.done}/{progress.planned} trials",
            failures_text(progress.failed, progress.failures),
            f"{trials_per_hour(progress):.0f} trials/h",
            f"{duration(seconds_left(progress))} left",
        ]
        self._stream.write(", ".join(parts) + "\n")
        self._stream.flush()


class BarReporter:
    """A live bar; finished tasks stay above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        # Brackets are no markup: a link is an escape.
        name = TextColumn("{task.description}", markup=False, table_column=folded_column())
        figures = TextColumn("{task.fields[figures]}", markup=False, table_column=folded_column())
        bar = BarColumn(bar_width=20, table_column=whole_column())
        columns = (name, bar, MofNCompleteColumn(table_column=whole_column()), figures)
        self._bar: Bar = Progress(*columns, console=Console(file=stream))
        self._row = self._bar.add_task("preparing", total=None, figures="")

    def __enter__(self) -> BarReporter:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        """See :class:`Reporter`."""
        name = plain(progress.task.name)
        if progress.finished:
            text = f"[{progress.position}/{progress.tasks}] {name}: {milliseconds(progress.best_s)}"
            self._bar.console.print(text, markup=False, highlight=False)
        figures = (
            f"best {milliseconds(progress.best_s)} · {trials_per_hour(progress):.0f} trials/h · "
            f"{failures_text(progress.failed, progress.failures)} · {duration(seconds_left(progress))} left"
        )
        short = name if len(name) <= 32 else name[:31] + "…"
        self._bar.update(self._row, description=short, completed=progress.done, total=progress.planned, figures=figures)


def trials_per_hour(progress: Progress) -> float:
    """The rate of this run, searching included."""
    return progress.measured_now / progress.elapsed_s * 3600 if progress.elapsed_s > 0 else 0.0


def seconds_left(progress: Progress) -> float:
    """An estimate from this run's rate; infinite while nothing is measured."""
    rate = trials_per_hour(progress) / 3600
    left = progress.planned - progress.done
    return left / rate if rate else (math.inf if left else 0.0)


def failures_text(failed: int, reasons: Mapping[str, int]) -> str:
    """``3 failed (BUILD_TIMEOUT 2, RUNTIME_DEVICE 1)``, the most frequent reason first."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{name} {count}" for name, count in ordered)
    return f"{failed} failed ({listed})" if listed else f"{failed} failed"


def duration(seconds: float) -> str:
    """``1:02:03`` or ``?``."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def milliseconds(seconds: float) -> str:
    """``0.123 ms``, or ``none`` for no time at all."""
    return f"{seconds * 1e3:.4g} ms" if math.isfinite(seconds) else "none"
