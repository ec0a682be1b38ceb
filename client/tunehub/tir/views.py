"""Buffers as views of others (``DeclBuffer`` at an address in them), and the statements around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from tunehub.tir.nodes import buffer_kind, element_type, integer, same_extent
from tunehub.tir.statements import address, bind, block_of, load, sequence, store
from tunehub.tir.symbols import variables_in
from tunehub.tir.versions import TENSOR_LOAD

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferRegion, Index, MatchBufferRegion, PrimExpr, SBlockRealize, Stmt

_INDEX = "int64"


def views(wholes: Sequence[Buffer], parts: Sequence[Buffer]) -> list[Stmt]:
    """Statements that make each of ``parts`` what begins at the first element of one of ``wholes``."""
    return [each for whole, part in zip(wholes, parts, strict=True) for each in view(whole, part, {})]


def view(whole: Buffer, part: Buffer, starts: dict[int, PrimExpr]) -> list[Stmt]:
    """Statements that make the buffer ``part`` what begins in ``whole`` at ``starts``, by axis; none where they are
    the same.

    A view of all of a buffer names its memory, and no element: that would be an access, from which TVM (0.27) has Z3
    prove, for 10 ms, how much of a buffer of open extents is in use. Not in 0.26, where `PrimFunc.specialize` leaves
    such a name as it was: of a buffer that nothing defines any more.
    """
    from tvm import ir, tirx

    if part.same_as(whole):
        return []
    if not starts and hasattr(ir, TENSOR_LOAD) and integer(buffer_kind(whole).elem_offset) == 0:
        return [tirx.DeclBuffer(part, data=whole.data)]
    indices = [starts.get(axis, number(0)) for axis in range(len(buffer_kind(whole).shape))]
    pointer = address(whole, *indices)
    if hasattr(tirx.DeclBuffer, "data"):  # since 0.26
        return [tirx.DeclBuffer(part, data=pointer)]
    return [bind(part.data, pointer), tirx.DeclBuffer(part)]


def match(part: Buffer, whole: Buffer) -> MatchBufferRegion:
    """For a block in which the buffer ``part`` of known shape is the beginning of ``whole`` along every axis."""
    from tvm import ir, tirx

    extents = buffer_kind(part).shape
    ranges = [ir.Range.from_min_extent(tirx.const(0, element_type(extent)), extent) for extent in extents]
    return match_region(part, tirx.BufferRegion(whole, ranges))


def match_region(part: Buffer, region: BufferRegion) -> MatchBufferRegion:
    """For a block in which the buffer ``part`` stands for ``region``."""
    from tvm import s_tir, tirx

    of_release = s_tir if hasattr(s_tir, "MatchBufferRegion") else tirx  # until 0.26
    return of_release.MatchBufferRegion(part, region)


class Extents:
    """Numbers that are not known when code is made, as variables: what is computed with them stays short.

    The variables are loaded from memory (which LLVM makes registers of): any other value TVM would put into each
    expression.
    """

    def __init__(self) -> None:
        self._known: list[tuple[PrimExpr, PrimExpr]] = []

    def of(self, value: Index) -> PrimExpr:
        """The variable for ``value``; a number as it is."""
        known = integer(value)
        if known is not None:
            return number(known)
        names = _names(value)
        for other, variable in self._known:
            if _names(other) == names and same_extent(other, value):  # a proof takes much longer than names
                return variable
        return self.new(value)

    def new(self, value: PrimExpr) -> PrimExpr:
        """A variable of its own for ``value``."""
        from tvm import tirx

        self._known.append((value, tirx.Var("n", _INDEX)))
        return self._known[-1][1]

    def around(self, realize: SBlockRealize, body: Stmt) -> Stmt:
        """``body`` where the variables have their values; ``realize``: of the class of blocks."""
        from tvm import tirx

        if not self._known:
            return body
        memory, seen = (tirx.decl_buffer([len(self._known)], _INDEX, "extents") for _ in range(2))
        statements = view(memory, seen, {})  # TVM makes buffers of blocks smaller, and forgets what is read from them
        for at, (value, variable) in enumerate(self._known):
            (whole,) = wide([value])
            statements.append(store(memory, [number(at)], whole))
            statements.append(bind(variable, load(seen, number(at))))
        return block_of(realize, sequence(statements, body), "extents", [memory])


def _names(value: PrimExpr) -> frozenset[int]:
    """The variables in a value, by their hashes."""
    return frozenset(map(hash, variables_in([value])))


def places(piece: PrimExpr, extents: Sequence[PrimExpr]) -> list[PrimExpr]:
    """The place along each of ``extents`` of a piece counted row by row."""
    found: list[PrimExpr] = []
    for at, extent in enumerate(extents):
        inner = product(extents[at + 1 :])
        place = piece if at + 1 == len(extents) else piece // inner
        found.append(place % extent if at else place)
    return found


def wide(extents: Sequence[PrimExpr]) -> list[PrimExpr]:
    """Extents counted in 64 bits."""
    from tvm import tirx

    return [tirx.Cast(_INDEX, each) if element_type(each) != _INDEX else each for each in extents]


def product(extents: Sequence[PrimExpr]) -> PrimExpr:
    """Of none: 1."""
    return reduce(mul, extents) if extents else number(1)


def number(value: Index) -> PrimExpr:
    """An expression of 64 bits for a number; other expressions as they are."""
    from tvm import tirx

    return tirx.const(value, _INDEX) if isinstance(value, int) else value
