"""Blocks that use elements beyond the end of a buffer.

``rfactor`` of a reduction that was split with a remainder loses the condition that stops at the end: its block reads
elements that no buffer has, and what it finds there is added to the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from tunehub.cuda.fault import NotSimulatedError
from tunehub.relax.index_expressions import Array, Expression, compiled
from tunehub.relax.nodes import buffer_kind, buffer_of, children, integer, parameters, symbolic

_MOST_POINTS = 1 << 21  # of one index


@dataclass(frozen=True)
class _Place:
    """The loops and blocks around a statement, outermost first."""

    loops: tuple[Any, ...] = ()
    realizes: tuple[Any, ...] = ()

    @cached_property
    def _bounds(self) -> Any:
        import tvm

        analyzer = symbolic().Analyzer()
        for loop in self.loops:
            analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        for realize in self.realizes:
            for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
                analyzer.bind(axis.var, value)
        return analyzer

    def range_of(self, index: Any) -> tuple[int, int]:
        """What ``index`` is at least and at most, the conditions of the blocks not considered."""
        found = self._bounds.const_int_bound(index)
        return int(found.min_value), int(found.max_value)


def buffer_left(function: Any) -> str | None:
    """The name of a buffer of ``function``, a scheduled PrimFunc, that a block leaves where the conditions of the
    blocks around let it, or None. Parameters are not looked at: a padding reads beyond their ends, and selects.

    Raises NotSimulatedError when there are too many indices to look at.
    """
    own = {hash(buffer) for buffer in parameters(function)}
    for block, place in _innermost(function.body, _Place()):
        for region in (*block.reads, *block.writes):
            if hash(buffer_of(region)) not in own and _leaves(region, place):
                return str(buffer_of(region).name)
    return None


def _innermost(node: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
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


def _has_blocks(node: Any) -> bool:
    return type(node).__name__ == "SBlockRealize" or any(map(_has_blocks, children(node)))


def _leaves(region: Any, place: _Place) -> bool:
    for dimension, extent in zip(region.region, buffer_kind(buffer_of(region)).shape, strict=True):
        size, taken = integer(extent), integer(dimension.extent)
        if size is None or taken is None:
            continue  # loops of unknown length are not bound to threads
        last = size - taken
        low, high = place.range_of(dimension.min)
        if (low < 0 or high > last) and _passes(dimension.min, last, place):
            return True
    return False


def _passes(index: Any, last: int, place: _Place) -> bool:
    """Whether ``index`` goes below 0 or above ``last``."""
    try:
        wanted, conditions = compiled(index), [compiled(realize.predicate) for realize in place.realizes]
    except KeyError:
        return False  # it is loaded
    values = _values((wanted, *conditions), place)
    met = (np.asarray(condition.value(values), bool) for condition in conditions)
    return bool(reduce(np.logical_and, met, _outside(wanted, last, values)).any())


def _outside(index: Expression, last: int, values: dict[int, Any]) -> Array:
    found = np.asarray(index.value(values))
    return np.logical_or(found < 0, found > last)


def _values(wanted: Iterable[Expression], place: _Place) -> dict[int, Any]:
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
    values: dict[int, Any] = {}
    for number, (loop, extent) in enumerate(zip(loops, extents, strict=True)):
        values[hash(loop.loop_var)] = np.arange(extent).reshape(extent, *(1,) * number) + int(loop.min)
    for name, expression in reversed(axes):
        values[name] = expression.value(values)
    return values
