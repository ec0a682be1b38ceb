"""``python -m benchmarks.gpu_rule WORK... [--measured FILE]``: fit the costs of CUDA's tiles, and judge the rule.

WORK: work directories of tuning on a GPU. FILE: lines of tiles that were measured otherwise (``problem``, ``tiles``,
``run_s``, ``default_s``, ``networks``). Every workload counts the same, and its fastest trials more than its slow ones.
Judged is each network with costs that were fitted without it: of the tiles that were measured for a workload, the
rule's first is compared with the fastest. Needs TVM and scipy; no GPU.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.kernels.cuda.adapted import TileRow, tile_row
from tunehub.kernels.cuda.gemm import cost as cuda_cost
from tunehub.kernels.cuda.gemm.cost import Operand, Problem, Term, Tiles, as_tiles, counts
from tunehub.kernels.devices.known import default_device

_FEWEST = 16  # trials of a workload that is judged
_WEIGHT = 0.5  # how much less slow trials count: (fastest ÷ own time) to this power
_ROUNDS = 8  # of the fit, which comes closer to errors in ratios with each

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredTiles:
    """Tiles of one workload that were measured: ``run_s`` in seconds, and what TVM's own schedule takes."""

    name: str
    networks: frozenset[str]
    problem: Problem
    tiles: Tiles
    run_s: Array
    default_s: float | None


