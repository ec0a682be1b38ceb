"""The side of a work directory that belongs to TVM <= 0.19: logs in TVM's own formats, and the tasks they are of.

``autotvm.log``, ``auto_scheduler.json`` and ``graph/<network>.log`` hold TVM's own lines, ``layout_transforms.log`` the
times of layout transforms that the graph tuner measured, ``relay_tasks.jsonl`` what was tuned, ``failures.jsonl`` why
trials failed on a GPU, ``auto_scheduler_graphs.jsonl`` what the auto-scheduler's tasks compute. Imports no tvm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tunehub.relay.types import Workload
from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.tuning.journal import LineJournal, cut_torn_line, write_atomically
from tunehub_builder.tuning.work_directory import WorkDirectory

# MeasureErrorNo of AutoTVM and of the auto-scheduler (the same numbers in both, TVM 0.8 to 0.19).
_FAILURES = {
    1: "INSTANTIATION_ERROR",
    2: "COMPILE_HOST",
    3: "COMPILE_DEVICE",
    4: "RUNTIME_DEVICE",
    5: "WRONG_ANSWER",
    6: "BUILD_TIMEOUT",
    7: "RUN_TIMEOUT",
    8: "UNKNOWN_ERROR",
}
UNKNOWN_ERROR = 8
# What is told apart besides on a GPU, and the number that TVM's format has for it.
TOO_MANY_THREADS, SHARED_MEMORY, LOCAL_MEMORY = "TOO_MANY_THREADS", "SHARED_MEMORY", "LOCAL_MEMORY"
REGISTERS, CRASH = "REGISTERS", "CRASH"
_FINER = {TOO_MANY_THREADS: 1, SHARED_MEMORY: 1, LOCAL_MEMORY: 3, REGISTERS: 4, CRASH: UNKNOWN_ERROR}
REASONS = (*_FAILURES.values(), *_FINER)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class RelayTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one tuner tuned. ``counts``: how often each network calls it; ``flop``: operations of one call; ``space``:
    number of configs, None where there is no such number. Tasks of one ``operator`` are ways to compute the same."""

    tuner: str
    name: str
    key: str
    operator: str
    workload: Workload
    counts: dict[str, int]
    flop: float
    space: int | None = None


class FailedTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Why a trial failed, where TVM's log has a number only: a line of ``failures.jsonl``."""

    tuner: str
    task: str
    reason: str
    error: str


class SearchGraph(msgspec.Struct, frozen=True, kw_only=True):
    """What a task of the auto-scheduler computes, by our ``key``: TVM's key, and the tensors as TVM's JSON."""

    key: str
    workload_key: str
    tensors: str


class RelayWork:
    """Paths and tasks in ``directory``. Write only while it is locked."""

    def __init__(self, directory: WorkDirectory) -> None:
        self.directory = directory
        self.path = directory.path
        self.autotvm_log = self.path / "autotvm.log"
        self.auto_scheduler_log = self.path / "auto_scheduler.json"
        self.layout_log = self.path / "layout_transforms.log"
        self.failed = LineJournal(self.path / "failures.jsonl", FailedTrial)
        self._tasks = self.path / "relay_tasks.jsonl"
        self._graphs = LineJournal(self.path / "auto_scheduler_graphs.jsonl", SearchGraph)

    def graph_log(self, network: str) -> Path:
        """The record file of the graph tuner for ``network``."""
        return self.path / "graph" / f"{_UNSAFE.sub('_', network)}.log"

    def logs(self) -> list[Path]:
        """The logs that exist, those of whole graphs last."""
        found = [self.autotvm_log, self.auto_scheduler_log, self.layout_log]
        return [path for path in (*found, *sorted((self.path / "graph").glob("*.log"))) if path.exists()]

    def heal(self) -> None:
        """Cut a torn last line off every log, so that the next one starts on a line of its own."""
        for path in self.logs():
            cut_torn_line(path)
        self.failed.heal()

    def failures(self, tuner: str, known: Mapping[str, Mapping[str, int]]) -> dict[str, Counter[str]]:
        """The failures of each task by reason; ``known``: the same as TVM's log tells it, by TVM's names.

        Raises WorkDirectoryError for a line that is no failure.
        """
        found = {key: Counter[str]() for key in known}
        for trial in self.failed.entries():
            if trial.tuner == tuner and trial.task in found:
                found[trial.task][trial.reason] += 1
        # Trials that were measured in another way are in TVM's log alone.
        return {
            key: reasons if reasons.total() == sum(known[key].values()) else Counter(known[key])
            for key, reasons in found.items()
        }

    def tasks(self, tuner: str | None = None) -> Iterator[RelayTask]:
        """The tasks, or those of one tuner, one at a time. Raises WorkDirectoryError for a line that is none."""
        if not self._tasks.exists():
            return
        with self._tasks.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    task = msgspec.json.decode(line, type=RelayTask)
                except msgspec.DecodeError as error:
                    remedy = "run `tunehub tune` once more: it writes the file anew"
                    raise WorkDirectoryError(self._tasks, f"line {number} is not a task: {error}", remedy) from error
                if tuner in (None, task.tuner):
                    yield task

    def save_tasks(self, tuner: str, networks: Iterable[str], tasks: Sequence[RelayTask]) -> None:
        """Replace the tasks that ``tuner`` has for ``networks`` by ``tasks``; what no network calls any more goes.

        Raises WorkDirectoryError when the disk refuses.
        """
        merged = merge_relay_tasks(self.tasks(), tuner, networks, tasks)
        write_atomically(self._tasks, (msgspec.json.encode(task) + b"\n" for task in merged))

    def graphs(self) -> dict[str, SearchGraph]:
        """What the auto-scheduler's tasks compute, by our key. Raises WorkDirectoryError for a line that is none."""
        return {graph.key: graph for graph in self._graphs.entries()}

    def save_graphs(self, graphs: Iterable[SearchGraph]) -> None:
        """Add those that are not known yet. Raises WorkDirectoryError when the disk refuses."""
        self._graphs.heal()
        known = self.graphs()
        self._graphs.append(*(graph for graph in graphs if graph.key not in known))


def merge_relay_tasks(
    known: Iterable[RelayTask], tuner: str, networks: Iterable[str], tasks: Sequence[RelayTask]
) -> list[RelayTask]:
    """``known`` with the calls of ``networks`` under ``tuner`` replaced by those of ``tasks``."""
    gone = set(networks)
    merged: dict[tuple[str, str], RelayTask] = {}
    for task in known:
        counts = {name: count for name, count in task.counts.items() if task.tuner != tuner or name not in gone}
        merged[task.tuner, task.key] = msgspec.structs.replace(task, counts=counts)
    for task in tasks:
        before = merged.get((tuner, task.key))
        counts = {**(before.counts if before else {}), **task.counts}
        merged[tuner, task.key] = msgspec.structs.replace(task, counts=counts)
    return [task for task in merged.values() if task.counts]


def failure_name(error_no: int) -> str | None:
    """TVM's name of a measurement's ``error_no``; None for 0, which is no failure."""
    return None if error_no == 0 else _FAILURES.get(error_no, _FAILURES[UNKNOWN_ERROR])


def failure_number(name: str | None) -> int:
    """The ``error_no`` of a failure called ``name``, one of :data:`REASONS`; 0 for None, which is no failure."""
    if name is None:
        return 0
    if name in _FINER:
        return _FINER[name]
    return next(number for number, known in _FAILURES.items() if known == name)
