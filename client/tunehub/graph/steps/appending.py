"""The kernel that splits queries, keys and values with positions applied, and the one that appends keys and values to
pages, as one: keys and values go to their pages from registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.expressions import replaced
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    element_type,
    integer,
    parameters,
    statements_in,
    with_children,
    with_parameters,
)
from tunehub.tir.statements import const, load, loop, store, vectorized, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tunehub.tir.types import Buffer, BufferRegion, PrimExpr, PrimFunc, SBlock, Stmt

_VECTOR = 8
_NOWHERE = -1  # the place of a token that is not to be kept
_BUFFERS, _AXES = 4, 5  # of the kernel, of pages
_MOVED = ("For", "SeqStmt", "SBlockRealize", "IfThenElse", "BufferStore")


def split_and_append(split: PrimFunc, append: PrimFunc) -> PrimFunc | None:
    """Both kernels as one, of pages, queries with keys and values, positions and places; it writes pages in place, and
    the queries. None unless they are what TVM writes. ``split``: whose scalars are set."""
    from tvm import s_tir

    if not is_append(append):
        return None
    split, append = s_tir.renew_defs(split), s_tir.renew_defs(append)
    both, positions, queries, keys, values = parameters(split)
    pages, _, _, places = parameters(append)
    if {type(each).__name__ for each in statements_in(split.body)} - {*_MOVED, "SBlock"}:
        return None
    moved = _Moved(pages, places, {hash(keys): 0, hash(values): 1})
    function = with_parameters(split, [pages, both, positions, places, queries])
    return function.with_body(moved.statement(split.body))


def appended_in_vectors(append: PrimFunc) -> PrimFunc:
    """``append`` with as many neighbours at once as a vector has, of pages that lie at their beginning in memory; as it
    is unless it is what TVM writes."""
    from tvm import s_tir, tirx

    size = int(buffer_kind(parameters(append)[0]).shape[-1])
    if size % _VECTOR or not is_append(append):
        return append
    own = s_tir.renew_defs(append)
    pages, *others = parameters(own)
    kind = buffer_kind(pages)
    aligned = tirx.decl_buffer(kind.shape, str(kind.dtype), str(pages.name), layout=None)
    function = with_parameters(own, [aligned, *others])
    return function.with_body(_InVectors(pages, aligned, size).statement(own.body))


class _InVectors:
    """Statements whose innermost loops have a vector a step; stores into ``pages`` go to ``aligned``."""

    def __init__(self, pages: Buffer, aligned: Buffer, size: int) -> None:
        self._pages, self._aligned, self._size = pages, aligned, size

    def statement(self, node: Stmt) -> Stmt:
        kind = type(node).__name__
        if kind == "IfThenElse":
            return when(node.condition, self.statement(node.then_case))
        if kind == "For" and integer(node.extent) == self._size and type(node.body).__name__ != "For":
            return loop(node.loop_var, self._size // _VECTOR, self.statement(node.body))
        if kind == "SBlock" and node.iter_vars:
            return self._block(node)
        return self._store(node) if kind == "BufferStore" else with_children(node, self.statement)

    def _block(self, block: SBlock) -> SBlock:
        """Its last axis has as many steps."""
        from tvm import ir, tirx

        *axes, last = block.iter_vars
        self._element = last.var
        steps = ir.Range(0, const(self._size // _VECTOR, element_type(last.var)))
        axes = [*axes, tirx.IterVar(steps, last.var, int(last.iter_type))]
        reads = [_whole(buffer_of(each)) for each in block.reads]
        own = (block.alloc_buffers, block.match_buffers, block.annotations)
        body = self.statement(block.body)
        return type(block)(axes, reads, [_whole(self._aligned)], block.name_hint, body, None, *own)

    def _store(self, node: Stmt) -> Stmt:
        if not node.buffer.same_as(self._pages):  # the place, once
            return node

        def one(lane: PrimExpr) -> Stmt:
            own = {hash(self._element): self._element * _VECTOR + lane}
            indices = [replaced(each, own) for each in node.indices]
            return store(self._aligned, indices, replaced(node.value, own))

        return vectorized("lane", _VECTOR, one)


def _whole(buffer: Buffer) -> BufferRegion:
    from tvm import ir, tirx

    extents = buffer_kind(buffer).shape
    zeros = [const(0, element_type(extent)) for extent in extents]
    return tirx.BufferRegion(buffer, list(map(ir.Range.from_min_extent, zeros, extents)))


def is_append(append: PrimFunc) -> bool:
    """Whether ``append`` is what this TVM writes for its first parameter as pages."""
    from tvm.relax.frontend.nn.llm import kv_cache
    from tvm_ffi import structural_equal

    buffers = parameters(append)
    if len(buffers) != _BUFFERS or len(buffer_kind(buffers[0]).shape) != _AXES:
        return False
    pages = buffer_kind(buffers[0])
    _, _, heads, page, size = map(integer, pages.shape)
    if heads is None or page is None or size is None:
        return False
    written = kv_cache._kv_cache_transpose_append(heads, size, str(pages.dtype), page)
    return bool(structural_equal(append.without_attr("global_symbol"), written.without_attr("global_symbol")))


class _Moved:
    """Statements whose stores into one of ``own``, by hash, go to the first or second half of a page."""

    def __init__(self, pages: Buffer, places: Buffer, own: Mapping[int, int]) -> None:
        self._pages, self._places, self._own = pages, places, own

    def statement(self, node: Stmt) -> Stmt:
        kind = type(node).__name__
        if kind == "SBlockRealize":
            return type(node)(node.iter_values, node.predicate, self._block(node.block))
        if kind == "IfThenElse":
            other = None if node.else_case is None else self.statement(node.else_case)
            return type(node)(node.condition, self.statement(node.then_case), other)
        return self._store(node) if kind == "BufferStore" else with_children(node, self.statement)

    def _block(self, block: SBlock) -> SBlock:
        kept = [region for region in block.writes if hash(buffer_of(region)) not in self._own]
        moves = len(kept) < len(block.writes)
        reads = [*block.reads, *([_whole(self._places)] if moves else [])]
        writes = [*kept, *([_whole(self._pages)] if moves else [])]
        body = self.statement(block.body)
        own = (block.alloc_buffers, block.match_buffers, block.annotations)
        return type(block)(block.iter_vars, reads, writes, block.name_hint, body, block.init, *own)

    def _store(self, node: Stmt) -> Stmt:
        half = self._own.get(hash(node.buffer))
        if half is None:
            return node
        from tvm import tirx

        token, head, inside = node.indices
        place, page = load(self._places, token), int(buffer_kind(self._pages).shape[3])
        of_page = tirx.Cast("int64", place // page)
        kept = store(self._pages, [of_page, const(half), head, place % page, inside], node.value)
        return when(tirx.NE(place, const(_NOWHERE)), kept)
