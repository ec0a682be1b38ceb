"""What operators and layout transforms cost, as far as the planning of layouts needs to know.

A layout is a number: 0 is plain (``[N, C, H, W]``), ``b`` blocked (``[N, ceil(C / b), H, W, b]``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

PLAIN = 0
_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvWorkload:
    """A two-dimensional convolution with logical channels; sizes are (height, width)."""

    batch: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    kernel: tuple[int, int]
    groups: int = 1
    dilation: tuple[int, int] = (1, 1)

    @property
    def depthwise(self) -> bool:
        """One input and one output channel a group."""
        return self.groups == self.in_channels == self.out_channels

    @property
    def strided(self) -> bool:
        """At most every second column of the data begins a window."""
        return 2 * self.out_size[1] <= self.in_size[1] + 1


class LayoutCosts(Protocol):
    """Seconds of what a plan is made of. Layouts are of the data that an operator reads and writes."""

    def conv(self, workload: ConvWorkload, source: int, result: int) -> float:
        """A convolution in these layouts, with what is fused to it."""

    def transform(self, elements: int) -> float:
        """Copying a tensor of ``elements`` into another layout, a kernel of its own."""

    def pooling(self, elements: int, layout: int) -> float:
        """Pooling, joining or reducing over images: a kernel that reads and writes ``elements`` together."""

    def elementwise(self, elements: int) -> float:
        """An elementwise operator with a result of ``elements``, fused to what comes before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCosts:
    """Costs without measurements, for a CPU with ``vector`` floats a register and ``cores``.

    The rates were taken from kernels on two cores with AVX-512: 600 GFLOP/s peak; blocked convolutions with
    templates reach 0.8 to 1.0 of it, plain ones with searched schedules 0.35 to 0.65, without any schedule 0.005.
    Only ratios matter.
    """

    vector: int
    cores: int

    def conv(self, workload: ConvWorkload, source: int, result: int) -> float:
        flops = 2.0 * workload.batch * math.prod(workload.out_size) * math.prod(workload.kernel)
        flops *= _filled(workload.out_channels, result) * self._reduced_channels(workload, source, result)
        lanes = min(result or self.vector, self.vector)
        peak = _GFLOPS_A_LANE * 1e9 * lanes * self.cores
        data = _filled(workload.in_channels, source) * math.prod(workload.in_size)
        data += _filled(workload.out_channels, result) * math.prod(workload.out_size)
        compute = flops / (peak * _efficiency(workload, source, result))
        if workload.strided and 0 < source < self.vector:
            compute *= _SKIPPED
        return _KERNEL_S + max(compute, self._memory(workload.batch * data))

    def transform(self, elements: int) -> float:
        return _KERNEL_S + _SCATTERED * self._memory(2 * elements)

    def pooling(self, elements: int, layout: int) -> float:
        return _KERNEL_S + self._memory(elements) * (1.0 if layout else _SCATTERED)

    def elementwise(self, elements: int) -> float:
        return _FUSED * self._memory(2 * elements)

    def _memory(self, elements: int) -> float:
        return elements * _FLOAT_BYTES / (_BYTES_A_SECOND * self.cores)

    def _reduced_channels(self, workload: ConvWorkload, source: int, result: int) -> float:
        """How many input channels one output channel is computed from, zero weights among them, on average."""
        if workload.groups == 1:
            return _filled(workload.in_channels, source)
        each_in, each_out = workload.in_channels // workload.groups, workload.out_channels // workload.groups
        if workload.depthwise or not result:
            return each_in
        inside = sum(1 for group in range(1, workload.groups) if group * each_out % result)
        return each_in * (1 + inside / -(-workload.out_channels // result))  # a block reads all groups that it touches


_GFLOPS_A_LANE = 18.75  # of one core: two fused multiply-adds a cycle
_BYTES_A_SECOND = 12e9  # of one core, tensors in the second or third cache
_SCATTERED = 2.0  # reading or writing one element of each cache line at a time
_FUSED = 0.1  # of a pass over memory
_SKIPPED = 1.2  # narrower blocks with strides: of each cache line of the data only a part is read
_KERNEL_S = 6e-6  # start of the thread pool and of the virtual machine's call


def _filled(channels: int, layout: int) -> int:
    return -(-channels // layout) * layout if layout else channels


def _efficiency(workload: ConvWorkload, source: int, result: int) -> float:
    """The share of the peak that a convolution reaches."""
    if not result:
        return 0.005 if workload.groups > 1 else 0.1
    if workload.depthwise:
        return 0.25
    if workload.groups > 1:
        return 0.4
    return 0.85 if source else 0.5
