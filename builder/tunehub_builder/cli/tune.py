"""`tunehub tune`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tunehub.cli.options import registry_option
from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.jobs import run_jobs
from tunehub_builder.cli.options import (
    COUNT,
    EXISTING,
    FOLDER,
    POSITIVE,
    F,
    fixed_shapes,
    json_list,
    matching,
    resources_of,
    threads_option,
    workers_option,
)
from tunehub_builder.tuning.recipe import (
    ENGINE,
    TEMPLATE,
    TRACKER,
    Algorithm,
    GraphAlgorithm,
    Layout,
    ModelFile,
    Precision,
    Recipe,
    Tuner,
    jobs,
    parse_dim,
    read_recipe,
)

if TYPE_CHECKING:
    from tunehub_builder.tuning.run import Summary

# For TVM 0.19 and older, but --tuner and those of RPC for any. Their names are those of the fields of `Recipe`.
_RELAY_OPTIONS = (
    click.option("--tuner", type=click.Choice(get_args(Tuner)), help="[meta_schedule; with TVM <= 0.19 autotvm]"),
    click.option("--algorithm", type=click.Choice(get_args(Algorithm)), help="How autotvm searches.  [xgb]"),
    click.option("--early-stopping", type=POSITIVE, help="autotvm: end a task after so many trials without a better."),
    click.option("--transfer-from", multiple=True, metavar="LOG", help="autotvm: learn from this log first."),
    click.option(
        "--template",
        metavar="MODULE:FUNCTION",
        callback=matching(TEMPLATE, "MODULE:FUNCTION"),
        help="autotvm: tune your own template.",
    ),
    click.option("--template-args", metavar="JSON", callback=json_list, help="Its arguments, as a JSON list."),
    click.option(
        "--layout",
        type=click.Choice(get_args(Layout)),
        help="Layout of the networks.  [NHWC for auto_scheduler, else NCHW]",
    ),
    click.option("--graph-algorithm", type=click.Choice(get_args(GraphAlgorithm)), help="graph_tuner's.  [auto]"),
    click.option(
        "--rpc",
        metavar="HOST:PORT",
        callback=matching(TRACKER, "HOST:PORT"),
        help="Measure on the boards behind this RPC tracker.",
    ),
    click.option("--rpc-key", metavar="KEY", help="The boards' key there."),
    click.option("--local-runner", is_flag=True, default=None, help="autotvm: measure with TVM's own LocalRunner."),
    click.option("--cache-flush", is_flag=True, default=None, help="autotvm: empty the CPU's caches before each run."),
)


def _with_relay_options(command: F) -> F:
    for option in reversed(_RELAY_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--target", "targets", multiple=True, metavar="NAME", help="host, cuda, or llvm-CPU as LLVM names it.")
@click.option("--network", "names", multiple=True, metavar="NAME", help="A network of `tunehub networks`.")
@click.option("--model", "models", multiple=True, type=EXISTING, help="Your own ONNX file.")
@click.option("--input-shape", "shapes", multiple=True, metavar="INPUT=1,3,224,224", help="Fixes an input of --model.")
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=1,2,4|NAME=16..512",
    help="Leave this dimension open, and tune for these values of it.",
)
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    help="On a CPU: tune networks with operands in bfloat16, or in 8 bits.  [their own]",
)
@click.option(
    "--from-misses",
    multiple=True,
    type=EXISTING,
    metavar="FILE",
    help="Tune the misses that `report.save_misses` wrote, for their own target unless --target is given.",
)
@click.option("--recipe", "recipe_file", type=EXISTING, help="TOML file with targets, networks and trials.")
@click.option("--work", required=True, type=FOLDER, help="Work directory; give it again to go on.")
@click.option("--trials", type=COUNT, help="Most trials of a workload's sketches  [64], or of its template.  [32]")
@click.option("--search-trials", type=COUNT, help="Most trials of MetaSchedule's search per workload.  [32]")
@click.option("--seed", type=COUNT, help="Seed of the search.  [0]")
@click.option(
    "--warm-start/--no-warm-start",
    default=None,
    help="On a CPU: measure first what a package's records propose.  [where one is found for the target]",
)
@registry_option
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="On a GPU: end after so many minutes.")
@threads_option
@workers_option
@click.option(
    "--engine",
    metavar="local|dask://HOST:PORT",
    callback=matching(ENGINE, "local or dask://HOST:PORT"),
    help="Build and measure on the workers of a dask scheduler; local: of one that is started here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON at the end.")
@_with_relay_options
def tune(
    targets: tuple[str, ...],
    names: tuple[str, ...],
    models: tuple[Path, ...],
    shapes: tuple[str, ...],
    dims: tuple[str, ...],
    from_misses: tuple[Path, ...],
    recipe_file: Path | None,
    work: Path,
    threads: int | None,
    workers: int | None,
    engine: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tune networks into a work directory. It can be ended at any time; the same call goes on.

    With TVM 0.19 and older, --trials is for one task (autotvm) or for all together (auto_scheduler), and --target also
    takes TVM's own text, such as 'cuda -model=titanx'.
    """
    with errors():
        fixed = fixed_shapes(shapes, models, "for several models write a --recipe")
        files = tuple(ModelFile(path=str(path), input_shapes=fixed) for path in models)
        recipe = (read_recipe(recipe_file) if recipe_file else Recipe()).overridden(
            targets=targets,
            networks=names,
            models=files,
            from_misses=tuple(map(str, from_misses)),
            dims=_dims(dims),
            **options,
        )
        recipe = _with_targets_of_misses(recipe)
        if recipe.dims or recipe.precision:  # the only tuner of open dimensions, and of operands that are rounded
            recipe = recipe.overridden(tuner=recipe.tuner or "template")
        _require(recipe)
        summaries = run_jobs(jobs(recipe, work), resources_of(threads, workers), engine, threads)
    if as_json:
        print_json({"targets": [_as_json(summary) for summary in summaries]})
        return
    for summary in summaries:
        for note in summary.notes:
            say(note)
        say(
            f"{summary.target}: {summary.measured_now} trials measured now, {summary.trials} in {summary.directory} "
            f"({_failed(summary)}) for {summary.tasks} workloads. Next: tunehub check {summary.directory}"
        )


