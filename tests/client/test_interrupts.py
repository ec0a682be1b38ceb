"""Ctrl-C while TVM calls Python, which makes an error without a message of it."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from tunehub.compiler.hub import open_hub
from tunehub.interrupts import CTRL_C, heeding, raise_if_asked

pytestmark = pytest.mark.fast


def swallowed() -> None:
    """What TVM does with an interrupt in Python that it calls."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError from None


def test_what_tvm_swallowed_is_raised_instead_of_its_error() -> None:
    with pytest.raises(KeyboardInterrupt), heeding():
        swallowed()


def test_what_was_taken_for_a_step_that_fails_is_raised_at_the_next_one_and_at_the_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), heeding():
        with pytest.raises(RuntimeError):
            swallowed()
        with pytest.raises(KeyboardInterrupt):
            raise_if_asked()
        reached.append("the end")
    assert reached
    raise_if_asked()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.filterwarnings("ignore::tunehub.HubWarning")
def test_a_hub_takes_no_interrupt_for_a_failure() -> None:
    hub = open_hub("llvm-znver5", strict=False)
    with pytest.raises(KeyboardInterrupt), heeding():
        try:
            swallowed()
        except RuntimeError as error:
            hub.failed("planning layouts", error)
    assert not [note for note in hub.report().notes if "planning" in note]


def test_errors_without_an_interrupt_go_through() -> None:
    with pytest.raises(RuntimeError, match="TVM"), heeding():
        raise RuntimeError("TVM's own")


def test_the_inner_one_leaves_all_to_the_outer_one() -> None:
    with pytest.raises(SystemExit), heeding({**CTRL_C, signal.SIGTERM: lambda: SystemExit(143)}):
        with heeding():
            handler = signal.getsignal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handler
        with contextlib.suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)


def test_a_programs_own_handler_stays() -> None:
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("own"))
    try:
        with heeding():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["own"]


def test_another_thread_can_compile() -> None:
    done = []

    def work() -> None:
        with heeding():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
