"""`tunehub run --profile`: the time of each call by the model's own node names, and what serves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.output import print_json, print_table, say
from tunehub.deploy.library import SUFFIX

if TYPE_CHECKING:
    from tunehub.deploy.arrays import Arrays
    from tunehub.deploy.interface import Interface
    from tunehub.deploy.library import Library
    from tunehub.deploy.loading import Model
    from tunehub.report.model import WorkloadReport
    from tunehub.report.profile import RunTimes, TimedCall

_SHOWN = 30


def profile(
    model: Path,
    inputs: Path | None,
    sizes: Mapping[str, int],
    seed: int,
    runs: int,
    *,
    report: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compile a model's file, or take a library and the report of its compile, run it, and print the time of each call.
    Raises what the client raises."""
    from tunehub.cli.compile import check_output, ending_cleanly, step_display
    from tunehub.report.profile import timed_calls

    if picture is not None:
        check_output(picture, "--plot", ".svg")
    with ending_cleanly(), step_display(per_second=1) as show:
        given = partial(_given, inputs, sizes, seed)
        subject, workloads = _subject(model, report, show, given)
        show("running")
        interface = subject.interface
        times = _times(subject, given(interface), runs)
    calls = timed_calls(workloads, times)
    facts = {"model": str(model), "run_s": times.run_s, "runs": times.runs, "calls": [asdict(each) for each in calls]}
    if picture is not None:
        _draw(model, interface, calls, times, picture)
    if as_json:
        print_json(facts)
    else:
        _print(calls, times)


def _subject(
    model: Path, report: Path | None, show: Callable[[str], None], check: Callable[[Interface], object]
) -> tuple[Library | Model, Sequence[WorkloadReport]]:
    """What is run, and what serves its functions, as far as that is known; ``check`` sees what it takes first."""
    from tunehub.deploy.library import Library

    if model.suffix == SUFFIX:
        show("loading")
        return Library(model), () if report is None else _reported(report)
    if report is not None:
        raise click.UsageError("--report goes with a library; a model's file is compiled, or from the cache")
    from tunehub.deploy.loading import compiled

    show("compiling, or looking into the cache")
    loaded = compiled(model, None, {}, {}, check=check)
    return loaded, loaded.report.workloads if loaded.report is not None else ()


def _reported(path: Path) -> Sequence[WorkloadReport]:
    """The workloads in a file of `tunehub compile --report`. Raises UsageError."""
    import json

    import msgspec

    from tunehub.report.model import WorkloadReport

    try:
        found = json.loads(path.read_bytes())["workloads"]
        return tuple(msgspec.convert(found, list[WorkloadReport], strict=False))
    except OSError as error:
        raise click.UsageError(f"--report {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, msgspec.ValidationError):
        raise click.UsageError(f"--report {path}: is not what `tunehub compile --report` writes") from None


def _given(inputs: Path | None, sizes: Mapping[str, int], seed: int, interface: Interface) -> Arrays:
    """The arrays of a file, or random ones, by name. Raises LibraryError where they do not fit."""
    from tunehub.deploy.arrays import random_inputs, read_inputs

    return random_inputs(interface, sizes, seed) if inputs is None else read_inputs(inputs, interface)


def _times(subject: Library | Model, given: Arrays, runs: int) -> RunTimes:
    import tvm

    from tunehub.compiler.profile import time_calls

    module = tvm.runtime.load_module(str(subject.path.resolve()))
    return time_calls(module, given, subject.interface.device, runs)


def _draw(model: Path, interface: Interface, calls: Sequence[TimedCall], times: RunTimes, picture: Path) -> None:
    from tunehub._files.atomic import create_file
    from tunehub.report.graph_picture import graph_svg
    from tunehub.target.host import host_descriptor

    source = model if model.suffix != SUFFIX else model.parent / (interface.source or "")
    kernels = [call for call in calls if call.nodes or call.rung is not None]
    title = f"{interface.source or model.name} on {host_descriptor().name}"
    text = graph_svg(kernels, _edges(source, kernels), title=title, run_s=times.run_s)
    try:
        create_file(picture, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise click.ClickException(f"--plot {picture}: {error.strerror}; give a file that you may write") from None


def _edges(source: Path, calls: Sequence[TimedCall]) -> set[tuple[int, int]]:
    """What reads what, where the model's file is there and an ONNX file: else calls stand below one another."""
    try:
        from tunehub_builder.networks.node_edges import call_edges, node_sources

        return call_edges([call.nodes for call in calls], node_sources(source) if source.is_file() else {})
    except Exception:  # without the builder, or no sound file: the picture is of what was measured
        return set()


def _print(calls: Sequence[TimedCall], times: RunTimes) -> None:
    from tunehub.report.graph_picture import served_by

    ordered = sorted(calls, key=lambda call: -call.seconds)
    rows = [
        (
            ", ".join(call.nodes) or "-",
            call.function,
            served_by(call),
            f"{1e3 * call.seconds:.4g}",
            f"{call.seconds / times.run_s:.1%}",
        )
        for call in ordered[:_SHOWN]
    ]
    print_table(("NODES", "FUNCTION", "SERVED BY", "ms", "OF A RUN"), rows, empty="nothing was called")
    left = ordered[_SHOWN:]
    if left:
        say(f"and {len(left)} calls more, {1e3 * sum(call.seconds for call in left):.4g} ms; --json has all")
    timed = sum(call.seconds for call in calls)
    say(f"a run takes {1e3 * times.run_s:.4g} ms; its calls {1e3 * timed:.4g} ms (medians of {times.runs} runs)")
