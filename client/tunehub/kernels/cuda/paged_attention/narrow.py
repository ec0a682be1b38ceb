"""Kernels of a paged cache whose pages are in e4m3, made of those of the same cache in half precision: what they read
is decoded, what they write is rounded to the nearest number, or to the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.te.e4m3 import WORD, byte_of, number_of
from tunehub.tir.expressions import replaced
from tunehub.tir.nodes import buffer_kind, buffer_of, parameters, with_children, with_parameters
from tunehub.tir.statements import load, store

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferRegion, PrimExpr, PrimFunc, SBlock, Stmt

E4M3_PAGES = "uint8"  # their element type
_RANK = 5  # of pages, alone among parameters


def with_e4m3_pages(function: PrimFunc) -> PrimFunc:
    """``function``, a PrimFunc with a parameter of pages [pages, 2, heads, 16, elements], with these as bytes. Raises
    KeyError for an expression that such kernels have not."""
    from tvm import s_tir, tirx

    own = s_tir.renew_defs(function)
    wide = next(each for each in parameters(own) if len(buffer_kind(each).shape) == _RANK)
    kind = buffer_kind(wide)
    narrow = tirx.decl_buffer(kind.shape, E4M3_PAGES, str(wide.name), elem_offset=kind.elem_offset, layout=None)
    buffers = [narrow if each.same_as(wide) else each for each in parameters(own)]
    return with_parameters(own, buffers).with_body(_Narrowed(wide, narrow).statement(own.body))


class _Narrowed:
    """Statements with the buffer ``narrow`` in place of ``wide``."""

    def __init__(self, wide: Buffer, narrow: Buffer) -> None:
        self._wide, self._narrow = wide, narrow

    def statement(self, node: Stmt) -> Stmt:
        kind = type(node).__name__
        if kind == "SBlock":
            return self._block(node)
        if kind == "IfThenElse":
            other = None if node.else_case is None else self.statement(node.else_case)
            return type(node)(node.condition, self.statement(node.then_case), other)
        if kind == "While":
            return type(node)(node.condition, self.statement(node.body))
        return self._store(node) if kind == "BufferStore" else with_children(node, self.statement)

    def _store(self, node: Stmt) -> Stmt:
        value = replaced(node.value, {}, self._element)
        if node.buffer.same_as(self._wide):
            return store(self._narrow, list(node.indices), byte_of(value))
        return store(node.buffer, list(node.indices), value)

    def _element(self, buffer: Buffer, indices: list[PrimExpr]) -> PrimExpr | None:
        if not buffer.same_as(self._wide):
            return None
        return number_of(load(self._narrow, *indices).astype(WORD), str(buffer_kind(buffer).dtype))

    def _block(self, block: SBlock) -> SBlock:
        from tvm import tirx

        def region(each: BufferRegion) -> BufferRegion:
            return tirx.BufferRegion(self._narrow, each.region) if buffer_of(each).same_as(self._wide) else each

        return type(block)(
            *(block.iter_vars, list(map(region, block.reads)), list(map(region, block.writes)), block.name_hint),
            *(self.statement(block.body), None if block.init is None else self.statement(block.init)),
            *(block.alloc_buffers, block.match_buffers, block.annotations),
        )
