"""The targets of one call of `tunehub tune`, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tunehub_builder.cli.errors import resumable
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.recipe import Job, Recipe

if TYPE_CHECKING:
    from tunehub_builder.tuning.run import Resources, Summary
    from tunehub_builder.tuning.target import TuningTarget


def run_jobs(todo: Sequence[Job], resources: Resources, engine: str | None, threads: int | None) -> list[Summary]:
    """Tune one target after the other. Whatever can be wrong with a target or a network is found before the first."""
    from tunehub_builder.tuning.progress import native_output_to, reporter
    from tunehub_builder.tuning.work_directory import WorkDirectory

    find_networks, tune_job = _generation(todo[0].recipe, engine)
    found = find_networks(todo[0])  # the same for every target
    summaries = []
    with _places(todo, resources, engine, threads) as places:
        for job, (target, own) in zip(todo, places, strict=True):
            with (
                WorkDirectory(job.directory).locked(create=True) as directory,
                resumable(job.directory),
                native_output_to(directory.log) as stream,
                reporter(stream) as shown,
            ):
                summaries.append(tune_job(directory, job, target, found, own, shown.show))
    return summaries


@contextmanager
def _places(
    todo: Sequence[Job], resources: Resources, engine: str | None, threads: int | None
) -> Iterator[Sequence[tuple[TuningTarget, Resources]]]:
    """What the target of each job is, and who builds and measures for it: this machine, or a fleet."""
    from tunehub_builder.backends.target import find_target
    from tunehub_builder.tuning import target as machine

    recipe = todo[0].recipe
    if machine.generation() == "relay" or (engine is None and recipe.rpc is None and recipe.rpc_key is None):
        yield [(find_target(job.target, remote=recipe.rpc is not None), resources) for job in todo]
        return
    from tunehub_builder.fleet.setup import places
    from tunehub_builder.tuning.runner.rpc_board import board_at

    board = board_at(recipe.rpc, recipe.rpc_key)
    with places([job.target for job in todo], engine, board, resources, threads) as found:
        yield found


def _generation(recipe: Recipe, engine: str | None) -> tuple[Callable[[Job], list[Any]], Callable[..., Summary]]:
    """How to find networks and how to tune with the TVM that is installed. Raises TuningError for a wrong tuner."""
    from tunehub_builder.backends.relax import run as relax
    from tunehub_builder.tuning import target as machine

    if machine.generation() == "relay":
        from tunehub_builder.backends.relay import run as relay

        if recipe.from_misses:
            raise TuningError("--from-misses needs TVM 0.25 or newer: misses hold functions of that generation")
        if recipe.warm_start:
            raise TuningError("--warm-start needs TVM 0.25 or newer; autotvm learns from logs with --transfer-from")
        if recipe.dims:
            raise TuningError("--dim needs TVM 0.25 or newer: records of older ones are for fixed shapes")
        if recipe.precision:
            raise TuningError(
                "--precision needs TVM 0.27: older ones have no kernels for operands in bfloat16 or 8 bits"
            )
        if engine is not None:
            raise TuningError("--engine needs TVM 0.25 or newer; with this TVM give --rpc for devices elsewhere")
        relay.tuner_name(recipe)
        relay.relay_options(recipe)
        return relay.find_relay_networks, relay.tune_relay_job
    if recipe.dims and engine is not None:
        raise TuningError("--dim measures on this machine: leave --engine out")
    relax.check_options(recipe)
    return relax.find_networks, relax.tune_job
