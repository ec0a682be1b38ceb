"""Ctrl-C during a compile.

Where TVM calls Python, it makes a RuntimeError without a message of a KeyboardInterrupt, and loses that of a SystemExit
as well. Whoever goes on without what failed would take it for a failed step, and compile the model in a slower way.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

Signals = Mapping[int, Callable[[], BaseException]]

CTRL_C: Signals = MappingProxyType({signal.SIGINT: KeyboardInterrupt})

_DEFAULT = (signal.default_int_handler, signal.SIG_DFL)

_asked: Callable[[], BaseException] | None = None
"""Makes what the last signal raised inside of `heeding`."""


@contextmanager
def heeding(signals: Signals = CTRL_C) -> Iterator[None]:
    """Inside, each of ``signals`` raises what it stands for, again at each `raise_if_asked` and at the end: also when
    TVM has swallowed it. Signals for which a program has a handler of its own, or another `heeding`, stay with that;
    outside of the main thread all do."""
    global _asked
    main = threading.current_thread() is threading.main_thread()
    mine = [number for number in signals if main and signal.getsignal(number) in _DEFAULT]
    if not mine:
        yield
        return

    def heed(number: int, _frame: object) -> None:
        global _asked
        _asked = signals[number]
        raise _asked()

    before = {number: signal.signal(number, heed) for number in mine}
    try:
        try:
            yield
        except Exception:
            raise_if_asked()
            raise
        raise_if_asked()
    finally:
        _asked = None
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_if_asked() -> None:
    """Raise what a signal stands for that came since `heeding` began."""
    if _asked is not None:
        raise _asked() from None
