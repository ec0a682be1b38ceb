"""Expected errors of the builder's commands as messages and exit codes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tunehub_builder.exceptions import BuilderError, NoSuchTargetError
from tunehub_registry.installing import pip_install


@contextmanager
def errors() -> Iterator[None]:
    """Expected errors become one line: exit code 2 for a name that does not exist, else 1."""
    try:
        yield
    except Exception as error:
        expected = _as_click_error(error)
        if expected is None:
            raise
        raise expected from error


def _as_click_error(error: Exception) -> click.ClickException | None:
    """The error for the user, None for one that nobody expected. What tells errors apart is imported only here."""
    from tunehub.exceptions import UsageError
    from tunehub_builder.networks import NetworkError, UnknownNetworkError
    from tunehub_registry.exceptions import RegistryError

    if isinstance(error, (NoSuchTargetError, UnknownNetworkError, UsageError)):
        return click.UsageError(str(error))
    if isinstance(error, (BuilderError, NetworkError, RegistryError)):
        return click.ClickException(str(error))
    if isinstance(error, OSError) and error.strerror is not None:  # a disk that is full names no file
        place = "" if error.filename is None else f"{error.filename}: "
        return click.ClickException(f"{place}{error.strerror}; give a place that can be read and written")
    if not isinstance(error, ImportError):
        return None
    from tunehub.target.tvm_generation import find_tvm

    found = find_tvm()
    extra = "legacy" if found is not None and found.generation == "relay" else "builder"
    return click.ClickException(f"{error}: the builder's packages are missing; {pip_install(extra)}")


_AGAIN_S = 5.0


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end tuning with a message instead of a traceback, also where TVM swallows what they raise, or
    a thread that is waited for does not end: it is raised again every few seconds."""
    stopped = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        yield
    except BaseException as error:
        # An interrupt inside a callback of TVM comes back as an error of TVM.
        if stopped or isinstance(error, KeyboardInterrupt):
            message = f"interrupted; what was measured is in {directory}: run the same command again to go on"
            raise click.ClickException(message) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
