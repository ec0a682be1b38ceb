"""Measurements that other programs disturb are repeated, for as long as somebody has the patience."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from tunehub.compiler.measure import quiet
from tunehub.compiler.measure.quiet import PATIENCE, Patience, undisturbed
from tunehub.exceptions import SettingError

pytestmark = pytest.mark.fast

ATTEMPTS = len(quiet._PAUSES_S)
Machine = Callable[..., tuple[tuple[float, ...], int]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Times of a measurement and how often it was made on a machine that gets quiet after some attempts."""
    monkeypatch.setattr(quiet, "_PAUSES_S", (0.0,) * ATTEMPTS)
    monkeypatch.delenv(PATIENCE, raising=False)

    def run(noisy: int, patience: Patience | None = None) -> tuple[tuple[float, ...], int]:
        made = 0

        def measure() -> tuple[float, ...]:
            nonlocal made
            made += 1
            return (3.0, 10.0 - made)

        waited: Iterator[float] = chain.from_iterable((0.0, 9.0 * (number < noisy)) for number in range(ATTEMPTS))
        monkeypatch.setattr(quiet, "_waited_s", lambda: next(waited))
        return undisturbed(measure, patience), made

    return run


def test_the_first_quiet_measurement_counts(measured: Machine) -> None:
    assert measured(0) == ((3.0, 9.0), 1)
    assert measured(2) == ((3.0, 7.0), 3)


def test_on_a_machine_that_is_never_quiet_the_fastest_counts(measured: Machine) -> None:
    assert measured(ATTEMPTS) == ((3.0, 10.0 - ATTEMPTS), ATTEMPTS)


def test_without_patience_nothing_is_repeated(measured: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(ATTEMPTS, Patience(left=0.0))[1] == 1
    shared = Patience(left=1e-9)
    assert [measured(ATTEMPTS, shared)[1], measured(ATTEMPTS, shared)[1]] == [2, 1]
    monkeypatch.setenv(PATIENCE, "0")
    assert measured(ATTEMPTS)[1] == measured(ATTEMPTS, Patience(left=9.0))[1] == 1


def test_seconds_that_are_no_number_are_named(measured: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE, "a while")
    with pytest.raises(SettingError, match=r"TUNEHUB_PATIENCE: 'a while': is not a number of seconds \(give seconds"):
        measured(0)
