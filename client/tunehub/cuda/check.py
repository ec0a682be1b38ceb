"""Whether a scheduled function for a GPU computes what it was asked for, and can be launched, before it is used.

TVM checks each step of a schedule, not the kernel that comes of all of them. What it lets through was found by running
schedules on a GPU; each is a :data:`tunehub.cuda.fault.Rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunehub.cuda.bounds import buffer_left
from tunehub.cuda.fault import Fault, FaultError, NotSimulated, NotSimulatedError, Rule
from tunehub.cuda.limits import excess_shared_memory, excess_threads, limits_of
from tunehub.cuda.lowering import lowered
from tunehub.cuda.reductions import impure_reduction
from tunehub.cuda.simulation import simulate
from tunehub.cuda.simulation.kernel import launches
from tunehub.cuda.thread_extents import uneven_tag
from tunehub.exceptions import last_line
from tunehub.relax.nodes import is_static

CHECK_VERSION = 1
"""Changes whenever a schedule could be judged otherwise than before."""


def fault(scheduled: Any, target: Any) -> Fault | NotSimulated | None:
    """What is wrong with ``scheduled``, a PrimFunc with a schedule for the GPU ``target``; None: nothing was found.

    Raises nothing for a function that TVM cannot lower: that is a fault. Takes some 25 ms.
    """
    if not is_static(scheduled):
        return NotSimulated("shapes are unknown")
    try:
        return structural_fault(scheduled) or _kernel_fault(scheduled, target)
    except FaultError as wrong:
        return wrong.fault
    except NotSimulatedError as unknown:
        return NotSimulated(str(unknown))


def structural_fault(scheduled: Any) -> Fault | None:
    """The part of :func:`fault` that needs no lowering, in some 3 ms."""
    finders: dict[Rule, Callable[[Any], str | None]] = {
        "thread_extents": uneven_tag,
        "reduction": impure_reduction,
        "beyond_end": buffer_left,
    }
    found = ((rule, find(scheduled)) for rule, find in finders.items())
    return next((Fault(rule, place) for rule, place in found if place is not None), None)


def _kernel_fault(scheduled: Any, target: Any) -> Fault | None:
    try:
        function = lowered(scheduled, target)
    except Exception as error:  # TVM raises many kinds
        return Fault("lowering", last_line(error))
    limits = limits_of(target)
    too_much = excess_shared_memory(function, limits)
    if too_much is not None:
        return Fault("shared_memory", too_much)
    kernels = list(launches(function))
    for kernel in kernels:
        too_many = excess_threads({**kernel.grid, **kernel.block}, limits)
        if too_many is not None:
            return Fault("threads", too_many)
    simulate(kernels)
    return None