@click.command()
@click.argument("work", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--measured", multiple=True, type=click.Path(exists=True, path_type=Path))
def main(work: tuple[Path, ...], measured: tuple[Path, ...]) -> None:
    """Fit and judge."""
    found = [each for path in work for each in of_work(path)] + [each for path in measured for each in of_lines(path)]
    click.echo(f"{len(found)} workloads, {sum(len(each.run_s) for each in found)} tiles")
    judged = [each for each in found if len(each.run_s) >= _FEWEST]
    costs = (*cost_lines("threads", fitted(found)), *cost_lines("threads_default", default(found)))
    for line in (*judgement(judged, found), *costs):
        click.echo(line)


def judgement(judged: Sequence[MeasuredTiles], found: Sequence[MeasuredTiles]) -> Iterator[str]:
    """A line for each network with what the rule, fitted on ``found`` without it, would have chosen of ``judged``."""
    shares, gains = [], []
    for network in sorted({name for each in judged for name in each.networks}):
        others = [each for each in found if network not in each.networks]
        costs, own = fitted(others), default(others)
        mine = [_chosen(each, costs, own) for each in judged if network in each.networks]
        shares += [share for share, _, _ in mine]
        gains += [gain for _, gain, served in mine if served]
        yield f"{network}: {_quantiles([share for share, _, _ in mine])}"
    yield f"all: {_quantiles(shares)}"
    slower = sum(gain < 1 for gain in gains)
    yield f"served: {len(gains)}, TVM's own time ÷ chosen {_quantiles(gains)}, {slower} slower, worst {min(gains):.2f}"


def fitted(found: Iterable[MeasuredTiles]) -> dict[str, float]:
    """The cost of one of everything in ``costs.threads``, in seconds."""
    numbers = ((counts(each.problem, each.tiles), each.run_s) for each in found)
    names = default_device().costs.threads
    return fitted_costs(
        names, ((np.stack([number[name] for name in names], axis=1), run_s) for number, run_s in numbers)
    )


def default(found: Iterable[MeasuredTiles]) -> dict[str, float]:
    """The same of ``costs.threads_default``."""
    names, rows = default_device().costs.threads_default, []
    for each in found:
        shape = cuda_cost.matrix_shape(each.problem)
        if shape is not None and min(shape[1:]) > 1 and each.default_s is not None:
            number = cuda_cost.default_counts(each.problem, shape)
            rows.append(np.array([number[name] for name in names]) / each.default_s)
    return dict(zip(names, positive_costs(np.stack(rows), np.ones(len(rows))), strict=True))


def of_work(path: Path) -> Iterator[MeasuredTiles]:
    """The workloads of a work directory that the rule serves, and the trials in its form."""
    import tvm

    from tunehub.kernels.cuda.gemm.tiles import sums_of
    from tunehub_builder.tuning.journal import Journal
    from tunehub_builder.tuning.scheduler.cuda import default_journal
    from tunehub_builder.tuning.work_directory import WorkDirectory

    defaults = {each.task: each.mean_s for each in default_journal(path).entries() if each.run_s}
    trials = defaultdict(list)
    for trial in Journal(path).trials():
        if trial.run_s:
            trials[trial.task].append(trial)
    for task in WorkDirectory(path).tasks():
        sums = sums_of(tvm.ir.load_json(task.module)) if trials[task.exact] else None
        if sums is None or sums.problem is None:
            continue
        pairs = [(_tile(trial.trace, sums.problem), trial.mean_s) for trial in trials[task.exact]]
        known = [(tile, run_s) for tile, run_s in pairs if tile is not None]
        if known:
            yield MeasuredTiles(
                name=task.name,
                networks=frozenset(task.counts),
                problem=sums.problem,
                tiles=as_tiles([tile for tile, _ in known]),
                run_s=np.array([run_s for _, run_s in known]),
                default_s=defaults.get(task.exact),
            )


def of_lines(path: Path) -> Iterator[MeasuredTiles]:
    """What was measured otherwise: a JSON object for each workload and line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        yield MeasuredTiles(
            name=item["name"],
            networks=frozenset(item["networks"]),
            problem=problem_of(item["problem"]),
            tiles=as_tiles(item["tiles"]),
            run_s=np.array(item["run_s"]),
            default_s=item["default_s"],
        )


def problem_of(item: dict[str, Any]) -> Problem:
    """A problem from JSON: ``spatial``, ``reduction``, ``operands`` with ``shape`` and ``index``."""
    first, second = (
        Operand(
            shape=tuple(operand["shape"]),
            index=tuple(tuple(Term(**term) for term in terms) for terms in operand["index"]),
        )
        for operand in item["operands"]
    )
    return Problem(spatial=tuple(item["spatial"]), reduction=tuple(item["reduction"]), operands=(first, second))


def _tile(trace: Any, problem: Problem) -> TileRow | None:
    """Of a trace of MetaSchedule as it is in a journal, or None when it has no tiles of this problem."""
    instructions, decisions = trace
    at = dict(map(tuple, decisions))
    return tile_row([at[number] for number, each in enumerate(instructions) if each[0] == "SamplePerfectTile"], problem)


def _chosen(each: MeasuredTiles, costs: dict[str, float], own: dict[str, float]) -> tuple[float, float, bool]:
    """The fastest time ÷ that of the tile with the least expected, TVM's time ÷ the latter, whether it is served."""
    number = counts(each.problem, each.tiles)
    expected = np.sum([costs[name] * number[name] for name in costs], axis=0)
    at = int(np.argmin(expected))
    shape = cuda_cost.matrix_shape(each.problem)
    served = shape is None or min(shape[1:]) > 1
    if shape is not None and served:
        theirs = cuda_cost.default_counts(each.problem, shape)
        served = sum(own[name] * theirs[name] for name in own) >= GUESS_MARGIN * float(expected[at])
    return float(each.run_s.min() / each.run_s[at]), (each.default_s or math.nan) / float(each.run_s[at]), served


def fitted_costs(names: Iterable[str], workloads: Iterable[tuple[Array, Array]]) -> dict[str, float]:
    """The cost of one of everything in ``names``, in seconds, from how much of each (a column) each tile of a workload
    (a row) has, and the seconds of the tiles. Every workload counts the same."""
    rows, weights = [], []
    for numbers, run_s in workloads:
        rows.append(numbers / run_s[:, None])
        weight = (run_s.min() / run_s) ** _WEIGHT
        weights.append(weight / np.sqrt((weight**2).sum()))
    return dict(zip(names, positive_costs(np.concatenate(rows), np.concatenate(weights)), strict=True))


def positive_costs(rows: Array, weights: Array) -> list[float]:
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


def _quantiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    tenth = ordered[len(ordered) // 10]
    return f"{len(ordered)}, mean {geometric_mean(ordered):.3f}, median {median(ordered):.3f}, tenth {tenth:.3f}"


def cost_lines(name: str, costs: dict[str, float]) -> list[str]:
    """Costs as they stand in a device's file of the client."""
    return [f"[costs.{name}]", *(f"{what} = {seconds:.3g}" for what, seconds in costs.items())]


if __name__ == "__main__":
    main()
