"""Rotary positions (Su et al. 2021, "RoFormer", arXiv 2104.09864) of queries and keys on CPUs: sines and cosines,
which all heads of a token share, are computed once a token. TVM's function computes them anew for each head, which
takes longer than attention itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunehub.tir.expressions import replaced
from tunehub.tir.index_expressions import is_variable, operator_name, parts_of
from tunehub.tir.nodes import buffer_of, element_type, integer, statements_in
from tunehub.tir.statements import block_of, either, load, loop, sequence, store, with_root
from tunehub.tir.versions import PARALLEL

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, SBlock, SBlockRealize, Stmt, Var

_SHARED = ("cos", "sin")
_AXES = 3  # tokens, heads, elements


def with_shared_angles(function: PrimFunc) -> PrimFunc | None:
    """``function``, a block of loops over tokens, heads and elements that computes sines or cosines which do not depend
    on heads, so that it computes these once a token, scheduled; None for others."""
    body = rotation_body(function, Rotation)
    return None if body is None else function.with_body(body).with_attr({"tirx.is_scheduled": True})


def rotation_body(function: PrimFunc, kind: type[Rotation]) -> Stmt | None:
    """The body of such a ``function`` as a ``kind`` of rotation has it; None for others."""
    loops = [node for node in statements_in(function.body) if type(node).__name__ == "For"]
    blocks = [node for node in statements_in(function.body) if type(node).__name__ == "SBlockRealize"]
    if len(loops) != _AXES or len(blocks) != 2 or len(blocks[1].block.iter_vars) != _AXES:
        return None
    if any(not value.same_as(each.loop_var) for value, each in zip(blocks[1].iter_values, loops, strict=True)):
        return None
    if integer(loops[2].extent) is None or integer(blocks[1].predicate) != 1:
        return None
    try:
        return kind(function.body, blocks[1].block, [each.extent for each in loops]).body()
    except KeyError:  # of an expression of another kind
        return None


class Rotation:
    """Its statements, with variables of their own."""

    def __init__(self, root: SBlockRealize, block: SBlock, extents: list[PrimExpr]) -> None:
        from tvm import tirx

        self.root, self.block, self.extents = root, block, extents
        axes = [each.var for each in self.block.iter_vars]
        names = ("token", "head", "element")
        self.axes = [tirx.Var(name, element_type(each)) for name, each in zip(names, axes, strict=True)]
        self.known = {hash(old): new for old, new in zip(axes, self.axes, strict=True)}
        self.tables: list[tuple[PrimExpr, Buffer]] = []
        self.count, self.place, self.scope = integer(extents[2]), self.axes[2], "global"

    def body(self) -> Stmt | None:
        """The function's; None where nothing is shared."""
        token, head, element = self.axes
        inner = self.statement(self.block.body)
        if not self.tables:
            return None
        heads = loop(head, self.extents[1], loop(element, self.extents[2], inner))
        shared = block_of(self.root, sequence(self._angles(), heads), "rotate", [each for _, each in self.tables])
        return with_root(self.root, [loop(token, self.extents[0], shared, PARALLEL)], [])

    def _angles(self) -> Stmt:
        from tvm import tirx

        at = tirx.Var("angle", element_type(self.axes[2]))
        own = {hash(self.axes[2]): at}
        stores = [store(table, [at], replaced(value, own)) for value, table in self.tables]
        return loop(at, self.extents[2], sequence(stores))

    def statement(self, node: Any) -> Stmt:
        """One of the block's, with elements of tables in place of sines and cosines."""
        kind = type(node).__name__
        if kind == "IfThenElse":
            otherwise = None if node.else_case is None else self.statement(node.else_case)
            return either(self._expression(node.condition), self.statement(node.then_case), otherwise)
        if kind == "SeqStmt":
            return sequence([self.statement(each) for each in node.seq])
        if kind != "BufferStore":
            raise KeyError(kind)
        return store(buffer_of(node), [self._expression(each) for each in node.indices], self._expression(node.value))

    def _expression(self, value: PrimExpr) -> PrimExpr:
        return replaced(value, self.known, call=self._shared)

    def _shared(self, call: PrimExpr) -> PrimExpr | None:
        """The element of a table in place of a sine or cosine."""
        from tvm import tirx
        from tvm_ffi import structural_equal

        if operator_name(call) not in _SHARED or _has(call, self.axes[1]):
            return None
        for value, table in self.tables:
            if structural_equal(value, call):
                return load(table, self.place)
        table = tirx.decl_buffer((self.count,), element_type(call), f"angles_{len(self.tables)}", scope=self.scope)
        self.tables.append((call, table))
        return load(table, self.place)


def _has(expression: PrimExpr, variable: Var) -> bool:
    if is_variable(expression):
        return bool(expression.same_as(variable))
    parts = [*parts_of(expression), *getattr(expression, "indices", ())]
    return any(_has(each, variable) for each in parts)
