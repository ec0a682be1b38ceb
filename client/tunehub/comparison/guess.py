"""What a guess must promise: a schedule that nobody has measured for the workload. Pure."""

from __future__ import annotations

GUESS_MARGIN = 1.25  # times as fast as TVM's default: what a guess must promise


def against_guess(expected_s: float, default_s: float, *, launches_s: tuple[float, float] = (0.0, 0.0)) -> str | None:
    """Why a guess that should take ``expected_s`` is not used where TVM's default should take ``default_s``.

    ``launches_s``: so much of each is a launch of nothing else, which says nothing about either."""
    own_s, other_s = expected_s - launches_s[0], default_s - launches_s[1]
    if other_s >= GUESS_MARGIN * own_s:
        return None
    times = f"{microseconds(default_s)} µs, the best tile {microseconds(expected_s)}"
    return f"TVM's own schedule should take {times}; a guess must promise {GUESS_MARGIN:.3g} times"


def microseconds(seconds: float) -> str:
    """A time for people, without its unit."""
    return f"{seconds * 1e6:.3g}"
