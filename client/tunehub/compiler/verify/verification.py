"""How a hub verifies schedules: which ones, on which device, and with what it remembers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.compiler.verify.limits import VerifyLimits
from tunehub.exceptions import HubError
from tunehub.options import Verify
from tunehub.target.host import gpu_descriptor, host_descriptor, physical_cores
from tunehub_registry.target import Accepted, TargetDescriptor, match

if TYPE_CHECKING:  # opening a hub needs none of it
    from tunehub.compiler.artifacts.store import ArtifactStore
    from tunehub.compiler.schedule.request import Served
    from tunehub.compiler.verify.memory import VerdictMemory
    from tunehub.compiler.verify.port import ScheduleVerifier
    from tunehub.compiler.verify.static import FindFault
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

VERIFY_VERSION = 8
"""Changes whenever running a schedule could give another verdict than before."""
MOST_WORKERS = 8  # processes; each has TVM in memory, and on a GPU a context of its own
_EXPLAINED, _NEVER, _FAILED = "explaining runs nothing", "verify=never", "running it failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Where code for a target can be run here: its ``name``, or None and ``reason`` says why it cannot."""

    name: str | None = None
    model: str | None = None
    reason: str = ""


class Verification:
    """What a hub does with the option ``verify``; ``mode`` is its value."""

    def __init__(
        self,
        mode: Verify,
        *,
        host: TargetDescriptor,
        cache: Path,
        kernels: ArtifactStore | None = None,
        measured_package: str | None = None,
        foreign: bool = False,
        on_problem: Callable[[HubError], None],
        limits: VerifyLimits | None = None,
    ) -> None:
        """``host`` describes the target. ``measured_package`` (name and version) has records that were measured on
        ``host``; ``foreign``: some are neither the user's own nor came with tunehub. ``cache`` is the folder in which
        verdicts are kept, ``kernels`` keeps machine code."""
        self.mode: Verify = mode
        self.limits = limits or VerifyLimits()
        self._host, self._cache, self._on_problem, self._kernels = host, cache, on_problem, kernels
        self._measured_package, self._foreign = measured_package, foreign
        self._device: Device | None = None
        self._memories: dict[str, VerdictMemory] = {}

    @property
    def whole_networks(self) -> bool:
        """Whether whole networks are run, too."""
        return self.mode == "always"

    @property
    def device(self) -> Device:
        """Where code for the hub's target can be run here. Looked for once."""
        if self._device is None:
            self._device = device_for(self._host)
        return self._device

    def wants(self, served: Served) -> bool:
        """Whether a schedule that serves is to be verified."""
        if self.mode == "never":
            return served.foreign and self._host.kind == "cuda"  # simulated alone
        if self.mode == "always" or served.rung == "measured":
            return self.mode == "always"
        if self._host.kind == "llvm":
            foreign = served.record is not None and served.rung != "user" and not served.embedded
            return foreign and not served.by_rule
        known = served.rung == "exact" and served.package == self._measured_package and served.embedded
        return not (known and self.device.model in (None, self._host.model))

    @contextmanager
    def verifying(self, target: Target, *, explaining: bool = False) -> Iterator[ScheduleVerifier]:
        """What verifies the schedules of a module for ``target``; ``explaining``: nothing may be run."""
        verifier = self._verifier(target, explaining)
        verifier.begin()
        try:
            with self.remembering(target):
                yield verifier
        finally:
            verifier.close()

    @contextmanager
    def remembering(self, target: Target) -> Iterator[None]:
        """Inside the block the static check of schedules for ``target`` is not made twice, whatever the mode is."""
        if target.kind.name not in ("llvm", "cuda"):
            yield
            return
        from tunehub.tir.cuda.known_faults import remembering_faults  # CPUs need none of it

        memory = self.memory(target)
        try:
            with remembering_faults(memory):
                yield
        finally:
            memory.save()

    def check_network(self, mod: IRModule, finished: IRModule, target: Target, note: Callable[[str], None]) -> None:
        """Compare ``finished``, what a pipeline made of ``mod``, with TVM's plain compile, where code for ``target``
        runs here; else ``note`` says why not. Raises NetworkDiffersError."""
        if self.device.name is None:
            note(f"the whole network was not verified: {self.device.reason}")
            return
        from tunehub.compiler.verify.network import check_network

        check_network(mod, finished, str(target), self.memory(target), self.limits, note)

    def memory(self, target: Target) -> VerdictMemory:
        """The verdicts on schedules for ``target`` on the device that is here."""
        from tunehub.compiler.verify.memory import VerdictMemory

        text = str(target)
        if text not in self._memories:
            environment = (text, self.device.name or "", *_versions(self._host.kind))
            self._memories[text] = VerdictMemory(self._cache, environment, self._on_problem)
        return self._memories[text]

    def _verifier(self, target: Target, explaining: bool) -> ScheduleVerifier:
        from tunehub.compiler.verify.memory import RememberingVerifier
        from tunehub.compiler.verify.port import TrustingVerifier
        from tunehub.compiler.verify.static import StaticVerifier
        from tunehub.compiler.verify.workers import WorkerVerifier

        kind = str(target.kind.name)
        never = self.mode == "never"
        idle = kind == "llvm" and (never or (self.mode == "auto" and not self._foreign))
        if kind not in ("llvm", "cuda") or idle or (never and not self._foreign):
            return TrustingVerifier()
        there = self.device.name is not None and not never
        runs = there and not explaining
        reason = _NEVER if never else _EXPLAINED if there and explaining else self.device.reason or _FAILED
        inner: ScheduleVerifier = StaticVerifier(target, _find_fault(kind), reason, run_later=there and explaining)
        if runs or (kind == "llvm" and not explaining):
            workers = max(1, min(MOST_WORKERS, physical_cores() or 1))
            inner = WorkerVerifier(
                str(target),
                inner,
                workers=workers,
                limits=self.limits,
                builds=not runs,
                checks=kind == "cuda",
                store=self._kernels,
            )
        return RememberingVerifier(inner, self.memory(target), not_run=None if runs else reason)


def _find_fault(kind: str) -> FindFault:
    if kind == "cuda":
        from tunehub.tir.cuda.check import fault  # CPUs need none of it

        return fault
    from tunehub.tir.cpu_check import fault as cpu_fault

    return cpu_fault


def device_for(host: TargetDescriptor) -> Device:
    """The device here that runs code for the target ``host``."""
    if host.kind == "cuda":
        gpu = gpu_descriptor()
        if gpu is None:
            return Device(reason="this machine has no CUDA device")
        if _capability(gpu.arch) != _capability(host.arch):
            return Device(reason=f"the CUDA device of this machine is {gpu.arch}, not {host.arch}")
        return Device(name=f"{gpu.model} {gpu.arch}", model=gpu.model)
    own = host_descriptor()
    found = match(host, own)
    if not isinstance(found, Accepted) or found.fit == "generic":
        return Device(reason=f"this machine's CPU ({own.name}) does not run code for {host.name}")
    return Device(name=own.name, model=own.model)


def _capability(arch: str) -> str:
    return re.sub(r"[a-z]*$", "", arch)


def _versions(kind: str) -> tuple[str, ...]:
    import tvm

    versions = (str(tvm.__version__), f"{VERIFY_VERSION}")
    if kind != "cuda":
        from tunehub.tir.cpu_check import CPU_CHECK_VERSION

        return (*versions, f"{CPU_CHECK_VERSION}")
    from tunehub.tir.cuda.check import CHECK_VERSION  # CPUs need none of it

    return (*versions, f"{CHECK_VERSION}")
