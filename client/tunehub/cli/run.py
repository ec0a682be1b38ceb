"""`tunehub run`: what a compiled library takes, gives, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from tunehub.cli.model_files import dim_option, named_sizes, require_relax_for
from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, say

if TYPE_CHECKING:
    import numpy.typing as npt

    from tunehub.comparison.protocol import MeasuringPlan
    from tunehub.deploy.library import Library

Arrays: TypeAlias = "Mapping[str, npt.NDArray[Any]]"
_WARM_UP_S, _SAMPLE_S, _BUDGET_S = 0.1, 0.05, 30.0


@click.command()
@click.argument("library", metavar="MODEL.so|MODEL", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--inputs", type=click.Path(path_type=Path), metavar="FILE.npz", help="Arrays by name.  [random ones]")
@click.option("--outputs", type=click.Path(path_type=Path), metavar="FILE.npz", help="Write what comes out.")
@dim_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random inputs.")
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True, help="Timed samples.")
@click.option("--profile", "profiled", is_flag=True, help="The time of each call, by the model's nodes.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="With --profile: draw the graph.")
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE.json", help="With --profile: of the library's compile."
)
@json_option
def run(
    library: Path,
    inputs: Path | None,
    outputs: Path | None,
    dims: Sequence[str],
    seed: int,
    repeat: int,
    profiled: bool,
    plot: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Run a library that `tunehub compile` wrote: shapes and element types of what it takes and gives, and its time.

    With --profile also a model's file, which is compiled or taken from the cache. Loading a library runs its code: load
    only your own.
    """
    from tunehub.target.threads import size_pool
    from tunehub.target.tvm_generation import find_tvm

    sizes = named_sizes(dims)
    if inputs is not None and sizes:
        raise click.UsageError("--dim is for random inputs; --inputs has sizes of its own")
    _check_usage(outputs, profiled=profiled, of_profile=plot is not None or report is not None)
    if find_tvm() is not None:  # else its runtime lies beside the library
        require_relax_for("run")
    size_pool()
    if profiled:
        from tunehub.cli.profile import profile

        profile(library, inputs, sizes, seed, repeat, report=report, picture=plot, as_json=as_json)
        return
    given, found, times = _run(library, inputs, sizes, seed, repeat)
    if outputs is not None:
        _write(outputs, found)
    facts = {"library": str(library), "inputs": _shapes(given), "outputs": _shapes(found), **_statistics(times)}
    if as_json:
        print_json({**facts, "samples_s": list(times)})
    else:
        _print(facts)


def _check_usage(outputs: Path | None, *, profiled: bool, of_profile: bool) -> None:
    """Raise UsageError for options that do not go together, LibraryError for outputs that cannot be written;
    ``of_profile``: some that go with --profile alone are given."""
    from tunehub.cli.compile import check_output

    if of_profile and not profiled:
        raise click.UsageError("--plot and --report go with --profile")
    if profiled and outputs is not None:
        raise click.UsageError("--outputs goes without --profile")
    if outputs is not None:
        check_output(outputs, "--outputs")


def _run(
    path: Path, inputs: Path | None, sizes: Mapping[str, int], seed: int, repeat: int
) -> tuple[Arrays, Arrays, tuple[float, ...]]:
    """What the library ``path`` is given, what it gives, by names, and seconds of a run in each sample."""
    from tunehub.cli.compile import ending_cleanly, step_display
    from tunehub.interrupts import raise_if_asked

    with ending_cleanly(), step_display(per_second=1) as show:
        show("loading")
        loaded, given = _loaded(path, inputs, sizes, seed)
        raise_if_asked()  # what imports TVM, or runs in it, may have swallowed it
        show("running")
        return given, *_timed(loaded, given, repeat)


def _write(outputs: Path, found: Arrays) -> None:
    from tunehub.deploy.arrays import write_arrays

    try:
        write_arrays(outputs, found)
    except OSError as error:
        raise click.ClickException(f"--outputs {outputs}: {error.strerror}; give a file that you may write") from None


def _loaded(path: Path, inputs: Path | None, sizes: Mapping[str, int], seed: int) -> tuple[Library, Arrays]:
    from tunehub.deploy.arrays import random_inputs, read_inputs
    from tunehub.deploy.library import Library

    library = Library(path)
    if inputs is not None:
        return library, read_inputs(inputs, library.interface)
    return library, random_inputs(library.interface, sizes, seed)


def _timed(library: Library, given: Arrays, repeat: int) -> tuple[Arrays, tuple[float, ...]]:
    """The outputs of the first run, and seconds of a run in each sample."""
    from tunehub.comparison.protocol import in_turns, wall_timer

    once = library.runner(given)
    found = library.outputs(once())
    return found, in_turns({"run": wall_timer(once)}, plan(repeat))["run"]


def plan(repeat: int) -> MeasuringPlan:
    """So many samples of one program."""
    from tunehub.comparison.protocol import MeasuringPlan

    return MeasuringPlan(rounds=repeat, sample_s=_SAMPLE_S, warm_up_s=_WARM_UP_S, budget_s=_BUDGET_S)


def _statistics(times: Sequence[float]) -> dict[str, float]:
    from statistics import median

    return {"median_s": median(times), "least_s": min(times), "most_s": max(times), "samples": len(times)}


def _shapes(arrays: Arrays) -> list[dict[str, object]]:
    return [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in arrays.items()]


def _print(facts: Mapping[str, Any]) -> None:
    for title in ("inputs", "outputs"):
        for each in facts[title]:
            say(f"{title[:-1]:<7} {each['name']} {each['dtype']} {each['shape']}")
    times = "median {:.4g} ms, {:.4g} to {:.4g}".format(
        *(1e3 * facts[name] for name in ("median_s", "least_s", "most_s"))
    )
    say(f"{times} ({facts['samples']} samples)")
