"""Kernels for open axes, made of one for a piece of known extents: the grid has a block of its own for each piece.

A piece is a scheduled static function. The parameters of its kernel become views of a part of the real ones, and its
body stays as it is: 32-bit indices inside, a 64-bit address outside. The last piece may go beyond the end: there its
last row or zeros are loaded, and nothing is written. Where it is known which results a block computes
(:class:`RowBlocks`), no block is launched that has none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_ffi import structural_equal

from tunehub.kernels.cuda.row_calls import with_rows
from tunehub.tir.cuda.thread_extents import thread_tag
from tunehub.tir.index_expressions import operator_name, parts_of
from tunehub.tir.nodes import (
    buffer_of,
    element_type,
    integer,
    parameters,
    statements_in,
    with_block_body,
    with_children,
)
from tunehub.tir.open_axes import OpenAxes
from tunehub.tir.statements import bind, block_of, either, sequence, store, threads, when
from tunehub.tir.symbols import specialized
from tunehub.tir.versions import LOADS
from tunehub.tir.views import number, places, product, view, wide

if TYPE_CHECKING:
    from tunehub.tir.types import BufferLoad, BufferStore, For, Number, PrimExpr, PrimFunc, Stmt, Var

_INDEX = "int64"
_MOST_BLOCKS = 65535  # of a grid along y


class NotPiecesError(ValueError):
    """A kernel that cannot be one of a piece; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBlocks:
    """How the blocks of a piece divide its results: each computes ``rows`` rows of them, of which every place along the
    open axis has ``of_one``; ``beside`` blocks compute the same rows. They are neighbours in the grid where ``outer``;
    otherwise the blocks of all rows are."""

    rows: int
    of_one: int
    beside: int
    outer: bool

    def high(self, length: int) -> int:
        """Blocks above each other in a piece of the ``length``. Raises NotPiecesError where a piece ends in a block."""
        if length * self.of_one % self.rows:
            raise NotPiecesError(f"blocks of {self.rows} rows do not divide {length} times {self.of_one}")
        return length * self.of_one // self.rows


@dataclass(frozen=True, slots=True)
class _Launch:
    """A grid for all pieces: the variables ``x`` and ``y`` count to ``wide`` and ``high``. Together they are the number
    of a ``piece`` and the block ``inside`` it."""

    x: Var
    wide: PrimExpr
    y: Var
    high: PrimExpr
    piece: PrimExpr
    inside: PrimExpr


def over_pieces(
    function: PrimFunc, axes: OpenAxes, piece: PrimFunc, sizes: Sequence[int], blocks: RowBlocks | None = None
) -> PrimFunc:
    """``function`` computed in pieces of ``sizes`` along its open axes, in order; ``piece`` is the static function of
    these sizes, scheduled for a GPU. Pieces lie in memory in one piece (:meth:`OpenAxes.is_contiguous`). ``blocks``:
    what the blocks of ``piece`` compute, where that is known.

    Raises NotPiecesError when ``piece`` is more than one kernel, has a grid of several dimensions, or has statements in
    which its rows cannot be told.
    """
    from tvm import s_tir, tirx

    piece = s_tir.renew_defs(piece)
    nest, batch = _kernel(piece)
    length = sizes[-1]
    launch, rest, starts = _launched(nest, axes, length, blocks)
    declared, starts = ([], starts) if blocks is None else _bound_places(starts)
    body = nest.body
    if not launch.inside.same_as(nest.loop_var):
        inside = specialized(piece.with_body(body), [nest.loop_var], [launch.inside])
        piece, body = inside.with_body(piece.body), inside.body
    limits: dict[int, int] = {}  # by buffer the axis along which a piece may go beyond the end
    for whole, part, own in zip(parameters(function), parameters(piece), axes.places, strict=True):
        declared += view(
            whole, part, {axis: start for start, axis in zip(starts, own, strict=True) if axis is not None}
        )
        if length > 1 and own[-1] is not None:
            limits[hash(part)] = own[-1]
    # Names of memory in calls: since 0.27 a buffer is one itself.
    pointers = frozenset(hash(each) for part in parameters(piece) for each in (part, part.data))
    if limits:
        body = _Masking(limits, pointers, tirx.Cast("int32", tirx.min(rest, number(length)))).statement(body)
    body = _along_z(batch, body)
    inner = block_of(piece.body, _bound(launch, nest, body), "piece", piece.body.block.alloc_buffers)
    outer = threads("blockIdx.x", launch.wide, sequence(declared, inner), launch.x)
    return function.with_body(block_of(function.body, outer, "root", []))


