"""What more trials bring with TVM <= 0.19.

From the logs of a work directory, nothing is measured: the time of a network's tuned operators together, had every task
been given up after so many trials. Of several implementations of an operator the fastest counts, as in a build.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from tunehub_builder.backends.relay.tuner import AUTO_SCHEDULER, AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.tuning_log import scan_log

AT = (20, 200, 1000, 2000)
Trials = Mapping[tuple[str, str], Sequence[float]]  # by tuner and key: seconds of the trials in order, NaN: a failure


class NetworkTrials(msgspec.Struct, frozen=True, kw_only=True):
    """``seconds``: of all operators after so many trials a task, infinite while one has none. ``tasks``: how many, of
    which ``complete`` had as many trials as asked; ``operators``: different ones, each counted as often as called."""

    network: str
    tuner: str
    operators: int
    tasks: int
    seconds: dict[int, float]
    complete: dict[int, int]


@click.command()
@click.argument("work", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--at", "counts", multiple=True, type=int, default=AT, show_default=True, help="Trials a task.")
def main(work: Path, counts: tuple[int, ...]) -> None:
    """Print a table for the work directory WORK."""
    directory = RelayWork(WorkDirectory(work))
    click.echo(f"| network | tuner | operators | {' | '.join(f'{count:,} trials' for count in counts)} |")
    click.echo(f"|---|---|---|{'---|' * len(counts)}")
    for item in by_network(list(directory.tasks()), read_trials(directory.logs()), counts):
        cells = [f"{item.seconds[count] * 1e3:.3g} ms ({item.complete[count]}/{item.tasks})" for count in counts]
        click.echo(f"| {item.network} | {item.tuner} | {item.operators} | {' | '.join(cells)} |")


def read_trials(logs: Iterable[Path]) -> Trials:
    """The trials of all tasks in the logs, in their order."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for log in logs:
        with log.open("rb") as stream:
            for _, _, tuned, mean_s in scan_log(stream, lambda bad: None):
                found[tuned.tuner, tuned.key].append(mean_s)
    return found


def by_network(tasks: Sequence[RelayTask], trials: Trials, counts: Sequence[int]) -> list[NetworkTrials]:
    """A row for each network and tuner. Pure."""
    rows = []
    for tuner in (AUTOTVM, AUTO_SCHEDULER):
        own = [task for task in tasks if task.tuner == tuner]
        for network in sorted({name for task in own for name in task.counts}):
            called = [task for task in own if network in task.counts]
            rows.append(_row(network, tuner, called, trials, counts))
    return rows


def _row(network: str, tuner: str, tasks: Sequence[RelayTask], trials: Trials, counts: Sequence[int]) -> NetworkTrials:
    operators: dict[str, list[RelayTask]] = defaultdict(list)
    for task in tasks:
        operators[task.operator].append(task)

    def seconds(count: int) -> float:
        return sum(
            min(_best(trials.get((tuner, task.key), ()), count) for task in ways) * ways[0].counts[network]
            for ways in operators.values()
        )

    return NetworkTrials(
        network=network,
        tuner=tuner,
        operators=len(operators),
        tasks=len(tasks),
        seconds={count: seconds(count) for count in counts},
        complete={count: sum(len(trials.get((tuner, t.key), ())) >= count for t in tasks) for count in counts},
    )


def _best(seconds: Sequence[float], count: int) -> float:
    return min((each for each in seconds[:count] if not math.isnan(each)), default=math.inf)
