"""Many architectures that nobody tuned: right or not, and how fast beside other runtimes.

Needs the extra ``zoo``. Each runtime has a process of its own, and the processes take turns. Results are kept line by
line in the work folder: a network that is done is not done again. A run of the whole zoo writes
``benchmarks/results/zoo-DEVICE-DATE.json``, and ``docs/zoo.md`` from the latest of each device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import click

from benchmarks.shared.table import Row
from benchmarks.zoo.architectures import Architecture, architectures, at_batch, in_half
from benchmarks.zoo.document import keep, machine_of, write_document, write_summary
from benchmarks.zoo.results import ZooJournal, ZooSummary, rows, summarize
from benchmarks.zoo.running import PLANS, ZooRun

_FOLDER = click.Path(file_okay=False, path_type=Path)
OPTIONS = (
    click.Option(["--device"], type=click.Choice(list(PLANS)), default="cpu", show_default=True),
    click.Option(["--only"], default="*", help="Networks by names or patterns, separated by commas."),
    click.Option(["--half"], type=int, default=0, help="In half precision, this many inputs at once."),
    click.Option(["--batch"], type=int, default=0, help="In float32, this many inputs at once."),
    click.Option(["--check-only"], is_flag=True, help="Compare outputs, time nothing: the machine need not be quiet."),
    click.Option(["--export", "export_to"], type=_FOLDER, help="Only export the networks, into this folder."),
    click.Option(["--from", "exports"], type=_FOLDER, help="Exported networks.  [default: in the work folder]"),
    click.Option(["--work"], type=_FOLDER, default=Path("work/zoo"), show_default=True),
    click.Option(["--again"], is_flag=True, help="Forget the results in the work folder."),
    click.Option(["--jobs"], default=1, show_default=True, help="Networks to export or compile at once."),
    click.Option(["--seconds"], type=float, default=math.inf, help="Begin no network after so long."),
)


def run(
    device: str, only: str, half: int, batch: int, check_only: bool, export_to: Path | None, exports: Path | None,
    work: Path, again: bool, jobs: int, seconds: float,
) -> list[Row]:  # fmt: skip
    """Export and run the networks that ``only`` names; the rows of all that are done.

    Raises ClickException for a pattern that names none, or without PyTorch where something must be exported.
    """
    if half and batch:
        raise click.ClickException("--half is inputs in half precision, --batch inputs in float32: give one of them")
    of = f"-half{half}" if half else f"-batch{batch}" if batch else ""
    chosen = tuple(in_half(item, half) if half else at_batch(item, batch) if batch else item for item in select(only))
    plan = None if check_only else PLANS[device]
    zoo = ZooRun(exports=export_to or exports or work / "exports", device=device, plan=plan, jobs=jobs, seconds=seconds)
    if export_to is not None:
        failed = zoo.export(chosen)
        exported = Row(name="exported", value=len(chosen) - len(failed), unit="count", note=f"of {len(chosen)}")
        return [exported, *(Row(name=f"{name}_failed", value=1, unit="count", note=failed[name]) for name in failed)]
    journal = ZooJournal(work / f"{device}{'-check' if check_only else ''}.jsonl")
    if again:
        journal.forget(item.name for item in chosen)
    summary = run_zoo(zoo, chosen, journal)
    write_summary(summary, work / f"zoo-{device}{of}.json")
    if not check_only and not of and len(summary.networks) == len(architectures()):
        keep(summary)
        write_document()
    return rows(summary)


def run_zoo(zoo: ZooRun, chosen: Sequence[Architecture], journal: ZooJournal) -> ZooSummary:
    """Run what the journal lacks; all of ``chosen`` that are done."""
    zoo.run(chosen, journal)
    known = journal.results()
    done = [known[item.name] for item in chosen if item.name in known]
    return summarize(zoo.device, machine_of(zoo.device), done)


def select(patterns: str) -> tuple[Architecture, ...]:
    """The architectures whose names match one of the ``patterns``, separated by commas. Raises ClickException."""
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    chosen = tuple(item for item in architectures() if any(fnmatch(item.name, pattern) for pattern in wanted))
    if not chosen:
        raise click.ClickException(f"--only {patterns!r} matches none of {', '.join(i.name for i in architectures())}")
    return chosen
