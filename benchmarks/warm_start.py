"""Trials until a network is nearly as fast as tuning makes it, with a warm start and without.

Each of the networks ``TUNEHUB_WARM_NETWORKS`` (names of ``tunehub networks`` or ONNX files, separated by commas; by
default zfnet512, which no package knows) is tuned twice by each of ``TUNEHUB_WARM_TUNERS`` (default both) into the
folder ``TUNEHUB_WARM_WORK``: once without a warm start and once with one, from the package that is resolved as always.
What the journals hold is not measured again, so a run that was stopped goes on.

Counted is what one trial of each workload after the other costs: in each round every workload that has another trial
measures it, and the network's time is the sum of the best so far times the calls. On a GPU, where tuning leaves alone
what promises nothing, a workload begins with the time of TVM's own schedule. The goal of both is 95 % of the speed at
which tuning without a warm start ends.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.shared.table import Row
from tunehub_builder.tuning.journal import Journal
from tunehub_builder.tuning.scheduler.cuda import default_journal
from tunehub_builder.tuning.work_directory import WorkDirectory

_SHARE = 0.95
_TUNERS = ("template", "meta_schedule")


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """How a network got faster: after each round the number of trials so far, and the network's time in seconds.

    ``sources``: how many trials each source had.
    """

    rounds: tuple[tuple[int, float], ...]
    sources: Mapping[str, int]

    @property
    def final_s(self) -> float:
        """The network's time after all trials; infinite when a workload has no trial that worked."""
        return self.rounds[-1][1] if self.rounds else math.inf

    @property
    def trials(self) -> int:
        """All trials."""
        return self.rounds[-1][0] if self.rounds else 0

    def trials_to(self, goal_s: float) -> int | None:
        """The trials until the network takes no longer than ``goal_s``; None when it never gets there."""
        return next((count for count, seconds in self.rounds if seconds <= goal_s), None)


def run(trials: int | None = None) -> list[Row]:
    """Tune what is not tuned yet, and compare. ``trials``: the most of each workload, by default as `tunehub tune`.

    Raises ClickException without a folder, or when tuning fails.
    """
    folder = os.environ.get("TUNEHUB_WARM_WORK")
    if not folder:
        raise click.ClickException("set TUNEHUB_WARM_WORK to a folder for the work directories")
    rows = []
    for network in os.environ.get("TUNEHUB_WARM_NETWORKS", "zfnet512").split(","):
        for tuner in os.environ.get("TUNEHUB_WARM_TUNERS", ",".join(_TUNERS)).split(","):
            name = f"{Path(network).stem}_{tuner}"
            folders = {way: Path(folder) / f"{name}_{way}" for way in ("cold", "warm")}
            cold, warm = (_tuned(network, tuner, place, way, trials) for way, place in folders.items())
            rows += compared(name, cold, warm)
    return rows


def compared(name: str, cold: Course, warm: Course) -> list[Row]:
    """The rows of one network and tuner."""
    goal_s = cold.final_s / _SHARE
    without, needed = cold.trials_to(goal_s) or cold.trials, warm.trials_to(goal_s)
    seeds = sum(count for source, count in warm.sources.items() if source.startswith("registry "))
    never = "" if needed else "; never reached, so all of them"
    trials = f"{warm.trials} trials, {seeds} of records"
    return [
        Row(name=f"{name}_ms", value=1e3 * cold.final_s, unit="ms", note=f"sum of kernels, {cold.trials} trials"),
        Row(name=f"{name}_warm_ms", value=1e3 * warm.final_s, unit="ms", note=trials),
        Row(name=f"{name}_trials", value=without, unit="count", note=f"to {_SHARE:.0%} of the final speed"),
        Row(name=f"{name}_warm_trials", value=needed or warm.trials, unit="count", note=f"to the same speed{never}"),
        Row(name=f"{name}_fewer_trials", value=without / (needed or warm.trials), unit="times"),
    ]


def course(
    times: Mapping[str, Sequence[float]],
    calls: Mapping[str, int],
    sources: Mapping[str, int],
    defaults: Mapping[str, float],
) -> Course:
    """The course of a network from the seconds of each workload's trials in order (infinite: failed) and its calls;
    ``defaults``: seconds that count before any trial."""
    best = dict.fromkeys(times, math.inf) | dict(defaults)
    rounds, count = [], 0
    for number in range(max(map(len, times.values()), default=0)):
        for task, seconds in times.items():
            if number < len(seconds):
                count += 1
                best[task] = min(best[task], seconds[number])
        rounds.append((count, sum(best[task] * calls[task] for task in times)))
    return Course(rounds=tuple(rounds), sources=sources)


def course_of(directory: Path, network: str) -> Course:
    """The course of ``network`` in a work directory. Raises WorkDirectoryError."""
    calls = {task.exact: task.counts[network] for task in WorkDirectory(directory).tasks() if network in task.counts}
    times: dict[str, list[float]] = {task: [] for task in calls}
    sources = Counter[str]()
    for trial in Journal(directory).trials():
        if trial.task in calls:
            times[trial.task].append(trial.mean_s)
            sources[trial.source] += 1
    defaults = {each.task: each.mean_s for each in default_journal(directory).entries() if each.task in calls}
    return course(times, calls, sources, defaults)


def _tuned(network: str, tuner: str, directory: Path, way: str, trials: int | None) -> Course:
    """Tune with the command line, as a user does."""
    what = ["--model" if network.endswith(".onnx") else "--network", network]
    words = ["tune", "--target", "host", *what, "--tuner", tuner, "--work", str(directory)]
    words += [] if trials is None else ["--trials", str(trials)]
    words.append("--warm-start" if way == "warm" else "--no-warm-start")
    call = [sys.executable, "-c", "from tunehub.cli import main; main()", *words]
    done = subprocess.run(call, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise click.ClickException(
            f"`tunehub {' '.join(words)}` ended with exit code {done.returncode}; run it to see why"
        )
    return course_of(directory, Path(network).stem)
