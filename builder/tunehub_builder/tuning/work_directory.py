"""The work directory of one target: what is tuned, how, and every trial, so that any command can go on from it.

``run.json`` says what was run, ``tasks.jsonl`` holds the workloads, ``trials.jsonl`` is the journal of measurements,
``verdicts.jsonl`` that of the publish gate, ``machine_profile.json`` holds what was measured of the CPU that tunes,
``native.log`` what TVM's C++ code printed. For what TVM <= 0.19 adds see ``relay.work``. Nothing here imports tvm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.tuning.journal import write_atomically
from tunehub_registry.exceptions import FormatError
from tunehub_registry.machine_profile import PROFILE, MachineProfile, encode_profile, parse_profile
from tunehub_registry.manifest import NetworkEntry

FORMAT_VERSION = 1
_RUN, _TASKS, _LOCK, _LOG = "run.json", "tasks.jsonl", "lock", "native.log"
_GPU_LOCK = re.compile(r"gpu\d*\.lock")  # as `runner.cuda_worker.gpu_lock` names them
Options = dict[str, str | int | float | bool]


class TuningRun(msgspec.Struct, frozen=True, kw_only=True):
    """One call of `tunehub tune`. `command` holds no paths; dates are ISO 8601, UTC."""

    command: str
    started: str
    updated: str
    seed: int
    threads: int
    networks: tuple[str, ...]
    options: Options
    machine: dict[str, str | int | float]


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`. What `identity` holds never changes; every run adds itself and the networks it tunes.

    `tuner` is given for `template`, whose workloads are those of networks with planned layouts.
    """

    format_version: int = FORMAT_VERSION
    target_name: str
    target: dict[str, Any]
    tvm_version: str
    tvm_ffi_version: str
    tuner: str | None = None
    networks: tuple[NetworkEntry, ...] = ()
    runs: tuple[TuningRun, ...] = msgspec.field(default=(), name="sittings")

    @property
    def identity(self) -> dict[str, str]:
        """What trials must have in common to be compared, by its name for people."""
        target = msgspec.json.encode(self.target, order="sorted").decode()
        return {
            "target": target,
            "TVM version": f"{self.tvm_version} (apache-tvm-ffi {self.tvm_ffi_version})",
            "tuner": self.tuner or "meta_schedule",
        }

    @property
    def relay_target(self) -> str | None:
        """The target as TVM <= 0.19 writes it, when that generation was run; else None."""
        text = self.target.get("text")
        return text if isinstance(text, str) else None


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One workload: its keys, how often each network calls it, and its IRModule as TVM's JSON.

    What follows are its classes, as records have them; entries written before there were classes have none. A symbolic
    workload has ``points``, the values of its symbols at which it is tuned. ``types`` are the element types that it
    writes; none in entries from before networks had precisions, which are in float32 or float16.
    """

    name: str
    exact: str
    anchor: str | None
    counts: dict[str, int]
    module: str
    op_class: str | None = None
    extents: tuple[int, ...] = ()
    anchor_class: str | None = None
    anchor_extents: tuple[int, ...] = ()
    points: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()


class WorkDirectory:
    """Reads and writes the files of one work directory. Write only inside :meth:`locked`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / _LOG

    @contextmanager
    def locked(self, *, create: bool = False) -> Iterator[WorkDirectory]:
        """Hold the directory against other processes.

        Raises WorkDirectoryError when it is missing, in use, not writable, or a folder of something else.
        """
        self._check(create)
        lock = FileLock(self.path / _LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            remedy = "wait until it ends, or choose another folder"
            raise WorkDirectoryError(self.path, "another tunehub process is using it", remedy) from error
        except OSError as error:
            raise WorkDirectoryError(
                self.path, f"cannot be locked: {error}", "choose a folder you may write"
            ) from error
        try:
            yield self
        finally:
            lock.release()

    def run(self) -> RunFile | None:
        """What was run so far; None in a new directory. Raises WorkDirectoryError when the file is not readable."""
        path = self.path / _RUN
        if not path.exists():
            return None
        remedy = "give the folder of a `tunehub tune`, or start a new one"
        try:
            run = msgspec.json.decode(path.read_bytes(), type=RunFile)
        except (OSError, msgspec.DecodeError) as error:
            raise WorkDirectoryError(path, f"not readable as a run: {error}", remedy) from error
        if run.format_version != FORMAT_VERSION:
            reason = f"has format {run.format_version}, this tunehub reads {FORMAT_VERSION}"
            raise WorkDirectoryError(path, reason, "use the tunehub that wrote it, or start a new folder")
        return run

    def existing_run(self) -> RunFile:
        """The run of a directory that must have one. Raises WorkDirectoryError."""
        run = self.run() if self.path.is_dir() else None
        if run is None:
            reason = f"is not a work directory (it has no {_RUN})"
            raise WorkDirectoryError(self.path, reason, "give the folder of a `tunehub tune --work`")
        return run

    def save_run(self, run: RunFile) -> None:
        """Replace ``run.json``. Raises WorkDirectoryError when the disk refuses."""
        write_atomically(self.path / _RUN, [msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"])

    def profile(self) -> MachineProfile | None:
        """The profile of the machine that tuned, if it was measured. Raises WorkDirectoryError for a damaged file."""
        path = self.path / PROFILE
        try:
            return parse_profile(path.read_bytes(), str(path)) if path.exists() else None
        except (OSError, FormatError) as error:
            raise WorkDirectoryError(path, str(error), "delete it: the next `tunehub tune` measures again") from error

    def save_profile(self, profile: MachineProfile) -> None:
        """Keep the profile of the machine that tunes. Raises WorkDirectoryError when the disk refuses."""
        write_atomically(self.path / PROFILE, [encode_profile(profile)])

    def tasks(self) -> Iterator[TaskEntry]:
        """The workloads, one at a time. Raises WorkDirectoryError for a line that is none."""
        path = self.path / _TASKS
        if not path.exists():
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield msgspec.json.decode(line, type=TaskEntry)
                except msgspec.DecodeError as error:
                    remedy = "run `tunehub tune` once more: it writes the file anew"
                    raise WorkDirectoryError(path, f"line {number} is not a task: {error}", remedy) from error

    def save_tasks(self, tasks: Iterable[TaskEntry]) -> None:
        """Replace ``tasks.jsonl``. Raises WorkDirectoryError when the disk refuses."""
        write_atomically(self.path / _TASKS, (msgspec.json.encode(task) + b"\n" for task in tasks))

    def _check(self, create: bool) -> None:
        try:
            if create:
                self.path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in self.path.iterdir()}
        except OSError as error:
            reason = f"not usable as a work directory: {error.strerror or error}"
            raise WorkDirectoryError(self.path, reason, "give a folder that you may read and write") from error
        others = {name for name in names - {_LOCK, _LOG} if not _GPU_LOCK.fullmatch(name)}
        if others and _RUN not in names:
            reason = f"holds other files and no {_RUN}, so it is not a work directory"
            raise WorkDirectoryError(self.path, reason, "give a new or an empty folder")


def check_same_run(path: Path, known: RunFile, new: RunFile) -> None:
    """Raise WorkDirectoryError when trials of ``new`` cannot go with those of ``known``."""
    for what, before in known.identity.items():
        now = new.identity[what]
        if before != now:
            reason = f"was tuned with another {what}: {before}, now {now}; times of the two cannot be compared"
            raise WorkDirectoryError(path, reason, f"use the same {what}, or a new --work folder")


def merge_tasks(known: Iterable[TaskEntry], network: str, tasks: Sequence[TaskEntry]) -> list[TaskEntry]:
    """Return ``known`` with the workloads of ``network`` replaced by ``tasks``; what no network calls any more goes."""
    merged = {}
    for entry in known:
        counts = {name: count for name, count in entry.counts.items() if name != network}
        merged[entry.exact] = msgspec.structs.replace(entry, counts=counts)
    for task in tasks:
        before = merged.get(task.exact)
        counts = {**(before.counts if before else {}), **task.counts}
        merged[task.exact] = msgspec.structs.replace(task, counts=counts)
    return [entry for entry in merged.values() if entry.counts]