def _launched(
    nest: For, axes: OpenAxes, length: int, blocks: RowBlocks | None
) -> tuple[_Launch, PrimExpr, list[PrimExpr]]:
    """The grid of all pieces of ``length``; what is left from the beginning of a piece on, along the last open axis or,
    where they are one, all of them; where a piece begins along each."""
    extents = wide(axes.extents)
    if axes.are_one:
        rows = product(extents)
        if blocks is None:
            launch = _whole_pieces(nest, _pieces(rows, length))
        else:
            launch = _row_blocks(nest, rows, length, blocks)
        first = launch.piece * length
        return launch, rows - first, places(first, extents)
    counts = [*extents[:-1], _pieces(extents[-1], length)]
    launch = _whole_pieces(nest, product(counts))
    *lead, at = places(launch.piece, counts)
    first = at * length
    return launch, extents[-1] - first, [*lead, first]


def _pieces(extent: PrimExpr, length: int) -> PrimExpr:
    """How many of ``length`` there are in ``extent``, the last one if it is shorter, too."""
    return (extent + (length - 1)) // length


def _bound_places(starts: Sequence[PrimExpr]) -> tuple[list[Stmt], list[Var]]:
    """Statements that make variables of ``starts``, and these: TVM takes expressions that several views have out of
    them, to where one of these is before it."""
    from tvm import tirx

    own = [tirx.Var("start", _INDEX) for _ in starts]
    return [bind(*each) for each in zip(own, starts, strict=True)], own


def _whole_pieces(nest: For, count: PrimExpr) -> _Launch:
    from tvm import tirx

    place = tirx.Var("piece", _INDEX)
    return _Launch(place, count, nest.loop_var, nest.extent, place, nest.loop_var)


