"""Every access of a scheduled function inside its buffer, by proof, as TVM lowers it for a CPU.

TVM checks each step of a schedule, not where the statements that come of all of them write: ``ReverseComputeAt`` and
then ``PadEinsum`` give a copy a longer loop than its result has elements, and it writes beyond them. What is looked at
is the function right before its buffers are made flat: buffers have the sizes that they will have, and the conditions
of blocks stand as branches. An index is inside where TVM's arithmetic says so, by the loops alone or with the
conditions around it; else all its values are computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tunehub.tir.index_expressions import Expression, compiled, operator_name, parts_of
from tunehub.tir.nodes import buffer_kind, buffer_of, element_type, integer, symbolic
from tunehub.tir.versions import BIND, BINDINGS, LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Array, Buffer, BufferLoad, BufferStore, For, Node, PrimExpr, PrimFunc, Stmt

_LEAVES = frozenset(("Var", "SizeVar", "IntImm", "FloatImm", "StringImm"))
_BODIES = ("body", "block", "init")
_MOST_POINTS = 1 << 21  # of one index


class BufferAccess(NamedTuple):  # thousands are made for a network
    """A load or a store, and what is known where it happens: the ``loops`` around it, values that have a name among
    them, and the ``conditions`` that hold."""

    node: BufferLoad | BufferStore
    loops: tuple[For | Stmt, ...]
    conditions: tuple[PrimExpr, ...]


class _Here(NamedTuple):
    loops: tuple[For | Stmt, ...] = ()
    conditions: tuple[PrimExpr, ...] = ()


def accesses_in(lowered: PrimFunc) -> list[BufferAccess]:
    """The accesses of ``lowered``, a static PrimFunc right before its buffers are made flat."""
    return list(_accesses(lowered.body, _Here()))


def unproven(accesses: Iterable[BufferAccess]) -> Buffer | None:
    """The first buffer with an access of which it is not proven that it lies inside; None when there is none.

    Indices that are read from memory, as those of a gather, count as inside: no schedule makes any. Functions with open
    axes have such loops over their tiles, which are proven by themselves.
    """
    proof = _Proof()
    return next((buffer_of(access.node) for access in accesses if not proof.is_inside(access)), None)


def _accesses(node: Node, here: _Here) -> Iterator[BufferAccess]:
    """All loads and stores of a statement or an expression."""
    kind = type(node).__name__
    if kind in _LEAVES:
        return
    if kind == "SeqStmt":
        for each in node.seq:
            yield from _accesses(each, here)
            if type(each).__name__ in BINDINGS:
                here = here._replace(loops=(*here.loops, each))
    elif kind in BINDINGS and kind != BIND:
        yield from _accesses(node.value, here)
        yield from _accesses(node.body, here._replace(loops=(*here.loops, node)))
    elif kind == "For":
        yield from _accesses(node.body, here._replace(loops=(*here.loops, node)))
    elif kind == "BufferStore" or kind in LOADS:
        for part in (*node.indices, *((node.value,) if kind == "BufferStore" else ())):
            yield from _accesses(part, here)
        yield BufferAccess(node, *here)
    elif kind in ("IfThenElse", "Select") or (kind == "Call" and operator_name(node) == "if_then_else"):
        yield from _choice(node, kind, here)
    else:
        for part in (*parts_of(node), *_bodies(node)):
            yield from _accesses(part, here)


def _bodies(node: Node) -> list[Stmt]:
    return [part for name in _BODIES if (part := getattr(node, name, None)) is not None]


def _choice(node: Node, kind: str, here: _Here) -> Iterator[BufferAccess]:
    """The accesses of a choice; TVM makes a branch of one whose values are loaded, whatever it is written as."""
    names = {
        "IfThenElse": ("condition", "then_case", "else_case"),
        "Select": ("condition", "true_value", "false_value"),
    }
    condition, then, otherwise = node.args if kind == "Call" else (getattr(node, name) for name in names[kind])
    yield from _accesses(condition, here)
    yield from _accesses(then, here._replace(conditions=(*here.conditions, condition)))
    if otherwise is not None:
        from tvm import tirx

        yield from _accesses(otherwise, here._replace(conditions=(*here.conditions, tirx.Not(condition))))


class _Proof:
    """Judges accesses of one function."""

    def __init__(self) -> None:
        self._analyzer = symbolic().Analyzer()
        self._bound: set[int] = set()
        self._read: set[int] = set()  # variables whose values come from memory

    def is_inside(self, access: BufferAccess) -> bool:
        """Whether all indices are. One that is not, as that of a vector that goes on in the next row, may be inside
        together with those before it, where rows follow each other in memory."""
        for loop in access.loops:
            self._bind(loop)
        kind = buffer_kind(buffer_of(access.node))
        left = [
            (self._ends(index), integer(extent)) for index, extent in zip(access.node.indices, kind.shape, strict=True)
        ]
        while left:
            ends, extent = left.pop()
            if extent is None:
                return False
            if all(self._is_inside(each, extent, access) for each in ends):
                continue
            if not left or kind.strides:
                return False
            before, rows = left.pop()
            if rows is None:
                return False
            left.append(([row * extent + each for row in before for each in ends], rows * extent))
        return True

    def _ends(self, index: PrimExpr) -> list[PrimExpr]:
        """The first and last of the indices of a vector, or the one that there is."""
        index = self._analyzer.simplify(index) if "x" in element_type(index) else index
        if type(index).__name__ == "Broadcast":
            return [index.value]
        return (
            [index.base, index.base + index.stride * (index.lanes - 1)] if type(index).__name__ == "Ramp" else [index]
        )

    def _bind(self, loop: For | Stmt) -> None:
        import tvm

        if hash(loop) in self._bound:
            return
        self._bound.add(hash(loop))
        if type(loop).__name__ in BINDINGS:
            if self._is_read(loop.value):
                self._read.add(hash(loop.var))
            self._analyzer.bind(loop.var, loop.value, allow_override=True)
            return
        if self._is_read(loop.min) or self._is_read(loop.extent):
            self._read.add(hash(loop.loop_var))
        span = tvm.ir.Range.from_min_extent(loop.min, loop.extent)
        self._analyzer.bind(loop.loop_var, span, allow_override=True)

    def _is_read(self, index: PrimExpr) -> bool:
        kind = type(index).__name__
        if kind in _LEAVES:
            return hash(index) in self._read
        return kind in LOADS or any(map(self._is_read, parts_of(index)))

    def _is_inside(self, index: PrimExpr, extent: int, access: BufferAccess) -> bool:
        if self._is_bounded(index, extent) or self._is_read(index):
            return True
        if self._is_bounded_where(index, extent, access.conditions):
            return True
        return _always_inside(self._analyzer.simplify(index), extent, access)

    def _is_bounded_where(self, index: PrimExpr, extent: int, conditions: tuple[PrimExpr, ...]) -> bool:
        with ExitStack() as held:
            for condition in conditions:
                held.enter_context(self._analyzer.constraint_scope(condition))
            return self._is_bounded(self._analyzer.simplify(index), extent)

    def _is_bounded(self, index: PrimExpr, extent: int) -> bool:
        number = integer(index)
        if number is not None:
            return 0 <= number < extent
        found = self._analyzer.const_int_bound(index)
        return int(found.min_value) >= 0 and int(found.max_value) < extent


def _always_inside(index: PrimExpr, extent: int, access: BufferAccess) -> bool:
    """Whether all values of ``index`` that occur are inside; False where there are too many, or it depends on something
    else than loops. First with the conditions on its own variables alone, which are fewer values."""
    try:
        wanted = compiled(index)
    except KeyError:
        return False
    conditions = list(_compiled_conditions(access.conditions))
    own = [each for each in conditions if wanted.variables.issuperset(each.variables)]
    return _none_outside(wanted, own, extent, access) or (
        len(own) < len(conditions) and _none_outside(wanted, conditions, extent, access)
    )


def _compiled_conditions(conditions: Iterable[PrimExpr]) -> Iterator[Expression]:
    for condition in conditions:
        if type(condition).__name__ == "And":
            yield from _compiled_conditions((condition.a, condition.b))
            continue
        with suppress(KeyError):  # it depends on memory: inside, whether it holds or not
            yield compiled(condition)


def _none_outside(wanted: Expression, conditions: list[Expression], extent: int, access: BufferAccess) -> bool:
    needed = wanted.variables.union(*(each.variables for each in conditions))
    loops = [each for each in access.loops if type(each).__name__ == "For" and hash(each.loop_var) in needed]
    extents = [integer(loop.extent) or 0 for loop in loops]
    if len(loops) != len(needed) or not 0 < math.prod(extents) <= _MOST_POINTS:
        return False
    values: dict[int, Array] = {}
    for number, (loop, count) in enumerate(zip(loops, extents, strict=True)):
        values[hash(loop.loop_var)] = np.arange(count).reshape(count, *(1,) * number) + (integer(loop.min) or 0)
    found = np.asarray(wanted.value(values))
    outside: Array = np.logical_or(found < 0, found >= extent)
    met = (np.asarray(condition.value(values), bool) for condition in conditions)
    return not reduce(np.logical_and, met, outside).any()
