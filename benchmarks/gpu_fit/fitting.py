"""Costs of tiles that fit measured times best, and what a rule with such costs would choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

import numpy as np
import numpy.typing as npt

from tunehub.comparison.guess import GUESS_MARGIN

_WEIGHT = 0.5  # how much less slow trials count: (fastest ÷ own time) to this power
_ROUNDS = 8  # of the fit, which comes closer to errors in ratios with each

Array = npt.NDArray[Any]
Costs = Mapping[str, float]
Tables = Mapping[str, Costs]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTiles:
    """Tiles of one workload that were measured: seconds ``run_s``, and what each has of that which costs."""

    name: str
    kinds: frozenset[str]
    counts: Mapping[str, Array]
    run_s: Array
    default_table: str | None = None  # of the costs of TVM's own schedule; None: the rule does not ask what that takes
    default_counts: Mapping[str, float] = field(default_factory=dict)
    default_s: float | None = None  # of TVM's own schedule
    others_s: Mapping[str, float] = field(default_factory=dict)  # of other kernels, by whose they are
    is_served: bool = True  # by this rule, if it promises enough


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedRule:
    """A rule whose costs are the table ``costs`` of a device, beside those of TVM's own schedules, if it asks."""

    costs: str
    read: Callable[[Any], MeasuredTiles]  # of a line of JSON
    rows: str | None = None  # the file of ``benchmarks/results`` that the client's costs are fitted to
    defaults: tuple[str, ...] = ()
    fewest: int = 1  # tiles of a workload that is judged


def fitted(rule: FittedRule, known: Tables, found: Sequence[MeasuredTiles]) -> dict[str, dict[str, float]]:
    """The cost of one of everything, in seconds, for each table of the rule. ``known`` has their names."""
    names = known[rule.costs]
    tables = {rule.costs: _fitted_costs(names, ((_rows(each, names), each.run_s) for each in found))}
    for table in rule.defaults:
        own = [(each.default_counts, each.default_s) for each in found if each.default_table == table]
        rows = np.array([[counts[name] / took for name in known[table]] for counts, took in own if took is not None])
        tables[table] = dict(zip(known[table], _positive_costs(rows, np.ones(len(rows))), strict=True))
    return tables


def judgement(rule: FittedRule, known: Tables, found: Sequence[MeasuredTiles]) -> Iterator[str]:
    """Lines with what the rule would have chosen: with the client's costs, and with costs fitted without each kind."""
    judged = [each for each in found if len(each.run_s) >= rule.fewest]
    yield f"the client's costs: {judged_line(rule, known, judged)}"
    for kind in sorted({kind for each in judged for kind in each.kinds}):
        costs = fitted(rule, known, [each for each in found if kind not in each.kinds])
        yield f"without {kind}: {judged_line(rule, costs, [each for each in judged if kind in each.kinds])}"


def chosen(rule: FittedRule, costs: Tables, each: MeasuredTiles) -> tuple[int, bool]:
    """The number of the tile with the least expected time, and whether it promises enough to be served."""
    expected = sum(cost * each.counts[name] for name, cost in costs[rule.costs].items())
    at = int(np.argmin(expected))
    if each.default_table is None or not each.is_served:
        return at, each.is_served
    default_s = sum(cost * each.default_counts[name] for name, cost in costs[each.default_table].items())
    return at, default_s >= GUESS_MARGIN * float(np.asarray(expected)[at])


def judged_line(rule: FittedRule, costs: Tables, judged: Sequence[MeasuredTiles]) -> str:
    """How near the chosen tiles are to the fastest, and what runs to TVM's own schedules and to others' kernels."""
    picks = [(each, *chosen(rule, costs, each)) for each in judged]
    line = f"{len(picks)}, chosen tile ÷ fastest {_mean_and_worst(e.run_s[at] / e.run_s.min() for e, at, _ in picks)}"
    gains = [e.default_s / e.run_s[at] for e, at, served in picks if served and e.default_s is not None]
    if gains:
        slower = sum(gain < 1 for gain in gains)
        line += f"; served {len(gains)}, {slower} slower than TVM's own, worst {min(gains):.2f}"
    for other in sorted({name for each in judged for name in each.others_s}):
        ratios = [
            float(e.run_s[at] if served else e.default_s or math.nan) / e.others_s[other]
            for e, at, served in picks
            if other in e.others_s
        ]
        line += f"; what runs ÷ {other} {_mean_and_worst(ratios)}"
    return line


def cost_lines(name: str, costs: Costs) -> list[str]:
    """Costs as they stand in a device's file of the client."""
    return [f"[costs.{name}]", *(f"{what} = {seconds:.3g}" for what, seconds in costs.items())]


def _mean_and_worst(ratios: Iterable[float]) -> str:
    values = list(ratios)
    return f"{geometric_mean(values):.3f} (worst {max(values):.2f})"


def _rows(each: MeasuredTiles, names: Iterable[str]) -> Array:
    return np.stack([each.counts[name] for name in names], axis=1).astype(np.float64)


def _fitted_costs(names: Iterable[str], workloads: Iterable[tuple[Array, Array]]) -> dict[str, float]:
    """From how much of each (a column) each tile of a workload (a row) has, and the seconds of the tiles. Every
    workload counts the same, and its fastest tiles more than its slow ones."""
    rows, weights = [], []
    for numbers, run_s in workloads:
        rows.append(numbers / run_s[:, None])
        weight = (run_s.min() / run_s) ** _WEIGHT
        weights.append(weight / np.sqrt((weight**2).sum()))
    return dict(zip(names, _positive_costs(np.concatenate(rows), np.concatenate(weights)), strict=True))


def _positive_costs(rows: Array, weights: Array) -> list[float]:
    """Positive costs for which the sums of ``rows`` come near 1, too much and too little being errors in ratios."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    scale = rows.std(axis=0) + rows.mean(axis=0) * 1e-3 + 1e-30
    ratio_weights, costs = np.ones(len(rows)), np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        weight = weights * ratio_weights
        costs = nnls(rows * weight[:, None] / scale, weight)[0] / scale
        ratio = np.clip(rows @ costs, 0.02, 50)
        far = np.abs(ratio - 1) > 1e-3
        squares = np.where(far, (np.log(ratio) / np.where(far, ratio - 1, 1)) ** 2, 1.0)
        ratio_weights = np.sqrt(np.clip(squares, 0.01, 20))
    return [float(cost) for cost in costs]
