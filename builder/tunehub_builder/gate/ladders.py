"""From the times of some choices at some sizes to a ladder of them: what is fastest where, in few steps, and nowhere
slower than TVM's default. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from statistics import geometric_mean, median

import msgspec

from tunehub.comparison.protocol import MARGIN
from tunehub.kernels.cuda.templates import VERSIONS
from tunehub_builder.gate.comparison import ComparedFinalists
from tunehub_builder.gate.finalists import is_measured
from tunehub_builder.tuning.journal import KnobChoice, Trial
from tunehub_builder.tuning.search.knobs import RULE

_STEP_GAIN = math.log(1.1)  # what one step more must gain, over all sizes together: less is noise
_MOST_STEPS = 8
_TILE_LENGTHS = {"rows": ("large", "small"), **dict.fromkeys(VERSIONS, ("length",))}
"""By template the knobs that are lengths of tiles along an open axis; tiles of others are 1 long."""
FINALISTS = 4
FEWEST_SIZES = 6
OVER_RULE = 1.05
"""What a ladder must gain over what serves without a record. More than the margin of a comparison: each step is a
kernel that every compile makes. BERT-base's gained 1.03, and its open model took 2.43 of the fixed one's compile time,
not 1.35."""


class SizeTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in seconds where the symbols have the values ``at``: of TVM's default, and of each choice."""

    at: tuple[int, ...]
    default_s: float
    run_s: tuple[float, ...]

    @property
    def size(self) -> int:
        """The product of the values."""
        return math.prod(self.at)


class ChosenStep(msgspec.Struct, frozen=True, kw_only=True):
    """For sizes up to ``up_to`` (None: all above) the choice with a number, or TVM's default."""

    up_to: int | None
    choice: int | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The fewest logarithms of seconds for the sizes from one on, and the ends of its steps with their choices."""

    cost: float
    steps: tuple[tuple[int, int | None], ...]


def sizes_to_check(
    points: Iterable[tuple[int, ...]], probes: Iterable[tuple[int, ...]], choices: Iterable[KnobChoice] = ()
) -> list[tuple[int, ...]]:
    """The values of the symbols to compare and time at, by rising size: the tuned ``points``, and, as far as they are
    no larger, the ``probes`` of checks and those around the ends of the tiles that ``choices`` name. Larger ones, where
    TVM's default takes minutes, only until there are ``FEWEST_SIZES``."""
    found = set(points)
    most, symbols = max(map(math.prod, found)), len(next(iter(found)))
    for at in sorted(set(probes) - found, key=lambda at: (math.prod(at), at)):
        if math.prod(at) <= most or len(found) < FEWEST_SIZES:
            found.add(at)
    found |= {at for at in _around_tiles(choices, symbols) if math.prod(at) <= most}
    return sorted(found, key=lambda at: (math.prod(at), at))


def _around_tiles(choices: Iterable[KnobChoice], symbols: int) -> Iterator[tuple[int, ...]]:
    """Where the size is that of one tile or two, and one less and more: there the last tile is whole, or a remainder of
    one. The last symbol has it all."""
    for length in {each.knobs[name] for each in choices for name in _TILE_LENGTHS.get(each.template, ())}:
        for size in (tiles * length + more for tiles in (1, 2) for more in (-1, 0, 1)):
            if size:
                yield (*(1,) * (symbols - 1), size)


def ladder_of(times: Sequence[SizeTimes], choices: int) -> tuple[ChosenStep, ...]:
    """The steps with the least product of times, of which each one more has to pay.

    A choice serves a step only where it takes no longer than TVM's default at all its sizes. ``times``: of one size or
    more. The bound of a step is the largest of its sizes.
    """
    ordered = sorted(times, key=lambda each: each.size)
    groups = [(size, list(same)) for size, same in groupby(ordered, key=lambda each: each.size)]

    def cost(first: int, end: int, choice: int | None) -> float:
        measured = [each for _, same in groups[first:end] for each in same]
        if choice is None:
            return sum(math.log(each.default_s) for each in measured)
        if any(each.run_s[choice] > each.default_s for each in measured):
            return math.inf
        return sum(math.log(each.run_s[choice]) for each in measured)

    @cache
    def best(first: int, steps: int) -> _Plan:
        if first == len(groups):
            return _Plan(-_STEP_GAIN, ())
        found = [_Plan(math.inf, ())]
        for end in range(first + 1, len(groups) + 1) if steps else ():
            rest = best(end, steps - 1)
            for choice in (*range(choices), None):
                total = cost(first, end, choice) + rest.cost + _STEP_GAIN
                found.append(_Plan(total, ((end - 1, choice), *rest.steps)))
        return min(found, key=lambda plan: plan.cost)

    *lower, last = best(0, _MOST_STEPS).steps
    return (
        *(ChosenStep(up_to=groups[end][0], choice=choice) for end, choice in lower),
        ChosenStep(up_to=None, choice=last[1]),
    )


