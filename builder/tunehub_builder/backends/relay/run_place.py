"""Where a process of the gate runs kernels of TVM <= 0.19: on the CPU, or on one GPU, on which it measures alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tunehub.compiler.measure.quiet import Patience, clear_of_the_pool, undisturbed
from tunehub_builder.backends.relay import nvrtc
from tunehub_builder.tuning.runner.cuda_worker import exclusively, gpu_places
from tunehub_registry.legacy_target import parse_target

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Device


class RunPlace(msgspec.Struct, frozen=True):
    """A place for a process: the file that whoever measures on the GPU holds locked, and the GPU, which alone the
    process sees (as ``CUDA_VISIBLE_DEVICES`` names it; None: no change). Neither for a CPU."""

    lock: str | None = None
    gpu: str | None = None

    def enter(self) -> None:
        """Before TVM is imported in the process."""
        os.environ["TOPHUB_LOCATION"] = "NONE"  # or TVM asks the network for records
        if self.gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu

    def device(self, target: Target, refusals: nvrtc.Refusals | None = None) -> RunDevice:
        """The device of a ``tvm.target.Target``; kernels for a GPU are compiled by NVRTC from now on, where it is.

        ``refusals``: see :func:`nvrtc.install`.
        """
        import tvm

        kind = str(target.kind.name)
        if kind == "cuda" and nvrtc.available():
            nvrtc.install(str(target.attrs["arch"]), refusals)
        return RunDevice(tvm.device(kind, 0), self.lock)


class RunDevice:
    """A device of TVM in this process, ``tvm``."""

    def __init__(self, device: Device, lock: str | None) -> None:
        self.tvm = device
        self._lock = lock

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While nobody else measures on this GPU; one whose context is lost ends the process. Nothing on a CPU."""
        if self._lock is None:
            yield
            return
        with exclusively(self._lock, self.tvm):
            yield

    def timed(self, sample: Callable[[], float], patience: Patience) -> float:
        """What ``sample`` gives, in seconds; on a CPU it is repeated while other programs disturb it."""
        with self.alone():
            if self._lock is not None:
                return sample()
            with clear_of_the_pool():
                return undisturbed(lambda: (sample(),), patience)[0]


def kind_of(target: str) -> str:
    """``cuda`` of a target as TVM writes it."""
    return parse_target(target).kind


def places_by_device(target: str, directory: Path, count: int) -> Mapping[str | None, list[RunPlace]]:
    """Places for ``count`` processes, at least one each, by the device's lock: those of a CPU together."""
    found: dict[str | None, list[RunPlace]] = {}
    on_gpu = kind_of(target) == "cuda"
    for place in gpu_places(directory, max(1, count)) if on_gpu else [(None, None)] * max(1, count):
        found.setdefault(place[0], []).append(RunPlace(*place))
    return found
