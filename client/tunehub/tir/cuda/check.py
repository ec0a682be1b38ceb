"""Whether a scheduled function for a GPU computes what it was asked for, and can be launched, before it is used.

TVM checks each step of a schedule, not the kernel that comes of all of them. What it lets through was found by running
schedules on a GPU; each is a :data:`tunehub.tir.cuda.fault.Rule`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tunehub.exceptions import last_line, typed_last_line
from tunehub.tir.cuda.bounds import buffer_left
from tunehub.tir.cuda.fault import Fault, FaultError, NotSimulated, NotSimulatedError, Rule
from tunehub.tir.cuda.known_faults import remembered
from tunehub.tir.cuda.limits import excess_local_memory, excess_shared_memory, excess_threads, limits_of
from tunehub.tir.cuda.lowering import half_lowered, lowered_on
from tunehub.tir.cuda.reductions import impure_reduction
from tunehub.tir.cuda.simulation import simulate
from tunehub.tir.cuda.simulation.kernel import launches
from tunehub.tir.cuda.thread_extents import uneven_tag
from tunehub.tir.cuda.ungenerated import ungenerated
from tunehub.tir.flattened_indices import may_misread, misread_in
from tunehub.tir.flattening import flattening
from tunehub.tir.lanes import shared_by_lanes
from tunehub.tir.nodes import is_static
from tunehub.tir.symbols import PROBES, branches_at, elements_at, instance, probes

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

Verdict: TypeAlias = Fault | NotSimulated | None

_MOST_ELEMENTS = 1 << 20  # of all parameters of an instance

CHECK_VERSION = 12
"""Changes whenever a schedule could be judged otherwise than before."""


def fault(scheduled: PrimFunc, target: Target) -> Verdict:
    """What is wrong with ``scheduled``, a PrimFunc with a schedule for the GPU ``target``; None: nothing was found.

    Raises nothing for a function that TVM cannot lower: that is a fault. Takes some 25 ms, where it is not remembered.
    """
    return remembered(scheduled, lambda: _fault(scheduled, target))


def _fault(scheduled: PrimFunc, target: Target) -> Fault | NotSimulated | None:
    """What is wrong at some probe, else why it is not known for one."""
    tried = _probed(scheduled)
    unknown = None if tried else NotSimulated("shapes are unknown")
    for values in tried:
        found = _fault_of_instance(instance(scheduled, values), target)
        if isinstance(found, Fault):
            return Fault(found.rule, f"{found.place} at {', '.join(map(str, values))}") if values else found
        unknown = unknown or found
    return unknown


def _probed(scheduled: PrimFunc) -> list[tuple[int, ...]]:
    """Of the probes that lead into each branch the largest that is not large: what larger ones have more of are blocks
    of threads that do the same. An odd one if there is any, as blocks seldom divide it. Without branches all that are
    not large, and the first."""
    found = probes(scheduled)
    small = [values for values in found if elements_at(scheduled, values) <= _MOST_ELEMENTS]
    kept = {*found[:1], *small}
    if PROBES in (scheduled.attrs or {}):
        rising = sorted(found, key=math.prod)
        ran = {values: branches_at(scheduled, values) for values in rising}
        preferred = sorted(small, key=lambda values: (math.prod(values) % 2, math.prod(values)))
        kept = set({ran[values]: values for values in (*reversed(rising), *preferred)}.values())
    return [values for values in found if values in kept]


def _fault_of_instance(scheduled: PrimFunc, target: Target) -> Fault | NotSimulated | None:
    if not is_static(scheduled):
        return NotSimulated("shapes are unknown")
    found = structural_fault(scheduled)
    if isinstance(found, Fault):
        return found
    try:
        opaque = half_lowered(scheduled, target)
        function = lowered_on(opaque, target)
    except Exception as error:  # TVM raises many kinds
        return Fault("lowering", last_line(error))
    refused = _judged(lambda: _ungenerated(function))
    if isinstance(refused, Fault):
        return refused
    shared = shared_by_lanes(opaque["main"])
    if shared is not None:
        return Fault("lanes", shared)
    misread = _judged(lambda: _misread(scheduled, opaque))
    return misread if isinstance(misread, Fault) else kernel_fault(function, target) or misread or found


def _ungenerated(function: PrimFunc) -> Fault | None:
    found = ungenerated(function)
    return None if found is None else Fault("lowering", found)


def structural_fault(scheduled: PrimFunc) -> Verdict:
    """The part of :func:`fault` that looks at the schedule itself, in some 3 ms."""
    return _judged(lambda: _structural_fault(scheduled))


def _structural_fault(scheduled: PrimFunc) -> Fault | None:
    finders: dict[Rule, Callable[[PrimFunc], str | None]] = {
        "thread_extents": uneven_tag,
        "reduction": impure_reduction,
        "beyond_end": buffer_left,
    }
    found = ((rule, find(scheduled)) for rule, find in finders.items())
    return next((Fault(rule, place) for rule, place in found if place is not None), None)


def _misread(scheduled: PrimFunc, opaque: IRModule) -> Fault | None:
    place = misread_in(flattening(opaque)) if may_misread(scheduled) else None
    return None if place is None else Fault("misread", place)


def kernel_fault(function: PrimFunc, target: Target) -> Verdict:
    """The part of :func:`fault` that follows: ``function`` is as :func:`tunehub.tir.cuda.lowering.lowered` gives it.

    Too much memory is said of what is right otherwise.
    """
    limits = limits_of(target)

    def judge() -> Fault | None:
        kernels = list(launches(function))
        for kernel in kernels:
            too_many = excess_threads({**kernel.grid, **kernel.block}, limits)
            if too_many is not None:
                return Fault("threads", too_many)
        simulate(kernels)
        return None

    found = _judged(judge)
    if isinstance(found, Fault):
        return found
    shared, local = excess_shared_memory(function, limits), excess_local_memory(function)
    if shared is not None:
        return Fault("shared_memory", shared)
    return found if local is None else Fault("local_memory", local)


def _judged(judge: Callable[[], Fault | None]) -> Verdict:
    try:
        return judge()
    except FaultError as wrong:
        return wrong.fault
    except NotSimulatedError as unknown:
        return NotSimulated(str(unknown))
    except Exception as error:  # whatever TVM makes of a hostile record must not end a compile
        return NotSimulated(f"the check failed: {typed_last_line(error)}")
