"""Which record of an operator class to take for another shape: strategies, and what a transfer is likely to bring.

A strategy is a function of the class of the workload and its neighbours (records of the same class); it returns those
worth trying, best first. All are pure: ``python -m benchmarks transfer`` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.tir.operator_class import OperatorClass

if TYPE_CHECKING:
    from tunehub.records.lookup import Neighbour

Strategy = Callable[[OperatorClass, Sequence["Neighbour"]], "list[Neighbour]"]

# Of the model: the cost of a factor of two, as a share, as `python -m benchmarks transfer` fitted them.
WEIGHTS = (0.04, 0.045, 0.002)
_MOST_MISFIT = 3.0  # factors of two, of one axis: worse than that makes no difference
# TVM's default on CPUs is one scalar loop nest: 0.8 ns a step of convolutions and matmuls, 0.25 at its best.
_NAIVE_STEP_S = 0.25e-9
_OVERHEAD_S = 10e-6  # starting the thread pool
_MARGIN = 1.25


def nearest(own: OperatorClass, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    """Those of the most similar extents first."""
    return sorted(neighbours, key=lambda other: distance(own, other.extents))


def most_efficient(own: OperatorClass, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    """Those with the most steps a second on their own shape first, whatever it is."""
    return sorted(neighbours, key=lambda other: -rate(own, other))


def by_model(own: OperatorClass, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    """Those first that :func:`predicted_s` says are fastest."""
    return sorted(neighbours, key=lambda other: predicted_s(own, other))


def promising(own: OperatorClass, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    """The neighbours that are of this class indeed, and that the model finds faster than the default by a margin."""
    comparable = [other for other in neighbours if own.same_shape(other.extents) is not None]
    return [other for other in comparable if _is_worth_it(own, other)]


def distance(own: OperatorClass, extents: tuple[int, ...]) -> float:
    """Factors of two between the loops of the block that takes most of the time; infinite for another class."""
    pairs = _main_axes(own, extents)
    return math.inf if pairs is None else sum(abs(math.log2(mine / theirs)) for mine, theirs in pairs)


def rate(own: OperatorClass, other: Neighbour) -> float:
    """Steps a second of a neighbour on its own shape."""
    return _work(own, other.extents) / other.run_s


def features(own: OperatorClass, extents: tuple[int, ...]) -> tuple[float, float, float]:
    """What makes a transfer slower, in factors of two: tiles that do not divide, less work to share, distance."""
    pairs = _main_axes(own, extents) or []
    misfit = sum(min(_MOST_MISFIT, math.log2(min(a, b) / math.gcd(a, b))) for a, b in pairs)
    smaller = max(0.0, math.log2(_work(own, extents) / own.work))
    return misfit, smaller, distance(own, extents)


def predicted_s(own: OperatorClass, other: Neighbour, weights: Sequence[float] = WEIGHTS) -> float:
    """The time of the workload with the neighbour's schedule, in seconds: its rate, less what does not carry over."""
    losses = zip(weights, features(own, other.extents), strict=True)
    loss = sum(feature * math.log1p(weight) for weight, feature in losses)
    return own.work / rate(own, other) * math.exp(loss)


def predicted_default_s(own: OperatorClass, other: Neighbour) -> float:
    """The time of TVM's default, in seconds: the neighbour's in proportion to the work, else a cautious guess."""
    if other.default_s is None:
        return own.work * _NAIVE_STEP_S
    return other.default_s * own.work / _work(own, other.extents)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfers:
    """How records are transferred. ``traces`` orders the traces to adapt; ``knobs`` the records of the template that
    recognises a function, None for the template's own rule. At most ``attempts`` of either are tried."""

    traces: Strategy | None = most_efficient
    knobs: Strategy | None = None
    attempts: int = 3


def _is_worth_it(own: OperatorClass, other: Neighbour) -> bool:
    return _MARGIN * predicted_s(own, other) + _OVERHEAD_S <= predicted_default_s(own, other)


def _main_axes(own: OperatorClass, extents: tuple[int, ...]) -> list[tuple[int, int]] | None:
    theirs = own.same_shape(extents)
    if theirs is None:
        return None
    main = max(range(len(own.shape)), key=lambda block: math.prod(own.shape[block]))
    return list(zip(own.shape[main], theirs[main], strict=True))


def _work(own: OperatorClass, extents: tuple[int, ...]) -> int:
    return max(map(math.prod, own.same_shape(extents) or ((1,),)))
