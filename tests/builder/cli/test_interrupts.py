"""Commands that tune and judge end when they are asked to."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import click
import pytest

from tunehub_builder.cli import errors

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_asked_to_end_is_heard_where_it_was_swallowed_at_first(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_AGAIN_S", 0.01)
    before = signal.getsignal(number)
    with pytest.raises(click.ClickException, match="interrupted; what was measured is in"), errors.resumable(tmp_path):
        with suppress(KeyboardInterrupt):  # as TVM does, which makes another error of it
            os.kill(os.getpid(), number)
            time.sleep(60)
        time.sleep(60)
    assert signal.getsignal(number) == before and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
