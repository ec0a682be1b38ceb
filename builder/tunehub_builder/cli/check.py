"""`tunehub check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors, resumable
from tunehub_builder.cli.options import (
    COUNT,
    FILE,
    FOLDER,
    POSITIVE,
    resources_of,
    threads_option,
    workers_option,
    writable,
)

if TYPE_CHECKING:
    from tunehub_builder.gate.report import CheckResult


@click.command()
@click.argument("path", metavar="DIR|FILE|PACKAGE", type=click.Path(path_type=Path))
@click.option("--work", type=FOLDER, help="With FILE: the work directory that has the records' workloads.")
@click.option("--launch-on", metavar="ARCH", help="PACKAGE for CUDA: compile its kernels for this GPU, such as sm_80.")
@click.option("--end-to-end", is_flag=True, help="Also judge whole networks; PACKAGE is judged by them alone.")
@click.option("--again", is_flag=True, help="PACKAGE: judge its rows beside what rules have today.")
@click.option(
    "--sample", type=COUNT, help="--again: measure so many rows, drawn by their keys; 0 on any machine.  [all]"
)
@click.option("--ahead", is_flag=True, help="--again, on a GPU: only build what is to be measured; it needs none.")
@click.option("-o", "--output", type=FILE, callback=writable,
              help="--again: the evidence, for `pack --judged`.  [PACKAGE.judged.jsonl]")  # fmt: skip
@click.option("--processes", type=POSITIVE, help="End to end: new processes of each side.  [3, 1 on a GPU]")
@click.option("--network", "names", multiple=True, metavar="NAME", help="End to end, --again: only this network.")
@click.option("--model", "models", multiple=True, type=FILE,
              help="End to end: an ONNX file, as was tuned in DIR. --again: one that has workloads.")  # fmt: skip
@click.option("--from-misses", "misses", multiple=True, type=FILE, help="--again: a file of misses that has workloads.")
@threads_option
@workers_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def check(
    path: Path,
    work: Path | None,
    launch_on: str | None,
    end_to_end: bool,
    again: bool,
    sample: int | None,
    ahead: bool,
    output: Path | None,
    processes: int | None,
    names: tuple[str, ...],
    models: tuple[Path, ...],
    misses: tuple[Path, ...],
    threads: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Decide which records may be published; leave the machine alone meanwhile.

    DIR is a work directory: its three best candidates of each workload are compared with the default schedule, and the
    verdicts are kept there for `pack`. What other programs disturbed is judged again behind all others, three times at
    most; then it stays without a verdict, and the next call judges it. FILE holds records as `distill -o` writes them:
    without --work only their format and their traces are checked. With FILE, any rejected record means exit code 1.

    --end-to-end compiles the networks of DIR, or of a PACKAGE (.tunepkg), with TVM's default, with tunehub without
    records and with the admitted ones, and runs them in turns: on a CPU the last two in --processes new processes each,
    medians of medians, since what memory a process gets makes it faster or slower for as long as it runs. `pack` leaves
    records out that only rejected networks call; a rejected network of a PACKAGE means exit code 1.

    --again measures the rows of a PACKAGE for this machine beside what a client has without them today, and appends
    what it finds to a file, row by row: a run that was cut off goes on where it ended. Rows that have the very schedule
    of today's rules need no measuring, and no such machine with --sample 0. A ladder is measured at each of its sizes.
    With --end-to-end networks that the package has times of, or those given, are run, too, with the records and by
    rules alone. Rows that lost, and networks that are slower with the records, mean exit code 1; `tunehub pack --with
    PACKAGE --judged FILE` leaves those rows out, those that such networks alone call, and their times. Rows of the
    network that --network names first are measured first. --ahead builds what is to be measured on a GPU into FILE with
    .built in place of its suffix, on any machine with the same programs; the next --again with that FILE loads it.

    --launch-on sm_80 --work DIR compiles every kernel of a PACKAGE for that GPU, and refuses those that take more
    threads, shared memory or registers than it has; no GPU is needed.

    With TVM 0.19 and older, the five best records of each workload are compared with the template's default, and then
    every network is run end to end: with TVM's default, with the best records, and with graph-level records.
    """
    from tunehub_builder.gate import check as gate
    from tunehub_builder.gate.apart import PROCESSES

    _check_usage(path, end_to_end, names, launch_on, work, again)
    if not again and (sample is not None or output or misses or ahead):
        raise click.UsageError("--sample, --output, --ahead and --from-misses are for --again")
    if processes is not None and not end_to_end:
        raise click.UsageError("--processes is for --end-to-end")
    processes = processes or PROCESSES
    with errors():
        resources = resources_of(threads, workers)
        if launch_on is not None and work is not None:
            from tunehub_builder.gate.launch_check import check_launches

            outcome = check_launches(path, work, launch_on, sys.stderr)
        elif again:
            from tunehub_builder.gate.again import AgainRequest, check_again
            from tunehub_builder.replay.workloads import WorkloadFiles

            files = WorkloadFiles(models=tuple(map(str, models)), misses=tuple(map(str, misses)))
            request = AgainRequest(
                count=sample, names=names, files=files, end_to_end=end_to_end, ahead=ahead, processes=processes
            )
            outcome = check_again(path, request, output or path.with_suffix(".judged.jsonl"), resources, sys.stderr)
        elif path.is_dir():
            with resumable(path):
                outcome = gate.check_work_directory(
                    path, resources, models, end_to_end=end_to_end, networks=names, processes=processes
                )
        elif end_to_end:
            outcome = gate.check_package(path, resources, names, models, sys.stderr, processes=processes)
        else:
            outcome = gate.check_file(path, work, resources)
    _print(outcome, as_json=as_json)
    refused = outcome.rejected or any(not network.admitted for network in outcome.networks)
    if refused and not path.is_dir():
        raise SystemExit(1)


def _print(outcome: CheckResult, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome.as_json())
    else:
        say(*outcome.text().splitlines())


def _check_usage(
    path: Path, end_to_end: bool, names: Sequence[str], launch_on: str | None, work: Path | None, again: bool
) -> None:
    """Raise UsageError for options that do not go with what is checked."""
    is_package = path.suffix == ".tunepkg" and not path.is_dir()
    if again:
        if not is_package or launch_on is not None or work is not None:
            raise click.UsageError("--again is for a package (.tunepkg), without --launch-on and --work")
        return
    if launch_on is not None:
        if not is_package or work is None or end_to_end:
            raise click.UsageError("--launch-on is for a package (.tunepkg) and --work, without --end-to-end")
        return
    if names and not end_to_end:
        raise click.UsageError("--network is for --end-to-end and --again")
    if is_package and not end_to_end:
        reason = "a package's records were judged when it was made"
        raise click.UsageError(f"{reason}; --end-to-end judges networks with it, --again its rows anew")
    if end_to_end and not is_package and not path.is_dir():
        raise click.UsageError("--end-to-end is for a work directory or a package (.tunepkg)")
