"""Whether channels last pay in a module with few convolutions, where images are turned by kernels of their own, by what
all its functions should take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.graph.workloads import call_counts, workloads
from tunehub.kernels.cuda.gemm.half_default import default_s
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper import tf32
from tunehub.kernels.cuda.gemm.tensor_core.cost import seconds
from tunehub.kernels.cuda.gemm.tensor_core.rule import ranked
from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
from tunehub.kernels.cuda.promises import without_record_s
from tunehub.kernels.devices.known import device_of
from tunehub.tir.nodes import buffer_shapes, main_module
from tunehub.tir.symbols import symbols_of

if TYPE_CHECKING:
    from tunehub.options import Precision
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

_MANY = 4  # convolutions: of more, turning what goes in and out takes a small part
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def pays(prepared: IRModule, turned: IRModule, target: Target, precision: Precision) -> bool:
    """Whether ``turned``, with channels last, should not take much longer than ``prepared``, both as
    :func:`tunehub.compiler.preparing.prepare` makes them; also where that is not known, for open sizes."""
    counts = call_counts(prepared)
    convolutions = sum(count for name, count in counts.items() if "conv" in name)
    if convolutions > _MANY or any(symbols_of(function) for _, function in workloads(prepared)):
        return True
    own, other = (math.fsum(_times(mod, target, precision)) for mod in (prepared, turned))
    return other <= GUESS_MARGIN * own


def _times(mod: IRModule, target: Target, precision: Precision) -> Iterator[float]:
    """Seconds of all calls of each function."""
    counts = call_counts(mod)
    for variable, function in workloads(mod):
        yield counts[str(variable.name_hint)] * _seconds(function, target, precision)


def _seconds(function: PrimFunc, target: Target, precision: Precision) -> float:
    """What a function should take without a record: a product by the best that is known, others by what they move."""
    single = main_module(function)
    found = list(_of_product(single, target, precision))
    if found:
        return min(found)
    moved = sum(math.prod(shape) * _BYTES.get(dtype, 4) for shape, dtype in buffer_shapes(single["main"]))
    device = device_of(target)
    return device.launches.moving + moved / device.bandwidth


def _of_product(single: IRModule, target: Target, precision: Precision) -> Iterator[float]:
    device = device_of(target)
    half, wide = warpgroups.matmul_in(single), without_record_s(single, target)
    if half is not None:
        yield default_s(half, device)
        own = warpgroups.expected_s(half, target)
        if own is not None:
            yield own
        if matmul_of(single) is not None:
            yield from (seconds(half, tile, device) for tile in ranked(half, 1, device))
    if wide is not None:
        yield wide
    rounded = tf32.matmul_in(single) if precision == "tf32" else None
    best = None if rounded is None else tf32.expected(rounded, device)
    if best is not None:
        yield best[0]
