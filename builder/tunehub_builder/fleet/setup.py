"""From the options `--engine`, `--rpc` and `--rpc-key` to where a target's jobs run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.exceptions import TuningError
from tunehub_builder.fleet.dask import LOCAL, DaskEngine
from tunehub_builder.fleet.pool import Engine, Fleet, ThreadEngine
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.rpc_board import Board, Visit, require_boards
from tunehub_builder.tuning.target import TuningTarget, find_board_cpu

TargetResources = tuple[TuningTarget, Resources]


@contextmanager
def places(
    targets: Sequence[str], engine: str | None, board: Board | None, resources: Resources, threads: int | None
) -> Iterator[list[TargetResources]]:
    """For each of ``targets``: what it is, and the fleet whose jobs tune it.

    ``engine``: ``local``, ``dask://HOST:PORT``, or None for threads of this process, which need a ``board``.
    ``threads``: that measure, None for the cores of each device. Raises TuningError when no device is there.
    """
    waiting = 0 if board is None else require_boards(board)  # jobs that do nothing but wait for a board
    with _engine(targets, engine, resources.workers + waiting) as running:
        if board is None:
            yield [_on_workers(running, target, resources, threads) for target in targets]
        else:
            yield [_on_board(running, target, board, resources, threads) for target in targets]


def _engine(targets: Sequence[str], engine: str | None, workers: int) -> Engine:
    if engine is None:
        return ThreadEngine(workers)
    if engine == LOCAL:
        return DaskEngine(LOCAL, [find_relax_target(target).name for target in targets], workers)
    return DaskEngine(engine)


def _on_workers(engine: Engine, name: str, resources: Resources, threads: int | None) -> TargetResources:
    facts = engine.find(name)
    target = TuningTarget(name=facts.target_name, config=facts.target, vector=facts.vector)
    fleet = Fleet(engine=engine, machine=facts.machine)
    return target, Resources(threads=threads or facts.threads, workers=resources.workers, fleet=fleet)


def _on_board(engine: Engine, name: str, board: Board, resources: Resources, threads: int | None) -> TargetResources:
    """Boards say little of themselves; the user knows which CPU they have."""
    visit = Visit(board)
    visit.begin(limit_s=60.0)
    try:
        cores = threads or visit.threads()
        if name == "cuda" or name.startswith("cuda-"):
            gpu = visit.gpu()
            if name not in ("cuda", f"cuda-{gpu.model}"):
                raise TuningError(f"the device {board.key!r} has a {gpu.name} (cuda-{gpu.model}), not a {name}")
            target, machine = TuningTarget(name=f"cuda-{gpu.model}", config=gpu.tvm_config()), gpu.facts()
        else:
            target = find_board_cpu(name, cores)
            machine = {"llvm_cpu": str(target.config["mcpu"]), "physical_cores": cores}
    finally:
        visit.end()
    fleet = Fleet(engine=engine, machine=machine, board=board)
    return target, Resources(threads=cores, workers=resources.workers, fleet=fleet)
