"""Statements of TIR, written in fewer words: the one builder of all that write kernels statement by statement.

Plain numbers become constants of 32 bits, in loops those of the type of their variable. Where a statement is asked for,
a sequence of them will do; None and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.tir.nodes import buffer_kind, element_type
from tunehub.tir.versions import PARALLEL, SERIAL, THREAD_BINDING, THREAD_INDEX, UNROLLED, VECTORIZED

if TYPE_CHECKING:
    from tunehub.tir.types import (
        Buffer,
        BufferLoad,
        Call,
        Index,
        IterVar,
        MatchBufferRegion,
        PrimExpr,
        SBlockRealize,
        Stmt,
        Var,
    )

INDEX = "int32"
Body = Callable[[Any], Any]


def sequence(*statements: Stmt | Sequence[Stmt | None] | None) -> Stmt:
    """One statement of several, given one by one or in sequences."""
    from tvm import tirx

    flat: list[Stmt] = []
    for each in statements:
        flat += [inner for inner in (each if isinstance(each, (list, tuple)) else [each]) if inner is not None]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


# -- loops


def loop(
    variable: Var | str,
    extent: Index,
    body: Stmt | Body,
    kind: int = SERIAL,
    *,
    start: Index = 0,
    thread: IterVar | None = None,
    annotations: Mapping[str, object] | None = None,
) -> Stmt:
    """A loop over ``variable``, or over a new one of this name; ``body`` is a statement, or makes it of the variable.
    ``kind``: one of :mod:`tunehub.tir.versions`."""
    from tvm import tirx

    if isinstance(variable, str):
        variable = tirx.Var(variable, INDEX if isinstance(extent, int) else element_type(extent))
    first, count = (const(each, element_type(variable)) if isinstance(each, int) else each for each in (start, extent))
    inside = body(variable) if callable(body) else body
    return tirx.For(variable, first, count, int(kind), inside, thread, annotations)


def serial(name: str, extent: Index, body: Body) -> Stmt:
    """A loop; ``body`` makes what is in it of its variable. Loops of one step are none, here and in the next ones."""
    return _steps(name, extent, body, SERIAL)


def unrolled(name: str, extent: int, body: Body) -> Stmt:
    """A loop whose steps are written one after the other."""
    return _steps(name, extent, body, UNROLLED)


def vectorized(name: str, extent: int, body: Body) -> Stmt:
    """A loop that is one instruction."""
    return _steps(name, extent, body, VECTORIZED)


def parallel(variable: Var | str, extent: Index, body: Stmt | Body) -> Stmt:
    """A loop that threads of a CPU share, as :func:`loop`."""
    return loop(variable, extent, body, PARALLEL)


def nest(names: str, extents: Sequence[Index], body: Callable[..., Stmt], kind: int = UNROLLED) -> Stmt:
    """Loops in one another, unrolled ones unless ``kind`` says others."""
    if not extents:
        return body()
    first, _, rest = names.partition(" ")
    return _steps(first, extents[0], lambda at: nest(rest, extents[1:], lambda *more: body(at, *more), kind), kind)


def threads(tag: str, extent: Index, body: Stmt | Body, variable: Var | str | None = None, **more: Any) -> Stmt:
    """A loop over blocks or threads of a GPU, such as ``threadIdx.x``, as :func:`loop`."""
    variable = tag.replace(".", "_").lower() if variable is None else variable
    dtype = element_type(variable) if not isinstance(variable, str) else _dtype_of(extent)
    return loop(variable, extent, body, THREAD_BINDING, thread=_thread_axis(tag, dtype), **more)


def _thread_axis(tag: str, dtype: str) -> IterVar:
    from tvm import tirx

    return tirx.IterVar(None, tirx.Var(tag.replace(".", "_"), dtype), THREAD_INDEX, tag)


def _steps(name: str, extent: Index, body: Body, kind: int) -> Stmt:
    if isinstance(extent, int) and extent == 1:
        return body(const(0))
    return loop(name, extent, body, kind)


def _dtype_of(extent: Index) -> str:
    return INDEX if isinstance(extent, int) else element_type(extent)


# -- conditions, calls, variables


def when(condition: PrimExpr, *body: Stmt | Sequence[Stmt | None] | None) -> Stmt:
    """Statements under a condition."""
    return either(condition, sequence(*body), None)


def either(condition: PrimExpr, body: Stmt, otherwise: Stmt | None) -> Stmt:
    """One of two statements."""
    from tvm import tirx

    return tirx.IfThenElse(condition, body, otherwise)


def held(condition: PrimExpr, kind: str, text: str) -> Stmt:
    """A condition that holds, or the function ends with an error of a ``kind`` that TVM knows. CPUs only."""
    from tvm import tirx

    return tirx.AssertStmt(condition, kind, [text])  # TVM 0.25 to 0.27 name the first two in the other order


def run(expression: Call) -> Stmt:
    """A call as a statement."""
    from tvm import tirx

    return tirx.Evaluate(expression)


def bind(variable: Var, value: PrimExpr) -> Stmt:
    """``variable`` is ``value`` from here on."""
    from tvm import tirx

    return tirx.Bind(variable, value)


def marked(key: str, value: int, body: Stmt) -> Stmt:
    """``body`` with an attribute, which passes of TVM read."""
    from tvm import tirx

    return tirx.AttrStmt(const(0), key, const(value), body)


def allocate(buffer: Buffer, annotations: Mapping[str, Any] | None = None) -> Stmt:
    """Memory for ``buffer`` from here on. ``annotations``: what passes of TVM read of it."""
    from tvm import tirx

    return tirx.AllocBuffer(buffer, annotations)


def barrier(scope: str) -> Stmt:
    """All threads that share memory of ``scope`` wait for each other."""
    from tvm.tirx.op import tvm_storage_sync

    return run(tvm_storage_sync(scope))


def const(value: float, dtype: str = INDEX) -> PrimExpr:
    """A number."""
    from tvm import tirx

    return tirx.const(value, dtype)


def f32(value: float) -> PrimExpr:
    """A number in float32."""
    return const(value, "float32")


# -- memory


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile in shared memory, row by row. It is one-dimensional: TVM would leave out what fills rows up."""

    buffer: Buffer
    shape: tuple[int, ...]
    start: int = 0  # in the buffer

    def place(self, *at: Index) -> Index:
        """Of an element."""
        offset: PrimExpr = 0
        for extent, index in zip(self.shape, at, strict=True):
            offset = offset * extent + index
        return offset + self.start if self.start else offset


