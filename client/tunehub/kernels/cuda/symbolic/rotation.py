"""Positions applied to queries and keys of an unknown number of tokens on CUDA: a thread has one element of some heads,
which share its sine and cosine. TVM's own function computes these anew for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.rotation import Rotation, rotation_body
from tunehub.tir.guard import check_statements
from tunehub.tir.nodes import element_type, integer, main_module
from tunehub.tir.statements import bind, block_of, const, loop, sequence, store, threads, with_root
from tunehub.tir.symbols import symbols_of
from tunehub.tir.versions import UNROLLED

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimExpr, SBlock, SBlockRealize, Stmt, Var

NAME = "rotation"
_HEADS = (16, 12, 9, 8, 7, 6, 4, 3, 2)  # of a thread, which share what it computes of an angle
_MOST_THREADS = 1024  # of a block: any GPU launches as many


@dataclass(frozen=True, slots=True)
class RotationSchedule:
    """A module with the scheduled function as ``main``."""

    mod: IRModule


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> RotationSchedule | None:
    """A schedule of ``mod``, one PrimFunc ``main`` that applies positions; None for others, and where it has several
    open sizes: what also writes into pages cannot be run at any sizes to be verified. Raises GuardError for what
    would be wrong."""
    function = mod["main"]
    open_axes = [each for each in symbols_of(function) if not any(map(each.same_as, function.params))]
    body = rotation_body(function, _ThreadRotation) if len(open_axes) == 1 else None
    if body is None:
        return None
    scheduled = function.with_body(body)
    check_statements(scheduled, function, target)  # no simulation: where positions begin is no extent
    return RotationSchedule(main_module(scheduled))


class _ThreadRotation(Rotation):
    def __init__(self, root: SBlockRealize, block: SBlock, extents: list[PrimExpr]) -> None:
        super().__init__(root, block, extents)
        self.count, self.place, self.scope = 1, const(0), "local"

    def body(self) -> Stmt | None:
        tokens, heads, elements = self.extents
        token, head, element = self.axes
        count = integer(heads)
        together = next((each for each in _HEADS if count is not None and count % each == 0), None)
        inner = self.statement(self.block.body)
        if together is None or count is None or (integer(elements) or 0) > _MOST_THREADS or not self.tables:
            return None
        angles = [store(table, [self.place], value) for value, table in self.tables]
        dtype = element_type(head)

        def some(group: Var) -> Stmt:
            def one(i: Var) -> Stmt:
                return sequence(bind(head, group * const(together, dtype) + i), inner)

            each = loop("i", const(together, dtype), one, UNROLLED)
            own = block_of(self.root, sequence(angles, each), "rotate", [table for _, table in self.tables])
            return threads("threadIdx.x", elements, own, element)

        groups = threads("blockIdx.y", const(count // together, dtype), some)
        return with_root(self.root, [threads("blockIdx.x", tokens, groups, token)], [])
