"""Kernels for open axes, made of one for a piece of known extents: the grid has a block of its own for each piece.

A piece is a scheduled static function. The parameters of its kernel become views of a part of the real ones, and its
body stays as it is: 32-bit indices inside, a 64-bit address outside. The last piece may go beyond the end: there its
last row or zeros are loaded, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm_ffi import structural_equal

from tunehub.cuda.skinny.schedule import with_rows
from tunehub.cuda.thread_extents import thread_tag
from tunehub.relax.index_expressions import parts_of
from tunehub.relax.nodes import buffer_of, integer, parameters, statements_in
from tunehub.relax.open_axes.axes import OpenAxes
from tunehub.relax.open_axes.views import block_of, dtype_of, number, places, product, view, wide

_BOUND, _THREAD_INDEX = 4, 1  # tvm::tirx::ForKind, IterVarType
_LOADS = ("BufferLoad", "TensorLoad")  # the class was renamed in 0.27
_INDEX = "int64"
_MOST_BLOCKS = 65535  # of a grid along y


class NotPiecesError(ValueError):
    """A kernel that cannot be one of a piece; the text says why."""


def over_pieces(function: Any, axes: OpenAxes, piece: Any, sizes: Sequence[int]) -> Any:
    """``function`` computed in pieces of ``sizes`` along its open axes, in order; ``piece`` is the static function of
    these sizes, scheduled for a GPU. Pieces lie in memory in one piece (:meth:`OpenAxes.is_contiguous`).

    Raises NotPiecesError when ``piece`` is more than one kernel, has a grid of several dimensions, or has statements in
    which its rows cannot be told.
    """
    from tvm import s_tir, tirx

    piece = s_tir.renew_defs(piece)
    nest = _kernel(piece)
    extents, length = wide(axes.extents), sizes[-1]
    place = tirx.Var("piece", _INDEX)
    if axes.are_one:
        total = product(extents)
        count, first, last = (total + (length - 1)) // length, place * length, total
        starts = places(first, extents)
    else:
        rows = (extents[-1] + (length - 1)) // length
        count, (*lead, at) = product([*extents[:-1], rows]), places(place, [*extents[:-1], rows])
        first, last = at * length, extents[-1]
        starts = [*lead, first]
    declared = []
    limits: dict[int, int] = {}  # by buffer the axis along which a piece may go beyond the end
    for whole, part, own in zip(parameters(function), parameters(piece), axes.places, strict=True):
        declared += view(
            whole, part, {axis: start for start, axis in zip(starts, own, strict=True) if axis is not None}
        )
        if length > 1 and own[-1] is not None:
            limits[hash(part)] = own[-1]
    rest = tirx.Cast("int32", tirx.min(last - first, number(length)))
    # Names of memory in calls: since 0.27 a buffer is one itself.
    pointers = frozenset(hash(each) for part in parameters(piece) for each in (part, part.data))
    body = _Masking(limits, pointers, rest).statement(nest.body) if limits else nest.body
    inner = block_of(piece.body, _bound(nest, body, "blockIdx.y"), "piece", piece.body.block.alloc_buffers)
    outer = tirx.For(place, number(0), count, _BOUND, tirx.SeqStmt([*declared, inner]), _thread("blockIdx.x", _INDEX))
    return function.with_body(block_of(function.body, outer, "root", []))


def blocks_of(piece: Any) -> int:
    """How many blocks the only kernel of a static function, scheduled for a GPU, has. Raises NotPiecesError as
    :func:`over_pieces` does."""
    return int(integer(_kernel(piece).extent) or 1)


def _kernel(piece: Any) -> Any:
    """The loop over the blocks of the only kernel."""
    root = piece.body.block
    if any(str(buffer.scope()) == "global" for buffer in root.alloc_buffers):
        raise NotPiecesError("the piece keeps something in memory")
    tags = list(map(thread_tag, statements_in(root.body)))
    if thread_tag(root.body) != "blockIdx.x" or sum(tag.startswith("blockIdx") for tag in tags) != 1:
        raise NotPiecesError("the piece is no kernel with a grid of one dimension")
    if (integer(root.body.extent) or _MOST_BLOCKS + 1) > _MOST_BLOCKS:
        raise NotPiecesError(f"the piece has more than {_MOST_BLOCKS} blocks")
    return root.body


def _bound(loop: Any, body: Any, tag: str) -> Any:
    from tvm import tirx

    thread = _thread(tag, dtype_of(loop.loop_var))
    return tirx.For(loop.loop_var, loop.min, loop.extent, _BOUND, body, thread, loop.annotations)


def _thread(tag: str, dtype: str) -> Any:
    from tvm import tirx

    return tirx.IterVar(None, tirx.Var(tag.replace(".", "_"), dtype), _THREAD_INDEX, tag)


class _Masking:
    """Rewrites statements so that along the axes in ``limits``, by buffer, nothing is used from ``rest`` on."""

    def __init__(self, limits: dict[int, int], pointers: frozenset[int], rest: Any) -> None:
        self._limits, self._pointers, self._rest = limits, pointers, rest

    def statement(self, node: Any) -> Any:
        from tvm import tirx
        from tvm.tirx.analysis import undefined_vars

        kind = type(node).__name__
        if kind == "For":
            return tirx.For(
                node.loop_var,
                node.min,
                node.extent,
                node.kind,
                self.statement(node.body),
                node.thread_binding,
                node.annotations,
            )
        if kind == "SeqStmt":
            return tirx.SeqStmt([self.statement(each) for each in node.seq])
        if kind == "SBlockRealize":
            return type(node)(node.iter_values, node.predicate, self.block(node.block))
        if kind == "IfThenElse":
            other = None if node.else_case is None else self.statement(node.else_case)
            return tirx.IfThenElse(node.condition, self.statement(node.then_case), other)
        if kind == "BufferStore":
            return self.store(node)
        if kind == "Evaluate" and (known := with_rows(node, self._rest)) is not None:
            return known
        if kind == "Evaluate" and not any(hash(each) in self._pointers for each in undefined_vars(node.value)):
            return node  # of fragments of tensor cores, in memory of the block's own
        raise NotPiecesError(f"a statement {kind}")

    def block(self, block: Any) -> Any:
        if any(hash(buffer_of(each.source)) in self._limits for each in block.match_buffers):
            raise NotPiecesError("a part of a piece has a name of its own")
        return type(block)(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint,
            self.statement(block.body),
            None if block.init is None else self.statement(block.init),
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    def store(self, node: Any) -> Any:
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
            return tirx.IfThenElse(inside, node, None)
        if type(node.value).__name__ in _LOADS:  # other than a condition, this leaves vectors whole
            return tirx.BufferStore(node.buffer, self.last_row(node.value, row), node.indices)
        zero = tirx.const(0, node.value.dtype if hasattr(node.value, "dtype") else node.value.ty.dtype)
        return tirx.BufferStore(node.buffer, tirx.if_then_else(inside, node.value, zero), node.indices)

    def last_row(self, load: Any, row: Any) -> Any:
        """A load that reads the last row instead of those beyond it: what comes of these is not written."""
        from tvm import tirx

        axis = self._limits[hash(buffer_of(load))]
        last = tirx.max(self._rest - 1, tirx.const(0, "int32"))  # never less, but TVM keeps 32 bits where it sees that
        indices = list(load.indices)
        indices[axis] = tirx.min(row, last)
        return tirx.BufferLoad(buffer_of(load), indices)

    def rows(self, expression: Any) -> Iterator[Any]:
        """The places along the axes at which an expression loads."""
        if type(expression).__name__ in _LOADS:
            axis = self._limits.get(hash(buffer_of(expression)))
            if axis is not None:
                yield expression.indices[axis]
            return
        for part in parts_of(expression):
            yield from self.rows(part)
