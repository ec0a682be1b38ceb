"""Measuring a GPU for its profile: a kernel for each rate, in turns, in a few seconds."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from tunehub.compiler.measure.gpu_kernels import GpuKernel, gpu_kernels
from tunehub.exceptions import MeasureError
from tunehub.kernels.devices.known import device_for
from tunehub.target.nvidia_driver import DriverFacts
from tunehub_registry.gpu_profile import GpuProfile

if TYPE_CHECKING:
    from tunehub.target.types import Target

STEPS = 20  # rounds, of which `show` is told
_LEAST_MS = 3  # of a kernel in a round
_DISTURBED = 1.3  # times the best round that the median is, from which on something else ran

Seconds = Callable[[], float]


def calibrate_gpu(
    facts: DriverFacts, build: Callable[[GpuKernel], Seconds], show: Callable[[int], None] = lambda _: None
) -> GpuProfile:
    """Measure the GPU of which ``facts`` are; ``build`` makes a kernel ready, and gives what runs it for its seconds;
    ``show`` is told of each round.

    Kernels take turns, so that what disturbs the GPU for a while disturbs all; each counts by its best round. Raises
    MeasureError where the GPU is busy, and what ``build`` raises.
    """
    device = device_for(facts.architecture, facts.model, facts=facts)
    kernels = gpu_kernels(device)
    times = _times({name: build(kernel) for name, kernel in kernels.items()}, show)
    _check(times["flops"])
    rates = {name: kernel.work / min(times[name]) for name, kernel in kernels.items()}
    return GpuProfile(
        gpu=facts.model,
        architecture=facts.architecture,
        multiprocessors=facts.multiprocessors,
        measured=datetime.date.today().isoformat(),
        clock=rates["clock"],
        bandwidth=rates["bandwidth"],
        l2_bandwidth=rates["l2_bandwidth"],
        flops=rates["flops"],
        tensor_flops=rates.get("tensor_flops"),
        launch_s=1 / rates["launch"],
    )


def on_this_gpu(target: Target) -> Callable[[GpuKernel], Seconds]:
    """For :func:`calibrate_gpu`: compiles kernels for ``target``, and runs them on the first GPU of this machine. What
    that returns raises what TVM raises."""
    import numpy as np
    import tvm

    device = tvm.cuda(0)

    def build(kernel: GpuKernel) -> Seconds:
        run = tvm.compile(kernel.mod, target)
        arrays = [tvm.runtime.tensor(np.zeros(size, "float32"), device) for size in (kernel.read, kernel.written)]
        timed = run.mod.time_evaluator("main", device, number=1, repeat=1, min_repeat_ms=_LEAST_MS)
        return lambda: float(timed(*arrays).mean)

    return build


def _times(kernels: Mapping[str, Seconds], show: Callable[[int], None]) -> dict[str, list[float]]:
    """Seconds of each kernel in each round."""
    times: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(STEPS):
        for name, seconds in kernels.items():
            times[name].append(seconds())
        show(1)
    return times


def _check(times: Sequence[float]) -> None:
    """Raise MeasureError where multiply-adds did not take about the same time in most rounds."""
    ratio = median(times) / min(times)
    if ratio > _DISTURBED:
        reason = f"multiply-adds took {ratio:.2g} times as long as at best in half of the rounds: the GPU is busy"
        raise MeasureError(reason, remedy="end what else runs on it, or wait, and run it again")
