"""What the process of a fleet's job does: it builds candidates for elsewhere, or measures what came from elsewhere.

On a CPU, jobs of one machine keep out of each other's way by a lock on a file in its temporary folder: any number
build at a time, or one measures. A GPU has a lock of its own, which its session takes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub_builder.backends.relax.target import find_relax_target
from tunehub_builder.tuning import target as machine
from tunehub_builder.tuning.runner.archive import Archive
from tunehub_builder.tuning.runner.messages import MeasureOptions
from tunehub_builder.tuning.runner.rpc_board import Board, Visit
from tunehub_builder.tuning.runner.worker import TraceSession

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a device's process says of itself: its target as :class:`machine.TuningTarget` has it, the hardware, the
    cores that measure, and the versions of apache-tvm and apache-tvm-ffi."""

    target_name: str
    target: dict[str, Any]
    vector: int
    machine: dict[str, str | int | float]
    threads: int
    versions: tuple[str, str]
    can_link: bool


class JobSession:
    """The requests of jobs; behind it is the session of the tuner, such as :class:`TraceSession`."""

    def __init__(self, make_session: Callable[[], TraceSession] = TraceSession, board: Board | None = None) -> None:
        """``board``: candidates are measured there, and not on this machine."""
        self._session = make_session()
        self._visit = None if board is None else Visit(board)
        self._turn = MachineTurn()
        self._archive: Archive | None = None

    def facts(self, target_name: str) -> Facts:
        """What this machine is. Raises NoSuchTargetError or UnsuitableTargetError when it is none for the target."""
        from tunehub.target.host import physical_cores

        target = find_relax_target(target_name)
        return Facts(
            target_name=target.name,
            target=target.config,
            vector=target.vector,
            machine=machine.describe_machine(target),
            threads=physical_cores(),
            versions=machine.tvm_versions(),
            can_link=can_link(),
        )

    def versions(self) -> tuple[str, str]:
        """Of apache-tvm and apache-tvm-ffi."""
        return machine.tvm_versions()

    def task(self, task: str, module: str) -> None:
        """As the tuner's session."""
        self._session.task(task, module)

    def begin_build(self, target: TargetLike) -> None:
        """Wait until no job measures on this CPU."""
        if self._visit is None and _is_cpu(target):
            self._turn.share()

    def build(self, task: str, target: TargetLike, candidate: Any) -> Archive:
        """Build a candidate; None is the default."""
        return self._session.archive(task, target, candidate)

    def load(self, target: TargetLike, archive: Archive) -> None:
        """Take a built candidate."""
        self._archive = archive
        if self._visit is None:
            self._session.load(0, target, archive)

    def begin_measure(self, target: TargetLike, limit_s: float) -> None:
        """Wait until the device is free for this process alone."""
        if self._visit is not None:
            self._visit.begin(limit_s)
        elif _is_cpu(target):
            self._turn.take()

    def measure(self, target: TargetLike, best_s: float | None, options: MeasureOptions) -> tuple[float, ...]:
        """Seconds of a run of the candidate that was loaded last."""
        if self._visit is None:
            return self._session.measure(0, best_s, options)
        assert self._archive is not None
        return self._visit.measure(target, self._archive, best_s, options)

    def device_answers(self) -> bool:
        """False when the device was lost, whatever became of the candidate."""
        return self._visit is None or self._visit.answers()

    def end(self) -> None:
        """Let others build or measure."""
        self._archive = None
        self._session.drop()
        self._turn.leave()
        if self._visit is not None:
            self._visit.end()


class MachineTurn:
    """Who may use the cores of this machine: several share them to build, or one takes them to measure.

    Whoever waits holds the door, so that those who come later do not get past it. The system releases the locks of a
    process that dies.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._held: int | None = None

    def share(self) -> None:
        """Wait until nobody has taken the machine."""
        import fcntl

        self._enter(fcntl.LOCK_SH)

    def take(self) -> None:
        """Wait until nobody else uses the machine."""
        import fcntl

        self._enter(fcntl.LOCK_EX)

    def leave(self) -> None:
        """Give back what was shared or taken."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _enter(self, kind: int) -> None:
        import fcntl

        self.leave()
        door = self._open("door")
        try:
            fcntl.flock(door, fcntl.LOCK_EX)
            self._held = self._open("cores")
            fcntl.flock(self._held, kind)
        finally:
            os.close(door)

    def _open(self, name: str) -> int:
        path = self._folder / f"tunehub-{os.getuid()}-{name}.lock"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def cuda_session() -> TraceSession:
    """The session for the GPU that ``CUDA_VISIBLE_DEVICES`` gives to this process, the first one by default."""
    from tunehub_builder.tuning.runner.cuda_worker import CudaSession

    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip() or "0"
    return CudaSession(str(Path(tempfile.gettempdir()) / f"tunehub-{os.getuid()}-gpu{device}.lock"), device)


def can_link() -> bool:
    """Whether a C compiler is here, which links candidates."""
    from tvm.support import cc

    return bool(cc.get_cc())


def _is_cpu(target: TargetLike) -> bool:
    return str(target.get("kind")) == "llvm"
