"""Blocks that use elements beyond the end of a buffer.

``rfactor`` of a reduction that was split with a remainder loses the condition that stops at the end: its block reads
elements that no buffer has, and what it finds there is added to the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import numpy as np

from tunehub.tir.cuda.fault import NotSimulatedError
from tunehub.tir.index_expressions import Array, Expression, compiled, operator_name
from tunehub.tir.nodes import buffer_kind, buffer_of, children, integer, parameters, symbolic
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import (
        Analyzer,
        Buffer,
        BufferLoad,
        BufferRegion,
        For,
        Node,
        PrimExpr,
        PrimFunc,
        SBlock,
        SBlockRealize,
    )

_ACCESSES = ("BufferStore", *LOADS)
_LISTS = ("seq", "indices", "args")
_PARTS = (*_LISTS, "body", "a", "b", "value")
_SELECT = ("condition", "true_value", "false_value")
_BRANCH = ("condition", "then_case", "else_case")
_MOST_POINTS = 1 << 21  # of one index


@dataclass(frozen=True)
class _Place:
    """The loops and blocks around a statement, outermost first."""

    loops: tuple[For, ...] = ()
    realizes: tuple[SBlockRealize, ...] = ()

    @cached_property
    def _bounds(self) -> Analyzer:
        import tvm

        analyzer = symbolic().Analyzer()
        for loop in self.loops:
            analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        for realize in self.realizes:
            for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
                analyzer.bind(axis.var, value)
        return analyzer

    def range_of(self, index: PrimExpr) -> tuple[int, int]:
        """What ``index`` is at least and at most, the conditions of the blocks not considered."""
        found = self._bounds.const_int_bound(index)
        return int(found.min_value), int(found.max_value)


def buffer_left(function: PrimFunc) -> str | None:
    """The name of a buffer of ``function``, a scheduled PrimFunc, that a block leaves where the conditions of the
    blocks around let it, or None. Parameters are not looked at here: their ends stay when TVM lowers the function.

    Raises NotSimulatedError when there are too many indices to look at.
    """
    own = {hash(buffer) for buffer in parameters(function)}
    for block, place in _innermost(function.body, _Place()):
        for region in (*block.reads, *block.writes):
            if hash(buffer_of(region)) not in own and _leaves(block, region, place):
                return str(buffer_of(region).name)
    return None


def _innermost(node: Node, place: _Place) -> Iterator[tuple[SBlock, _Place]]:
    kind = type(node).__name__
    if kind == "For":
        place = replace(place, loops=(*place.loops, node))
    elif kind == "SBlockRealize":
        place = replace(place, realizes=(*place.realizes, node))
    elif kind == "SBlock" and not _has_blocks(node.body):
        yield node, place
        return
    for child in children(node):
        yield from _innermost(child, place)


def _has_blocks(node: Node) -> bool:
    return type(node).__name__ == "SBlockRealize" or any(map(_has_blocks, children(node)))


def _leaves(block: SBlock, region: BufferRegion, place: _Place) -> bool:
    """Whether ``block`` leaves the buffer of ``region``, what it says to read or write; a padding says more than it
    does."""
    buffer = buffer_of(region)
    shape = [integer(extent) for extent in buffer_kind(buffer).shape]
    taken = [integer(dimension.extent) for dimension in region.region]
    if not _passes([dimension.min for dimension in region.region], shape, taken, (), place):
        return False
    used = list(_uses(block.body, buffer, ()))
    ones: list[int | None] = [1] * len(shape)
    return not used or any(_passes(list(access.indices), shape, ones, guards, place) for access, guards in used)


def _uses(
    node: Node, buffer: Buffer, guards: tuple[PrimExpr, ...]
) -> Iterator[tuple[BufferLoad, tuple[PrimExpr, ...]]]:
    """The loads and stores of ``buffer`` in a block's body, and the conditions around each."""
    kind = type(node).__name__
    if kind in _ACCESSES and buffer_of(node).same_as(buffer):
        yield node, guards
    choice = _choice(node)
    if choice is not None:
        condition, then, *otherwise = choice
        yield from _uses(then, buffer, (*guards, condition))
        for each in (condition, *otherwise):
            yield from _uses(each, buffer, guards)
        return
    for name in _PARTS:
        part = getattr(node, name, None)
        for each in () if part is None else part if name in _LISTS else (part,):
            yield from _uses(each, buffer, guards)


def _choice(node: Node) -> list[PrimExpr] | None:
    """The condition of a choice, what is taken where it holds, and what else."""
    kind = type(node).__name__
    if kind == "Call":
        return list(node.args) if operator_name(node) == "if_then_else" else None
    names = {"Select": _SELECT, "IfThenElse": _BRANCH}.get(kind)
    return None if names is None else [part for name in names if (part := getattr(node, name)) is not None]


def _passes(
    indices: list[PrimExpr],
    shape: list[int | None],
    taken: list[int | None],
    guards: tuple[PrimExpr, ...],
    place: _Place,
) -> bool:
    """Whether an index goes below 0 or beyond the end where the ``guards`` and the blocks' conditions hold."""
    for index, extent, count in zip(indices, shape, taken, strict=True):
        if extent is None or count is None:
            continue  # loops of unknown length are not bound to threads
        low, high = place.range_of(index)
        if (low < 0 or high > extent - count) and _reaches(index, extent - count, guards, place):
            return True
    return False


def _reaches(index: PrimExpr, last: int, guards: tuple[PrimExpr, ...], place: _Place) -> bool:
    """Whether ``index`` is below 0 or above ``last`` anywhere; what is loaded or named inside a block is not known."""
    try:
        wanted = compiled(index)
        conditions = [compiled(each) for each in (*guards, *(realize.predicate for realize in place.realizes))]
        values = _values((wanted, *conditions), place)
        met = (np.asarray(condition.value(values), bool) for condition in conditions)
        return bool(reduce(np.logical_and, met, _outside(wanted, last, values)).any())
    except KeyError:
        return False


def _outside(index: Expression, last: int, values: dict[int, Array]) -> Array:
    found = np.asarray(index.value(values))
    return np.logical_or(found < 0, found > last)


def _values(wanted: Iterable[Expression], place: _Place) -> dict[int, Array]:
    """All values of the variables of ``wanted``: each loop has an axis of its own."""
    needed = set[int]().union(*(each.variables for each in wanted))
    axes: list[tuple[int, Expression]] = []
    for realize in reversed(place.realizes):
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if hash(axis.var) in needed:
                axes.append((hash(axis.var), compiled(value)))
                needed |= axes[-1][1].variables
    loops = [loop for loop in place.loops if hash(loop.loop_var) in needed]
    extents = [integer(loop.extent) or 0 for loop in loops]
    if not 0 < math.prod(extents) <= _MOST_POINTS:
        raise NotSimulatedError("a block with too many indices, or with loops of unknown length")
    values: dict[int, Array] = {}
    for number, (loop, extent) in enumerate(zip(loops, extents, strict=True)):
        values[hash(loop.loop_var)] = np.arange(extent).reshape(extent, *(1,) * number) + int(loop.min)
    for name, expression in reversed(axes):
        values[name] = expression.value(values)
    return values
