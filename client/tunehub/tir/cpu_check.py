"""Whether a scheduled function for a CPU computes what it was asked for, and leaves no buffer, before it is used.

TVM checks each step of a schedule, not the loops that come of all of them. :mod:`tunehub.tir.guard` says what TVM
generates no code for; this says what would be wrong. As :mod:`tunehub.tir.cuda.check`, of whose faults these are some.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tunehub.exceptions import last_line
from tunehub.tir.bounds import BufferAccess, accesses_in, unproven
from tunehub.tir.cuda.fault import Fault, NotSimulated
from tunehub.tir.cuda.known_faults import remembered
from tunehub.tir.cuda.reductions import impure_reduction
from tunehub.tir.cuda.ungenerated import undefined
from tunehub.tir.flattening import flattening, with_opaque_blocks
from tunehub.tir.guard import FaultFoundError, GuardError, check_size, check_tiles
from tunehub.tir.lanes import shared_by_lanes
from tunehub.tir.nodes import (
    blocks_in,
    buffer_kind,
    buffer_of,
    children,
    integer,
    is_reduction,
    main_module,
    reduces,
    statements_in,
)
from tunehub.tir.symbols import instance, probes, variables_in
from tunehub.tir.versions import PARALLEL, VECTORIZED

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, PrimFunc, Stmt

CPU_CHECK_VERSION = 4
"""Changes whenever a schedule could be judged otherwise than before."""

_STRIDES_FACTOR, _STRIDES_FREE = 16, 1 << 20  # elements: at most 16 × those of the buffer, and 2^20


def check_proven(scheduled: PrimFunc, target: Target) -> None:
    """Raise FaultFoundError where :func:`fault` finds one."""
    found = fault(scheduled, target)
    if isinstance(found, Fault):
        raise FaultFoundError(str(found))


def fault(scheduled: PrimFunc, _target: Target) -> Fault | NotSimulated | None:
    """What is wrong with ``scheduled``, a PrimFunc with a schedule for a CPU; None: it is proven to leave no buffer,
    and nothing else was found. Takes some 25 ms where it is not remembered."""
    return remembered(scheduled, lambda: _fault_or_depth(scheduled))


def _fault_or_depth(scheduled: PrimFunc) -> Fault | NotSimulated | None:
    try:
        return _fault(scheduled)
    except RecursionError:  # a record adds hundreds of loops around a block
        return Fault("code_size", "its loops are nested too deep")


def _fault(scheduled: PrimFunc) -> Fault | NotSimulated | None:
    try:
        check_tiles(scheduled)
    except GuardError as error:
        return Fault("beyond_tile", str(error))
    tried = probes(scheduled)
    for values in tried:
        found = _fault_of_instance(instance(scheduled, values))
        if found is not None:
            return Fault(found.rule, f"{found.place} at {', '.join(map(str, values))}") if values else found
    return None if tried else NotSimulated("shapes are unknown")


def _fault_of_instance(scheduled: PrimFunc) -> Fault | None:
    impure, raced = impure_reduction(scheduled), _raced_reduction(scheduled.body, frozenset())
    if impure is not None:
        return Fault("reduction", impure)
    if raced is not None:
        return Fault("race", raced)
    early = _read_before_written(scheduled.body) or _partly_reduced(scheduled.body)
    if early is not None:
        return Fault("unwritten", early)
    try:
        check_size(scheduled)
    except GuardError as error:
        return Fault("code_size", str(error))
    try:
        opaque = with_opaque_blocks(main_module(scheduled))
        lowered = flattening(opaque).before["main"]
        nameless = undefined(lowered)
    except Exception as error:  # TVM raises many kinds
        return Fault("lowering", last_line(error))
    if nameless is not None:
        return Fault("lowering", f"{nameless} is used where it has no value")
    shared = shared_by_lanes(opaque["main"])
    if shared is not None:
        return Fault("lanes", shared)
    accesses = accesses_in(lowered)
    strided, left = _strided(accesses), unproven(accesses)
    if strided is not None:
        return Fault("strides", str(strided.name))
    return None if left is None else Fault("unproven", str(left.name))


def _raced_reduction(node: Stmt, shared: frozenset[int]) -> str | None:
    """The name of a block that sums over what iterations of a parallel loop or the lanes of a vector have each their
    own of; ``shared``: the variables that depend on such a loop."""
    kind = type(node).__name__
    if kind == "For" and int(node.kind) in (PARALLEL, VECTORIZED):
        shared |= {hash(node.loop_var)}
    elif kind == "SBlockRealize" and shared:
        for axis, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            if shared.isdisjoint(map(hash, variables_in([value]))):
                continue
            if is_reduction(axis):
                return str(node.block.name_hint)
            shared |= {hash(axis.var)}
    return next(filter(None, (_raced_reduction(child, shared) for child in children(node))), None)


def _read_before_written(body: Stmt) -> str | None:
    """The name of a buffer that some block reads, and none before it writes: ``ReverseComputeAt`` moves a producer
    behind others of its consumers."""
    blocks = list(blocks_in(body))
    waiting = {hash(buffer) for block in blocks for buffer in block.alloc_buffers}
    for block in blocks:
        if any(blocks_in(block.body)):
            continue
        own = {hash(buffer_of(region)) for region in block.writes}
        if block.init is not None:
            waiting -= own
        for region in block.reads:
            if hash(buffer_of(region)) in waiting:
                return str(buffer_of(region).name)
        waiting -= own
    return None


def _partly_reduced(body: Stmt) -> str | None:
    """The name of a buffer that a reduction reads, and another one writes where a condition holds: ``RFactor`` of a
    tile that goes beyond the end leaves parts of sums that nobody begins."""
    partly: set[int] = set()
    for realize in (node for node in statements_in(body) if type(node).__name__ == "SBlockRealize"):
        block = realize.block
        if not reduces(block):
            continue
        for region in block.reads:
            if hash(buffer_of(region)) in partly:
                return str(buffer_of(region).name)
        if integer(realize.predicate) != 1:
            partly |= {hash(buffer_of(region)) for region in block.writes}
    return None


def _strided(accesses: Iterable[BufferAccess]) -> Buffer | None:
    """The first buffer that with its strides takes many times what its elements take."""
    buffers = {hash(buffer): buffer for buffer in (buffer_of(access.node) for access in accesses)}
    return next(filter(_is_strided, buffers.values()), None)


def _is_strided(buffer: Buffer) -> bool:
    kind = buffer_kind(buffer)
    shape, strides = map(integer, kind.shape), [integer(stride) for stride in kind.strides]
    steps = list(zip(shape, strides, strict=bool(strides)))
    known = [(extent, stride) for extent, stride in steps if extent is not None and stride is not None]
    taken = sum((extent - 1) * stride for extent, stride in known)
    return len(known) < len(steps) or taken > max(_STRIDES_FREE, _STRIDES_FACTOR * math.prod(e for e, _ in known))
