"""Reductions of few numbers whose results many are computed from: ConvNeXt V2 divides each channel's norm by the mean
of all, and scales an image by that.

Fusion makes one function of them, for which TVM has as many threads as the reduction needs. Here the reduction is a
function of its own, with the steps behind it that are no larger, and the image's steps are another.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tvm

from tunehub.graph.apart import FunctionParts, halves_of, in_halves
from tunehub.graph.workloads import workloads
from tunehub.kernels import cpu as templates
from tunehub.kernels.cpu import loops
from tunehub.tir.nodes import blocks_in, integer, is_reduction, is_static, main_module, reduces
from tunehub.tir.parts import buffers_of, needed, statements_of, writes_only_last
from tunehub.tir.schedules import has_root

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, PassContext, PrimFunc, Stmt

_MANY = 16  # numbers of an image for each gate of a channel
_NAMES = ("reduction", "steps")


@tvm.transform.module_pass(opt_level=0, name="tunehub.small_reductions_apart")  # type: ignore[untyped-decorator]
def small_reductions_apart(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA, behind fusion."""
    found = {str(variable.name_hint): own for variable, each in workloads(mod) if (own := _halves(each)) is not None}
    return in_halves(mod, found, _NAMES)


@tvm.transform.module_pass(opt_level=0, name="tunehub.small_reductions_apart_on_cpus")  # type: ignore[untyped-decorator]
def small_reductions_apart_on_cpus(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CPUs, behind fusion: of functions that only the template for all others, or none, is for."""
    found = {}
    for variable, each in workloads(mod):
        own = _halves(each)
        match = None if own is None else templates.find(main_module(each))
        if own is not None and (match is None or match.template.NAME == loops.NAME):
            found[str(variable.name_hint)] = own
    return in_halves(mod, found, _NAMES)


def _halves(function: PrimFunc) -> FunctionParts | None:
    """None where nothing behind the last reduction is larger than what that reads, or more than one tensor would lie
    between."""
    if not has_root(function) or not is_static(function) or not writes_only_last(function):
        return None
    statements = statements_of(function)
    reducing = [at for at, each in enumerate(statements) if any(map(reduces, blocks_in(each)))]
    return halves_of(function, _small(statements, reducing[-1])) if reducing else None


def _small(statements: list[Stmt], reduction: int) -> set[int]:
    """The places of a ``reduction``, of the steps behind it that are of no more numbers than it reads, nor of many for
    each of its results, and of all that these need."""
    domain, last = _numbers(statements[reduction]), reduction
    results = _numbers(statements[reduction], reduced=False)
    written, large = buffers_of(statements[reduction], "writes"), set[int]()
    for at, each in enumerate(statements[reduction + 1 :], reduction + 1):
        reads, writes = (buffers_of(each, side) for side in ("reads", "writes"))
        larger = _numbers(each) > domain or domain > _numbers(each) >= _MANY * results
        if reads & large or (reads & written and larger):
            large |= writes
        elif reads & written:
            written, last = written | writes, at
    own = needed(statements[: last + 1], written)
    return {at for at, each in enumerate(statements) if any(each.same_as(other) for other in own)}


def _numbers(statement: Stmt, *, reduced: bool = True) -> int:
    """How often what ``statement`` computes is computed; not ``reduced``: how many numbers it gives."""
    axes = (axis for block in blocks_in(statement) for axis in block.iter_vars if reduced or not is_reduction(axis))
    return math.prod(integer(axis.dom.extent) or 0 for axis in axes)