def step_at(steps: Iterable[ChosenStep], size: int) -> ChosenStep:
    """The step that serves a size."""
    return next(step for step in steps if step.up_to is None or size <= step.up_to)


def seconds(times: SizeTimes, steps: Iterable[ChosenStep]) -> float:
    """What a ladder takes there."""
    choice = step_at(steps, times.size).choice
    return times.default_s if choice is None else times.run_s[choice]


def mean_seconds(times: Sequence[SizeTimes], steps: Sequence[ChosenStep]) -> tuple[float, float]:
    """Geometric means over the sizes: what the default takes, and what a ladder does."""
    return geometric_mean(t.default_s for t in times), geometric_mean(seconds(t, steps) for t in times)


def no_gain_reason(times: Sequence[SizeTimes], steps: Sequence[ChosenStep], own: int | None = None) -> str | None:
    """Why a ladder is not worth publishing; None when it is. ``own``: the choice that a client makes without it."""
    default_s, run_s = mean_seconds(times, steps)
    gain = default_s / run_s
    if gain <= MARGIN:
        return f"no choice is faster than TVM's default: {gain:.3g} times as fast"
    rule = () if own is None else (ChosenStep(up_to=None, choice=own),)
    over_rule = mean_seconds(times, rule)[1] / run_s if rule else math.inf
    if over_rule > OVER_RULE:
        return None
    return f"{over_rule:.3g} times as fast as what serves without a record; the least is {OVER_RULE:.3g}"


def is_doubtful(found: ComparedFinalists) -> bool:
    """Whether a choice seems to be slower than the default, and some of its samples are not."""
    timed = [each.run_s for each in found.finalists if each.reason is None and each.run_s]
    return bool(found.default_s) and any(
        median(run_s) > median(found.default_s) and min(run_s) < max(found.default_s) for run_s in timed
    )


def with_more(found: ComparedFinalists, more: ComparedFinalists) -> ComparedFinalists:
    """Both comparisons of the same choices together."""
    finalists = tuple(
        msgspec.structs.replace(
            first,
            run_s=first.run_s + second.run_s,
            reason=first.reason or second.reason,
            difference=max(first.difference or 0.0, second.difference or 0.0),
        )
        for first, second in zip(found.finalists, more.finalists, strict=True)
    )
    return replace(found, finalists=finalists, default_s=found.default_s + more.default_s)


def ladder_finalists(trials: Sequence[Trial], points: Sequence[tuple[int, ...]]) -> list[KnobChoice]:
    """The choices to compare: what serves without a record, the fastest at all sizes together, then the fastest at
    each, those first whose size gains most; ``FINALISTS`` at most. Without a record tiles for CUDA are those of the
    rule, all together, measured or not; knobs for CPUs those measured first."""
    measured = [trial for trial in trials if is_measured(trial) and trial.points == tuple(points)]
    if not measured:
        return []
    best = min(measured, key=lambda trial: trial.mean_s)
    single = [(min(measured, key=lambda trial: trial.run_s[place]), place) for place in range(len(points))]
    gaining = sorted(single, key=lambda found: found[0].run_s[found[1]] / best.run_s[found[1]])
    first = measured[0].choice
    of_tiles = any(trial.choice is not None and trial.choice.template in VERSIONS for trial in measured)
    found: list[KnobChoice] = []
    for choice in (RULE if of_tiles else first, best.choice, *(trial.choice for trial, _ in gaining)):
        if choice is not None and choice not in found:
            found.append(choice)
    return found[:FINALISTS]
