"""When other programs disturbed what was measured, and that it is measured again when all else is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from tunehub.comparison.protocol import interquartile_range
from tunehub.compiler.measure.quiet import may_repeat

TRIES = 3
DISTURBED = 0.1  # of the median
UNJUDGED = "other programs disturbed its times; the same call judges it again"

_Case = TypeVar("_Case")
_Found = TypeVar("_Found")
_Verdict = TypeVar("_Verdict", bound=Any)  # a msgspec.Struct, as NetworkVerdict or Verdict


def spread(samples: Sequence[float]) -> float:
    """How far the quartiles of samples are apart, over their median; 0 where there are none."""
    return interquartile_range(samples) / statistics.median(samples) if samples else 0.0


def is_disturbed(samples: Sequence[float]) -> bool:
    """Whether samples are so far apart that other programs were at work: they say nothing for or against a record."""
    return spread(samples) > DISTURBED


def settled(verdict: _Verdict) -> _Verdict:
    """``verdict``, or that it is none: what speaks against the records are times that other programs disturbed.
    What does not build or computes something else stays what it is."""
    difference, most = getattr(verdict, "difference", None), getattr(verdict, "tolerance", math.inf)  # of networks
    is_wrong = difference is not None and difference > most
    was_measured = verdict.tuned_s or any(each.run_s for each in getattr(verdict, "finalists", ()))
    times = (verdict.default_s, verdict.tuned_s)
    if verdict.admitted or is_wrong or not was_measured or not any(map(is_disturbed, times)):
        return verdict
    return msgspec.structs.replace(verdict, reason=UNJUDGED)


def all_settled(judged: Iterable[Sequence[_Verdict]]) -> Iterator[list[_Verdict]]:
    """:func:`settled` of all verdicts on each case."""
    return (list(map(settled, verdicts)) for verdicts in judged)


def unjudged_of(verdicts: Iterable[Any]) -> Iterator[Hashable]:
    """The subjects of those verdicts that are none."""
    return (verdict.subject for verdict in verdicts if verdict.reason == UNJUDGED)


def until_undisturbed(
    cases: Sequence[_Case],
    subjects: Callable[[_Case], Iterable[Hashable]],
    judge: Callable[[Sequence[_Case]], Iterable[_Found]],
    unjudged: Callable[[_Found], Iterable[Hashable]],
) -> Iterator[tuple[_Found, int, int]]:
    """What ``judge`` finds of ``cases`` with its position and their number; then of those with ``subjects`` that are
    ``unjudged``, in `TRIES` rounds at most, where the environment lets measurements be repeated.

    Raises SettingError."""
    for _ in range(TRIES if may_repeat() else 1):
        if not cases:
            return
        disturbed = set[Hashable]()
        for position, found in enumerate(judge(cases), 1):
            disturbed.update(unjudged(found))
            yield found, position, len(cases)
        cases = [case for case in cases if not disturbed.isdisjoint(subjects(case))]