def _row_blocks(nest: For, total: PrimExpr, length: int, blocks: RowBlocks) -> _Launch:
    """A grid with the blocks that ``total`` places along the open axis need."""
    from tvm import tirx

    of_piece, found = blocks.high(length), integer(nest.extent)
    if found != of_piece * blocks.beside:
        raise NotPiecesError(f"the piece has {found} blocks, not {of_piece} times {blocks.beside}")
    dtype = element_type(nest.loop_var)
    x, y = tirx.Var("block", _INDEX), tirx.Var("beside", dtype)
    count = (total * blocks.of_one + (blocks.rows - 1)) // blocks.rows
    beside = tirx.const(blocks.beside, dtype)
    if blocks.outer:
        count, beside, of_piece = count * blocks.beside, tirx.const(1, dtype), of_piece * blocks.beside
    narrow = tirx.Cast("int32", x)  # a grid has fewer blocks
    piece, inside = tirx.Cast(_INDEX, narrow // of_piece), tirx.Cast(dtype, narrow % of_piece)
    return _Launch(x, count, y, beside, piece, inside if blocks.outer else y * of_piece + inside)


def blocks_of(piece: PrimFunc) -> int:
    """How many blocks the only kernel of a static function, scheduled for a GPU, has. Raises NotPiecesError as
    :func:`over_pieces` does."""
    return math.prod(integer(loop.extent) or 1 for loop in _kernel(piece) if loop is not None)


def _kernel(piece: PrimFunc) -> tuple[For, For | None]:
    """The loop over the blocks of the only kernel, and the one around it over a batch of products."""
    root = piece.body.block
    if any(str(buffer.scope()) == "global" for buffer in root.alloc_buffers):
        raise NotPiecesError("the piece keeps something in memory")
    batch = root.body if thread_tag(root.body) == "blockIdx.y" else None
    nest = root.body if batch is None else batch.body
    tags = list(map(thread_tag, statements_in(nest)))
    if thread_tag(nest) != "blockIdx.x" or sum(tag.startswith("blockIdx") for tag in tags) != 1:
        raise NotPiecesError("the piece is no kernel with a grid of one dimension")
    if (integer(nest.extent) or _MOST_BLOCKS + 1) > _MOST_BLOCKS:
        raise NotPiecesError(f"the piece has more than {_MOST_BLOCKS} blocks")
    return nest, batch


def _along_z(batch: For | None, body: Stmt) -> Stmt:
    """``body`` for each of a batch of products, whose blocks are along y in the piece."""
    if batch is None:
        return body
    more = {"start": batch.min, "annotations": batch.annotations}
    return threads("blockIdx.z", batch.extent, body, batch.loop_var, **more)


def _bound(launch: _Launch, nest: For, body: Stmt) -> Stmt:
    return threads("blockIdx.y", launch.high, body, launch.y, start=nest.min, annotations=nest.annotations)


class _Masking:
    """Rewrites statements so that along the axes in ``limits``, by buffer, nothing is used from ``rest`` on."""

    def __init__(self, limits: dict[int, int], pointers: frozenset[int], rest: PrimExpr) -> None:
        self._limits, self._pointers, self._rest = limits, pointers, rest

    def statement(self, node: Stmt) -> Stmt:
        from tvm.tirx.analysis import undefined_vars

        kind = type(node).__name__
        if kind in ("For", "SeqStmt", "AttrStmt"):
            return with_children(node, self.statement)
        if kind == "SBlockRealize":
            return type(node)(node.iter_values, node.predicate, self.block(node.block))
        if kind == "IfThenElse":
            other = None if node.else_case is None else self.statement(node.else_case)
            return either(node.condition, self.statement(node.then_case), other)
        if kind == "BufferStore":
            return self.store(node)
        if kind == "Evaluate" and (known := with_rows(node, self._rest)) is not None:
            return known
        if kind == "Evaluate" and not any(hash(each) in self._pointers for each in undefined_vars(node.value)):
            return node  # of fragments of tensor cores, in memory of the block's own
        raise NotPiecesError(f"a statement {kind}")

    def block(self, block: Stmt) -> Stmt:
        if any(hash(buffer_of(each.source)) in self._limits for each in block.match_buffers):
            raise NotPiecesError("a part of a piece has a name of its own")
        init = None if block.init is None else self.statement(block.init)
        return with_block_body(block, self.statement(block.body), init)

    def store(self, node: BufferStore) -> Stmt:
        from tvm import tirx

        rows = list(self.rows(node.value))
        written = self._limits.get(hash(node.buffer))
        if written is not None:
            rows.append(node.indices[written])
        if not rows:
            return node
        if any(not structural_equal(rows[0], row) for row in rows[1:]):
            raise NotPiecesError("a statement takes several rows")
        row = tirx.Cast("int32", rows[0])
        inside = row < self._rest
        if written is not None:
            return when(inside, node)
        value = self.of_last_row(node.value, row)
        if value is None:
            zero = tirx.const(0, element_type(node.value))
            value = tirx.if_then_else(inside, node.value, zero)
        return store(node.buffer, node.indices, value)

    def of_last_row(self, value: PrimExpr, row: PrimExpr) -> PrimExpr | None:
        """A load, or one where it is no padding, of the last row instead of those beyond it: what comes of these is not
        written. Other than a condition, this leaves vectors whole and takes no time. None for others."""
        from tvm import tirx

        if type(value).__name__ in LOADS:
            return self.last_row(value, row)
        if type(value).__name__ != "Call" or operator_name(value) != "if_then_else":
            return None
        condition, then, otherwise = value.args
        load = self.of_last_row(then, row)
        if load is None or any(True for _ in self.rows(condition)) or any(True for _ in self.rows(otherwise)):
            return None
        return tirx.if_then_else(condition, load, otherwise)

    def last_row(self, load: BufferLoad, row: PrimExpr) -> PrimExpr:
        """A load of the last row instead of those beyond it."""
        from tvm import tirx

        axis = self._limits.get(hash(buffer_of(load)))
        if axis is None:
            return load
        last = tirx.max(self._rest - 1, tirx.const(0, "int32"))  # never less, but TVM keeps 32 bits where it sees that
        indices = list(load.indices)
        indices[axis] = tirx.min(row, last)
        return tirx.BufferLoad(buffer_of(load), indices)

    def rows(self, expression: Number) -> Iterator[PrimExpr]:
        """The places along the axes at which an expression loads."""
        if type(expression).__name__ in LOADS:
            axis = self._limits.get(hash(buffer_of(expression)))
            if axis is not None:
                yield expression.indices[axis]
            return
        for part in parts_of(expression):
            yield from self.rows(part)