def _dims(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    try:
        return dict(map(parse_dim, texts))
    except ValueError as error:
        raise click.UsageError(f"--dim: expected NAME=1,2,4 or NAME=16..512, got {error}") from None


def _with_targets_of_misses(recipe: Recipe) -> Recipe:
    """Without a target, that of the misses."""
    if recipe.targets or not recipe.from_misses:
        return recipe
    from tunehub_builder.tuning.missed import targets_of

    return recipe.overridden(targets=targets_of([Path(file) for file in recipe.from_misses]))


def _require(recipe: Recipe) -> None:
    if not recipe.targets:
        raise click.UsageError("which target? Give --target host, or a --recipe")
    if not recipe.networks and not recipe.models and not recipe.template and not recipe.from_misses:
        raise click.UsageError(
            "nothing to tune: give --network (see `tunehub networks`), --model, --from-misses or --recipe"
        )
    twice = {target for target in recipe.targets if recipe.targets.count(target) > 1}
    if twice:
        raise click.UsageError(f"the target {twice.pop()} is given twice")


def _failed(summary: Summary) -> str:
    from tunehub_builder.tuning.progress import failures_text

    return failures_text(summary.failed, summary.failures)


def _as_json(summary: Summary) -> dict[str, object]:
    from dataclasses import asdict

    rate = summary.measured_now / summary.elapsed_s * 3600 if summary.elapsed_s else 0.0
    return {**asdict(summary), "directory": str(summary.directory), "trials_per_hour": rate}
