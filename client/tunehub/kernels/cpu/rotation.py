"""Rotary positions (Su et al. 2021, "RoFormer", arXiv 2104.09864) of queries and keys on CPUs: sines and cosines,
which all heads of a token share, are computed once a token, in vectors, and powers of the base once for all tokens.
TVM's function computes them anew for each head, which takes longer than attention itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.vectors import Vectors, vector_types, widest_lanes
from tunehub.tir.expressions import replaced
from tunehub.tir.index_expressions import is_variable, operator_name, parts_of
from tunehub.tir.nodes import buffer_kind, buffer_of, element_type, integer, statements_in, symbolic
from tunehub.tir.statements import block_of, const, either, load, loop, sequence, serial, store, with_root
from tunehub.tir.versions import LOADS, PARALLEL, VECTORIZED

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, SBlock, SBlockRealize, Stmt, Var

_SHARED = ("cos", "sin")
_AXES = 3  # tokens, heads, elements


def with_shared_angles(function: PrimFunc, target: Target) -> PrimFunc | None:
    """``function``, a block of loops over tokens, heads and elements that computes sines or cosines which do not depend
    on heads, so that it computes these once a token, scheduled for ``target``; None for others."""
    body = rotation_body(function, partial(_VectorRotation, Vectors(widest_lanes(target))))
    return None if body is None else function.with_body(body).with_attr({"tirx.is_scheduled": True})


def rotation_body(function: PrimFunc, kind: Callable[..., Rotation]) -> Stmt | None:
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
        raise NotImplementedError

    def statement(self, node: Stmt) -> Stmt:
        """One of the block's, with elements of tables in place of sines and cosines."""
        return _rewritten(node, self._expression)

    def _expression(self, value: PrimExpr) -> PrimExpr:
        return replaced(value, self.known, call=self._shared)

    def _shared(self, call: PrimExpr) -> PrimExpr | None:
        """The element of a table in place of a sine or cosine."""
        known = operator_name(call) in _SHARED and not _has(call, self.axes[1])
        return self._element(self.tables, call, "angles") if known else None

    def _element(self, tables: list[tuple[PrimExpr, Buffer]], call: PrimExpr, name: str) -> PrimExpr:
        """Of that one of ``tables`` that has what ``call`` gives, for which there may be a new one."""
        from tvm import tirx
        from tvm_ffi import structural_equal

        for value, table in tables:
            if structural_equal(value, call):
                return load(table, self.place)
        table = tirx.decl_buffer((self.count,), element_type(call), f"{name}_{len(tables)}", scope=self.scope)
        tables.append((call, table))
        return load(table, self.place)


class _VectorRotation(Rotation):
    """In vectors along the elements of a head, where they divide it and TVM has vectors of its type."""

    def __init__(self, vectors: Vectors, root: SBlockRealize, block: SBlock, extents: list[PrimExpr]) -> None:
        super().__init__(root, block, extents)
        self.vectors = vectors
        self.powers: list[tuple[PrimExpr, Buffer]] = []

    def body(self) -> Stmt | None:
        token, head, element = self.axes
        inner = self.statement(self.block.body)
        if not self.tables:
            return None
        angles, memory = self._in_vectors() if self._has_vectors(inner) else self._one_by_one()
        rotated = [loop(element, self.extents[2], inner)]
        if memory:
            rotated = [self._vector(inner, const(first)) for first in range(0, self.count or 0, self.vectors.lanes)]
        heads = loop(head, self.extents[1], sequence(rotated))
        shared = block_of(self.root, sequence(angles, heads), "rotate", [*memory, *(each for _, each in self.tables)])
        tokens = loop(token, self.extents[0], shared, PARALLEL)
        powers = [store(table, [element], value) for value, table in self.powers]
        once = [loop(element, self.extents[2], sequence(powers))] if powers else []
        return with_root(self.root, [*once, tokens], [table for _, table in self.powers])

    def _has_vectors(self, inner: Stmt) -> bool:
        stored = {str(buffer_kind(buffer_of(each)).dtype) for each in statements_in(inner) if hasattr(each, "buffer")}
        angles = {element_type(value.args[0]) for value, _ in self.tables}
        whole = self.count is not None and self.count % self.vectors.lanes == 0
        return whole and angles == {"float32"} and stored <= set(vector_types())

    def _one_by_one(self) -> tuple[Stmt, list[Buffer]]:
        stores = [store(table, [self.place], value) for value, table in self.tables]
        return loop(self.axes[2], self.extents[2], sequence(stores)), []

    def _in_vectors(self) -> tuple[Stmt, list[Buffer]]:
        """The tables' elements, and the memory that they take."""
        vectors = self.vectors
        angle, sine, cosine, spare = (vectors.buffer(name) for name in ("angle", "sine", "cosine", "spare"))
        quadrant = vectors.buffer("quadrant", "int32")

        def part(at: PrimExpr) -> Stmt:
            first = at * vectors.lanes
            statements: list[Stmt] = []
            for value, table in self.tables:
                turned = store(angle, [self.place - first], replaced(value.args[0], {}, call=self._power))
                found = sine if operator_name(value) == "sin" else cosine
                statements += [
                    self._vector(turned, first),
                    *vectors.sines(angle, sine, cosine, spare, quadrant),
                    store(table, [vectors.ramp(first)], vectors.get(found)),
                ]
            return sequence(statements)

        return serial("part", (self.count or 0) // vectors.lanes, part), [angle, sine, cosine, spare, quadrant]

    def _power(self, call: PrimExpr) -> PrimExpr | None:
        """The element of a table in place of a call that is the same for all tokens."""
        return self._element(self.powers, call, "powers") if _is_of(call, self.axes[2]) else None

    def _vector(self, statement: Stmt, first: PrimExpr) -> Stmt:
        """``statement`` for a vector of elements from ``first`` on; what is known of all is no condition."""
        from tvm import ir, tirx

        element, known = self.axes[2], symbolic().Analyzer()
        lane = tirx.Var("lane", element_type(element))
        known.bind(lane, ir.Range(0, self.vectors.lanes))
        own = {hash(element): first + lane}
        body = _rewritten(statement, lambda value: known.simplify(replaced(value, own)))
        return loop(lane, self.vectors.lanes, body, VECTORIZED)


def _rewritten(node: Stmt, expression: Callable[[PrimExpr], PrimExpr]) -> Stmt:
    """A statement with what ``expression`` makes of those in it. Raises KeyError for other kinds than stores."""
    kind = type(node).__name__
    if kind == "IfThenElse":
        otherwise = None if node.else_case is None else _rewritten(node.else_case, expression)
        return either(expression(node.condition), _rewritten(node.then_case, expression), otherwise)
    if kind == "SeqStmt":
        return sequence([_rewritten(each, expression) for each in node.seq])
    if kind != "BufferStore":
        raise KeyError(kind)
    return store(buffer_of(node), [expression(each) for each in node.indices], expression(node.value))


def _is_of(expression: PrimExpr, variable: Var) -> bool:
    """Whether it is of ``variable`` and numbers alone."""
    if is_variable(expression):
        return bool(expression.same_as(variable))
    return type(expression).__name__ not in LOADS and all(_is_of(each, variable) for each in parts_of(expression))


def _has(expression: PrimExpr, variable: Var) -> bool:
    if is_variable(expression):
        return bool(expression.same_as(variable))
    parts = [*parts_of(expression), *getattr(expression, "indices", ())]
    return any(_has(each, variable) for each in parts)
