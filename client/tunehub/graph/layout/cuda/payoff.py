"""Whether channels last pay in a module with few convolutions, where images are transposed by kernels of their own, by
what all its functions should take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.graph.workloads import call_counts, workloads
from tunehub.kernels.cuda.promises import fastest_s
from tunehub.kernels.devices.known import device_of
from tunehub.tir.nodes import main_module, parameter_bytes
from tunehub.tir.symbols import symbols_of

if TYPE_CHECKING:
    from tunehub.options import Precision
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

_MANY = 4  # convolutions: of more, transposing what goes in and out takes a small part


def pays(prepared: IRModule, channels_last: IRModule, target: Target, precision: Precision) -> bool:
    """Whether ``channels_last``, with channels last, should not take much longer than ``prepared``, both as
    :func:`tunehub.compiler.preparing.prepare` makes them; also where that is not known, for open sizes."""
    counts = call_counts(prepared)
    convolutions = sum(count for name, count in counts.items() if "conv" in name)
    if convolutions > _MANY or any(symbols_of(function) for _, function in workloads(prepared)):
        return True
    own, other = (math.fsum(_times(mod, target, precision)) for mod in (prepared, channels_last))
    return other <= GUESS_MARGIN * own


def _times(mod: IRModule, target: Target, precision: Precision) -> Iterator[float]:
    """Seconds of all calls of each function."""
    counts = call_counts(mod)
    for variable, function in workloads(mod):
        yield counts[str(variable.name_hint)] * _seconds(function, target, precision)


def _seconds(function: PrimFunc, target: Target, precision: Precision) -> float:
    """What a function should take without a record: a product by the best that is known, others by what they move."""
    single = main_module(function)
    found = fastest_s(single, target, precision)
    if found is not None:
        return found
    device = device_of(target)
    return device.launches.moving + parameter_bytes(single["main"]) / device.bandwidth