def store(buffer: Buffer | SharedTile, place: Sequence[Index], value: PrimExpr) -> Stmt:
    """An assignment."""
    from tvm import tirx

    return tirx.BufferStore(_memory(buffer), value, _indices(buffer, place))


def load(buffer: Buffer | SharedTile, *place: Index) -> BufferLoad:
    """An element, or a vector of them."""
    from tvm import tirx

    return tirx.BufferLoad(_memory(buffer), _indices(buffer, place))


def address(buffer: Buffer | SharedTile, *place: Index) -> PrimExpr:
    """Of an element, by which TVM knows that it is used."""
    from tvm import tirx

    return tirx.address_of(load(buffer, *place))


def prefetch(buffer: Buffer, *place: Index, cache: int = 1) -> Stmt:
    """Ask a CPU for what it will read: the line of an element, into the first ``cache`` or the second."""
    from tvm import tirx

    read, near, data = const(0), const(4 - cache), const(1)
    return run(tirx.call_intrin("void", "tirx.prefetch", address(buffer, *place), read, near, data))


def pointer(buffer: Buffer | SharedTile, *place: Index) -> PrimExpr:
    """The address of an element of a block's or a thread's own memory."""
    tile = buffer if isinstance(buffer, SharedTile) else SharedTile(buffer, tuple(buffer_kind(buffer).shape))
    # TVM sets barriers of its own between what is said to write and to read; the kernel has those that it needs. Of
    # memory that is only read by single elements it leaves out the others.
    return tile.buffer.access_ptr("r", offset=tile.place(*place))


def _memory(buffer: Buffer | SharedTile) -> Buffer:
    return buffer.buffer if isinstance(buffer, SharedTile) else buffer


def _indices(buffer: Buffer | SharedTile, place: Sequence[Index]) -> list[Index]:
    return [buffer.place(*place)] if isinstance(buffer, SharedTile) else list(place)


# -- blocks


def block_of(
    realize: SBlockRealize, body: Stmt, name: str, buffers: Sequence[Buffer], matches: Sequence[MatchBufferRegion] = ()
) -> Stmt:
    """A block without axes, of the classes that ``realize`` is of; ``matches``: see :func:`tunehub.tir.views.match`."""
    block = type(realize.block)([], [], [], name, body, alloc_buffers=list(buffers), match_buffers=list(matches))
    return type(realize)([], True, block)


def with_root(realize: SBlockRealize, statements: Sequence[Stmt], buffers: Sequence[Buffer]) -> Stmt:
    """The root block ``realize`` of a function with other ``statements`` and ``buffers``."""
    own = realize.block
    root = type(own)([], [], [], own.name_hint, sequence(statements), None, list(buffers), [], own.annotations)
    return type(realize)(realize.iter_values, realize.predicate, root)
