"""The builder's commands. `tunehub` attaches them by name and imports one only when it is called.

Exit codes: 0 done, 1 the thing asked for failed, 2 wrong usage.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from tunehub.cli.options import registry_option
from tunehub_builder.exceptions import BuilderError, TuningError, UnknownTargetError
from tunehub_builder.tuning.recipe import (
    ENGINE,
    TEMPLATE,
    TRACKER,
    Algorithm,
    GraphAlgorithm,
    Job,
    Layout,
    ModelFile,
    Recipe,
    Tuner,
    jobs,
    parse_shape,
    read_recipe,
)

if TYPE_CHECKING:
    from tunehub_builder.tuning.run import Resources, Summary
    from tunehub_builder.tuning.target import TuningTarget

COMMANDS = {
    "networks": "tunehub_builder.cli.commands:networks",
    "tune": "tunehub_builder.cli.commands:tune",
    "distill": "tunehub_builder.cli.commands:distill",
    "check": "tunehub_builder.cli.commands:check",
    "pack": "tunehub_builder.cli.commands:pack",
    "import": "tunehub_builder.cli.import_logs:import_logs",
}

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_COUNT = click.IntRange(min=0)
_POSITIVE = click.IntRange(min=1)
_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def _matching(pattern: str, expected: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A check for an option: its text must look as ``expected`` says."""

    def check(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
        if text is not None and not re.match(pattern, text):
            raise click.BadParameter(f"expected {expected}, got {text!r}")
        return text

    return check


def _json_list(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[Any, ...] | None:
    try:
        found = None if text is None else json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if found is not None and not isinstance(found, list):
        raise click.BadParameter(f'expected a JSON list such as [1, 512, "float32"], got {text}')
    return None if found is None else tuple(found)


# For TVM 0.19 and older, but --tuner and those of RPC for any. Their names are those of the fields of `Recipe`.
_RELAY_OPTIONS = (
    click.option("--tuner", type=click.Choice(get_args(Tuner)), help="[meta_schedule; with TVM <= 0.19 autotvm]"),
    click.option("--algorithm", type=click.Choice(get_args(Algorithm)), help="How autotvm searches.  [xgb]"),
    click.option("--early-stopping", type=_POSITIVE, help="autotvm: end a task after so many trials without a better."),
    click.option("--transfer-from", multiple=True, metavar="LOG", help="autotvm: learn from this log first."),
    click.option(
        "--template",
        metavar="MODULE:FUNCTION",
        callback=_matching(TEMPLATE, "MODULE:FUNCTION"),
        help="autotvm: tune your own template.",
    ),
    click.option("--template-args", metavar="JSON", callback=_json_list, help="Its arguments, as a JSON list."),
    click.option(
        "--layout",
        type=click.Choice(get_args(Layout)),
        help="Layout of the networks.  [NHWC for auto_scheduler, else NCHW]",
    ),
    click.option("--graph-algorithm", type=click.Choice(get_args(GraphAlgorithm)), help="graph_tuner's.  [auto]"),
    click.option(
        "--rpc",
        metavar="HOST:PORT",
        callback=_matching(TRACKER, "HOST:PORT"),
        help="Measure on the boards behind this RPC tracker.",
    ),
    click.option("--rpc-key", metavar="KEY", help="The boards' key there."),
    click.option("--local-runner", is_flag=True, default=None, help="autotvm: measure with TVM's own LocalRunner."),
    click.option("--cache-flush", is_flag=True, default=None, help="autotvm: empty the CPU's caches before each run."),
)


def _with_relay_options(command: _Decorated) -> _Decorated:
    for option in reversed(_RELAY_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def networks(as_json: bool) -> None:
    """List the networks that `tune` knows by name."""
    from tunehub_builder.tuning import target as machine

    with _errors():
        if machine.generation() == "relay":
            from tunehub_builder.backends.relay import networks as known
        else:
            from tunehub_builder import networks as known  # type: ignore[no-redef]
        found = [known.get(name) for name in known.names()]
    if as_json:
        rows = [{"name": n.name, "source": n.source, "inputs": n.inputs, "dtype": n.dtype} for n in found]
        click.echo(json.dumps({"networks": rows}, indent=2))
        return
    for network in found:
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in network.inputs.items())
        click.echo(f"{network.name:<15} {network.source:<40} {shapes}")


@click.command()
@click.option("--target", "targets", multiple=True, metavar="NAME", help="host, cuda, or llvm-CPU as LLVM names it.")
@click.option("--network", "names", multiple=True, metavar="NAME", help="A network of `tunehub networks`.")
@click.option("--model", "models", multiple=True, type=_FILE, help="Your own ONNX file.")
@click.option("--input-shape", "shapes", multiple=True, metavar="INPUT=1,3,224,224", help="Fixes an input of --model.")
@click.option(
    "--from-misses",
    multiple=True,
    type=_FILE,
    metavar="FILE",
    help="Tune the misses that `report.save_misses` wrote, for their own target unless --target is given.",
)
@click.option("--recipe", "recipe_file", type=_FILE, help="TOML file with targets, networks and trials.")
@click.option("--work", required=True, type=_FOLDER, help="Work directory; give it again to go on.")
@click.option("--trials", type=_COUNT, help="Most trials of a workload's sketches  [64], or of its template.  [32]")
@click.option("--search-trials", type=_COUNT, help="Most trials of MetaSchedule's search per workload.  [32]")
@click.option("--seed", type=_COUNT, help="Seed of the search.  [0]")
@click.option(
    "--warm-start/--no-warm-start",
    default=None,
    help="On a CPU: measure first what a package's records propose.  [where one is found for the target]",
)
@registry_option
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="On a GPU: end after so many minutes.")
@click.option("--threads", type=_POSITIVE, help="Threads that measure.  [physical cores]")
@click.option("--workers", type=_POSITIVE, help="Processes that build.  [physical cores]")
@click.option(
    "--engine",
    metavar="local|dask://HOST:PORT",
    callback=_matching(ENGINE, "local or dask://HOST:PORT"),
    help="Build and measure on the workers of a dask scheduler; local: of one that is started here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON at the end.")
@_with_relay_options
def tune(
    targets: tuple[str, ...],
    names: tuple[str, ...],
    models: tuple[Path, ...],
    shapes: tuple[str, ...],
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
    with _errors():
        fixed = _shapes(shapes, models)
        files = tuple(ModelFile(path=str(path), input_shapes=fixed) for path in models)
        recipe = (read_recipe(recipe_file) if recipe_file else Recipe()).overridden(
            targets=targets, networks=names, models=files, from_misses=tuple(map(str, from_misses)), **options
        )
        recipe = _with_targets_of_misses(recipe)
        _require(recipe)
        summaries = _run_jobs(jobs(recipe, work), _resources(threads, workers), engine, threads)
    if as_json:
        click.echo(json.dumps({"targets": [_as_json(summary) for summary in summaries]}, indent=2))
        return
    for summary in summaries:
        for note in summary.notes:
            click.echo(note)
        click.echo(
            f"{summary.target}: {summary.measured_now} trials measured now, {summary.trials} in {summary.directory} "
            f"({_failed(summary)}) for {summary.tasks} workloads. Next: tunehub check {summary.directory}"
        )


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=_FILE, help="Write the records to this file, one a line.")
@click.option("--top", type=_POSITIVE, default=1, show_default=True, help="Records of each workload, fastest first.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def distill(paths: tuple[Path, ...], output: Path | None, top: int, as_json: bool) -> None:
    """Take the best records out of all trials. Their times are those of tuning; `check` measures again.

    PATH is a work directory, or logs of AutoTVM and of the auto-scheduler (TVM <= 0.19), whose lines stay as they are.
    """
    from tunehub_builder.cli.distill_logs import logs_in

    with _errors():
        logs = logs_in(paths)
    if logs is None:
        _distill_trials(paths[0], output, top, as_json)
    else:
        _distill_logs(logs, output, top, as_json)


def _distill_logs(logs: list[Path], output: Path | None, top: int, as_json: bool) -> None:
    from tunehub_builder.cli import distill_logs as cli_distill

    with _errors():
        found = cli_distill.distill_to(logs, top, output)
    click.echo(json.dumps(cli_distill.as_json(found), indent=2) if as_json else cli_distill.text(found))


def _distill_trials(directory: Path, output: Path | None, top: int, as_json: bool) -> None:
    from tunehub_builder.gate.finalists import as_record
    from tunehub_builder.gate.finalists import distill as best_of
    from tunehub_builder.packing.pack import encoded
    from tunehub_builder.tuning.journal import write_atomically
    from tunehub_builder.tuning.work_directory import WorkDirectory

    with _errors():
        work = WorkDirectory(directory)
        work.existing_run()
        found = best_of(work, top)
        if output is not None:
            records = [as_record(entry.task, trial) for entry in found for trial in entry.best]
            write_atomically(output, map(encoded, records))
    rows = [
        {
            "exact": entry.task.exact,
            "name": entry.task.name,
            "networks": list(entry.task.counts),
            "trials": entry.trials,
            "best_s": entry.best[0].mean_s if entry.best else None,
            "source": entry.best[0].source if entry.best else None,
        }
        for entry in found
    ]
    if as_json:
        click.echo(json.dumps({"records": rows}, indent=2))
        return
    for entry in found:
        winner = entry.best[0] if entry.best else None
        best = "no trial succeeded" if winner is None else f"{winner.mean_s * 1e3:.4g} ms ({winner.source})"
        click.echo(f"{entry.task.exact[:8]}  {entry.task.name:<48} {entry.trials:>5} trials  {best}")


@click.command()
@click.argument("path", metavar="DIR|FILE|PACKAGE", type=click.Path(path_type=Path))
@click.option("--work", type=_FOLDER, help="With FILE: the work directory that has the records' workloads.")
@click.option("--launch-on", metavar="ARCH", help="PACKAGE for CUDA: compile its kernels for this GPU, such as sm_80.")
@click.option("--end-to-end", is_flag=True, help="Also judge whole networks; PACKAGE is judged by them alone.")
@click.option("--network", "names", multiple=True, metavar="NAME", help="End to end: only this network.")
@click.option("--model", "models", multiple=True, type=_FILE, help="End to end: an ONNX file, as was tuned in DIR.")
@click.option("--threads", type=_POSITIVE, help="Threads that measure.  [physical cores]")
@click.option("--workers", type=_POSITIVE, help="Processes that build.  [physical cores]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def check(
    path: Path,
    work: Path | None,
    launch_on: str | None,
    end_to_end: bool,
    names: tuple[str, ...],
    models: tuple[Path, ...],
    threads: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Decide which records may be published; leave the machine alone meanwhile.

    DIR is a work directory: its three best candidates of each workload are compared with the default schedule, and the
    verdicts are kept there for `pack`. FILE holds records as `distill -o` writes them: without --work only their format
    and their traces are checked. With FILE, any rejected record means exit code 1.

    --end-to-end compiles the networks of DIR, or of a PACKAGE (.tunepkg), with TVM's default, with tunehub without
    records and with the admitted ones, and runs them in turns. `pack` leaves records out that only rejected networks
    call; a rejected network of a PACKAGE means exit code 1.

    --launch-on sm_80 --work DIR compiles every kernel of a PACKAGE for that GPU, and refuses those that take more
    threads, shared memory or registers than it has; no GPU is needed.

    With TVM 0.19 and older, the five best records of each workload are compared with the template's default, and then
    every network is run end to end: with TVM's default, with the best records, and with graph-level records.
    """
    from tunehub_builder.gate import report as gate

    _check_usage(path, end_to_end, names, launch_on, work)
    with _errors():
        resources = _resources(threads, workers)
        if launch_on is not None and work is not None:
            from tunehub_builder.gate.launch_check import check_launches

            outcome = check_launches(path, work, launch_on, sys.stderr)
        elif path.is_dir():
            with _resumable(path):
                outcome = gate.check_work_directory(path, resources, models, end_to_end=end_to_end, networks=names)
        elif end_to_end:
            from tunehub_builder.gate.network_report import check_package

            outcome = check_package(path, resources, names, models, sys.stderr)
        else:
            outcome = gate.check_file(path, work, resources)
    if as_json:
        click.echo(json.dumps(outcome.as_json(), indent=2))
    else:
        click.echo(outcome.text())
    refused = outcome.rejected or any(not network.admitted for network in outcome.networks)
    if refused and not path.is_dir():
        raise SystemExit(1)


def _check_usage(path: Path, end_to_end: bool, names: Sequence[str], launch_on: str | None, work: Path | None) -> None:
    """Raise UsageError for options that do not go with what is checked."""
    is_package = path.suffix == ".tunepkg" and not path.is_dir()
    if launch_on is not None:
        if not is_package or work is None or end_to_end:
            raise click.UsageError("--launch-on is for a package (.tunepkg) and --work, without --end-to-end")
        return
    if names and not end_to_end:
        raise click.UsageError("--network is for --end-to-end")
    if is_package and not end_to_end:
        raise click.UsageError("a package's records were judged when it was made; --end-to-end judges networks with it")
    if end_to_end and not is_package and not path.is_dir():
        raise click.UsageError("--end-to-end is for a work directory or a package (.tunepkg)")


@click.command()
@click.argument("directory", metavar="DIR", type=_FOLDER)
@click.option("--name", help="The package's name, to be sure: it must be that of the target.  [the target's]")
@click.option("--version", required=True, help="The package's version, such as 0.1.0.")
@click.option("-o", "--output", type=_FOLDER, default=Path("packages"), show_default=True, help="Where to write it.")
@click.option("--index", type=_FILE, help="Add the version to this index; the package goes to `packages` beside it.")
@click.option("--measured", type=_FILE, help="JSON of `tunehub demo --json` with these records, kept as evidence.")
@click.option("--with", "base", type=_FILE, help="A package of the same target: all that it holds goes along.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def pack(
    directory: Path,
    name: str | None,
    version: str,
    output: Path,
    index: Path | None,
    measured: Path | None,
    base: Path | None,
    as_json: bool,
) -> None:
    """Write the admitted records of DIR, with their evidence, as a package."""
    from tunehub_builder.packing.network_evidence import read_network_evidence
    from tunehub_builder.packing.pack import pack_directory, publish_locally
    from tunehub_builder.tuning.work_directory import WorkDirectory

    with _errors(), WorkDirectory(directory).locked() as work:
        networks_measured = read_network_evidence(measured) if measured else ()
        built = pack_directory(work, version, name=name, measured=networks_measured, base=base)
        path = publish_locally(built, output, index)
    summary = {**built.counts, "package": str(path), "bytes": len(built.data), "sha256": built.sha256}
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    click.echo(f"{path}: {built.counts['records']} records, {len(built.data)} bytes, sha256 {built.sha256}")
    if base is not None:
        click.echo(f"taken along from {base.name}: {built.counts['taken_along']} records")
    click.echo(f"left out: {built.counts['rejected']} rejected by the gate, {built.counts['not_checked']} not checked")


def _run_jobs(todo: Sequence[Job], resources: Resources, engine: str | None, threads: int | None) -> list[Summary]:
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
                _resumable(job.directory),
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
    from tunehub_builder.tuning import run as modern
    from tunehub_builder.tuning import target as machine

    if machine.generation() == "relay":
        from tunehub_builder.backends.relay import run as relay

        if recipe.from_misses:
            raise TuningError("--from-misses needs TVM 0.25 or newer: misses hold functions of that generation")
        if recipe.warm_start:
            raise TuningError("--warm-start needs TVM 0.25 or newer; autotvm learns from logs with --transfer-from")
        if engine is not None:
            raise TuningError("--engine needs TVM 0.25 or newer; with this TVM give --rpc for devices elsewhere")
        relay.tuner_name(recipe)
        relay.relay_options(recipe)
        return relay.find_relay_networks, relay.tune_relay_job
    modern.check_options(recipe)
    return modern.find_networks, modern.tune_job


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end tuning with a message instead of a traceback."""
    stopped = False

    def stop(_signal: int, _frame: Any) -> None:
        nonlocal stopped
        stopped = True
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException as error:
        # An interrupt inside a callback of TVM comes back as an error of TVM.
        if stopped or isinstance(error, KeyboardInterrupt):
            message = f"interrupted; what was measured is in {directory}: run the same command again to go on"
            raise click.ClickException(message) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _errors() -> Iterator[None]:
    """Expected errors become one line: exit code 2 for a name that does not exist, else 1."""
    try:
        yield
    except Exception as error:
        expected = _as_click_error(error)
        if expected is None:
            raise
        raise expected from error


def _as_click_error(error: Exception) -> click.ClickException | None:
    """The error for the user, None for one that nobody expected. What tells errors apart is imported only here."""
    from tunehub.exceptions import UsageError
    from tunehub_builder.networks import NetworkError, UnknownNetworkError
    from tunehub_registry.exceptions import RegistryError

    if isinstance(error, (UnknownTargetError, UnknownNetworkError, UsageError)):
        return click.UsageError(str(error))
    if isinstance(error, (BuilderError, NetworkError, RegistryError)):
        return click.ClickException(str(error))
    if not isinstance(error, ImportError):
        return None
    from tunehub.target.tvm_generation import find_tvm

    found = find_tvm()
    extra = "legacy" if found is not None and found.generation == "relay" else "builder"
    return click.ClickException(f"{error}: the builder's packages are missing; pip install 'tunehub[{extra}]'")


def _resources(threads: int | None, workers: int | None) -> Resources:
    """Fill the defaults in, and size TVM's pool: it reads the variable once, when it is first used."""
    from tunehub.target.host import physical_cores
    from tunehub_builder.tuning.run import Resources

    cores = physical_cores()
    resources = Resources(threads=threads or cores, workers=workers or cores)
    os.environ["TVM_NUM_THREADS"] = str(resources.threads)
    return resources


def _shapes(texts: Sequence[str], models: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    if texts and len(models) != 1:
        raise click.UsageError("--input-shape goes with exactly one --model; for several models write a --recipe")
    try:
        return dict(map(parse_shape, texts))
    except ValueError as error:
        raise click.UsageError(f"--input-shape: expected INPUT=1,3,224,224, got {error}") from None


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


def _as_json(summary: Summary) -> dict[str, Any]:
    from dataclasses import asdict

    rate = summary.measured_now / summary.elapsed_s * 3600 if summary.elapsed_s else 0.0
    return {**asdict(summary), "directory": str(summary.directory), "trials_per_hour": rate}
