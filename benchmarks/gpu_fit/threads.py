"""Measured tiles by threads: lines of a file, or the trials of a work directory of tuning on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_fit.fitting import MeasuredTiles
from tunehub.kernels.cuda.adapted import TileRow, tile_row
from tunehub.kernels.cuda.gemm.cost import Operand, Problem, Term, as_tiles, counts, default_counts, matrix_shape
from tunehub.kernels.devices.known import default_device


def of_work(path: Path) -> Iterator[MeasuredTiles]:
    """The workloads of a work directory that the rule serves, and the trials in its form."""
    import tvm

    from tunehub.kernels.cuda.gemm.tiles import reduction_block_of
    from tunehub_builder.tuning.journal import Journal
    from tunehub_builder.tuning.scheduler.cuda import default_journal
    from tunehub_builder.tuning.work_directory import WorkDirectory

    defaults = {each.task: each.mean_s for each in default_journal(path).entries() if each.run_s}
    trials = defaultdict(list)
    for trial in Journal(path).trials():
        if trial.run_s:
            trials[trial.task].append(trial)
    for task in WorkDirectory(path).tasks():
        reducing = reduction_block_of(tvm.ir.load_json(task.module)) if trials[task.exact] else None
        if reducing is None or reducing.problem is None:
            continue
        pairs = [(_tile(trial.trace, reducing.problem), trial.mean_s) for trial in trials[task.exact]]
        known = [(tile, run_s) for tile, run_s in pairs if tile is not None]
        if known:
            tiles, run_s = zip(*known, strict=True)
            yield _measured(task.name, task.counts, reducing.problem, tiles, run_s, defaults.get(task.exact))


def of_line(item: Any) -> MeasuredTiles:
    """Of tiles that were measured otherwise."""
    problem = problem_of(item["problem"])
    return _measured(item["name"], item["networks"], problem, item["tiles"], item["run_s"], item["default_s"])


def problem_of(item: Any) -> Problem:
    """A problem from JSON: ``spatial``, ``reduction``, ``operands`` with ``shape`` and ``index``."""
    first, second = (
        Operand(
            shape=tuple(operand["shape"]),
            index=tuple(tuple(Term(**term) for term in terms) for terms in operand["index"]),
        )
        for operand in item["operands"]
    )
    return Problem(spatial=tuple(item["spatial"]), reduction=tuple(item["reduction"]), operands=(first, second))


def _measured(
    name: str, networks: Any, problem: Problem, tiles: Any, run_s: Any, default_s: float | None
) -> MeasuredTiles:
    shape = matrix_shape(problem)
    is_served = shape is None or min(shape[1:]) > 1
    return MeasuredTiles(
        name=name,
        kinds=frozenset(networks),
        counts=counts(problem, as_tiles(list(tiles)), default_device()),
        run_s=np.array(run_s),
        default_table="threads_default" if shape is not None and is_served else None,
        default_counts=default_counts(problem, shape, default_device()) if shape is not None and is_served else {},
        default_s=default_s,
        is_served=is_served,
    )


def _tile(trace: Any, problem: Problem) -> TileRow | None:
    """Of a trace of MetaSchedule as it is in a journal, or None when it has no tiles of this problem."""
    instructions, decisions = trace
    at = dict(map(tuple, decisions))
    return tile_row([at[number] for number, each in enumerate(instructions) if each[0] == "SamplePerfectTile"], problem)
