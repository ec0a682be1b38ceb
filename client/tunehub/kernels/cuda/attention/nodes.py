"""Statements of TIR, written in fewer words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunehub.tir.nodes import buffer_kind
from tunehub.tir.versions import SERIAL, THREAD_BINDING, THREAD_INDEX, UNROLLED, VECTORIZED
from tunehub.tir.views import sequence

WARP = 32
LOWEST = -3.4028234663852886e38  # of float32; less is minus infinity, which TVM cannot write without a header
Body = Callable[[Any], Any]


def serial(name: str, extent: Any, body: Body) -> Any:
    """A loop; ``body`` makes what is in it of its variable. Loops of one step are none."""
    return _loop(name, extent, body, SERIAL)


def unrolled(name: str, extent: int, body: Body) -> Any:
    """A loop whose steps are written one after the other."""
    return _loop(name, extent, body, UNROLLED)


def vectorized(name: str, extent: int, body: Body) -> Any:
    """A loop that is one instruction."""
    return _loop(name, extent, body, VECTORIZED)


def nest(names: str, extents: Sequence[int], body: Callable[..., Any]) -> Any:
    """Unrolled loops in one another."""
    if not extents:
        return body()
    first, *rest = names.split()
    return unrolled(first, extents[0], lambda at: nest(" ".join(rest), extents[1:], lambda *more: body(at, *more)))


def threads(tag: str, extent: Any, body: Body) -> Any:
    """A loop over blocks or threads."""
    from tvm import tirx

    dtype = "int32" if isinstance(extent, int) else _dtype(extent)
    own = tirx.IterVar(None, tirx.Var(tag.replace(".", "_"), dtype), THREAD_INDEX, tag)
    return _loop(tag.replace(".", "_").lower(), extent, body, THREAD_BINDING, own)


def _loop(name: str, extent: Any, body: Body, kind: int, thread: Any = None) -> Any:
    from tvm import tirx

    if isinstance(extent, int) and extent == 1 and kind != THREAD_BINDING:
        return body(tirx.const(0, "int32"))
    if isinstance(extent, int):
        extent = tirx.const(extent, "int32")
    variable = tirx.Var(name, _dtype(extent))
    return tirx.For(variable, tirx.const(0, _dtype(extent)), extent, kind, body(variable), thread)


def _dtype(expression: Any) -> str:
    return str(expression.dtype if hasattr(expression, "dtype") else expression.ty.dtype)


def steps(*statements: Any) -> Any:
    """Statements one after the other; None and lists in lists are left out and flattened."""
    flat: list[Any] = []
    for each in statements:
        if isinstance(each, (list, tuple)):
            flat += [inner for inner in each if inner is not None]
        elif each is not None:
            flat.append(each)
    return sequence(flat)


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile in shared memory, row by row. It is one-dimensional: TVM would leave out what fills rows up."""

    buffer: Any
    shape: tuple[int, ...]
    start: int = 0  # in the buffer

    def place(self, *at: Any) -> Any:
        """Of an element."""
        offset: Any = 0
        for extent, index in zip(self.shape, at, strict=True):
            offset = offset * extent + index
        return offset + self.start if self.start else offset


def store(buffer: Any, place: Sequence[Any], value: Any) -> Any:
    """An assignment."""
    from tvm import tirx

    if isinstance(buffer, SharedTile):
        return tirx.BufferStore(buffer.buffer, value, [buffer.place(*place)])
    return tirx.BufferStore(buffer, value, list(place))


def load(buffer: Any, *place: Any) -> Any:
    """An element."""
    from tvm import tirx

    if isinstance(buffer, SharedTile):
        return tirx.BufferLoad(buffer.buffer, [buffer.place(*place)])
    return tirx.BufferLoad(buffer, list(place))


def pointer(buffer: Any, *place: Any) -> Any:
    """The address of an element of a block's or a thread's own memory."""
    if isinstance(buffer, SharedTile):
        memory, offset = buffer.buffer, buffer.place(*place)
    else:
        memory, offset = buffer, SharedTile(buffer, tuple(buffer_kind(buffer).shape)).place(*place)
    # TVM sets barriers of its own between what is said to write and to read; the kernel has those that it needs. Of
    # memory that is only read by single elements it leaves out the others.
    return memory.access_ptr("r", offset=offset)


def when(condition: Any, body: Any) -> Any:
    """A statement under a condition."""
    from tvm import tirx

    return tirx.IfThenElse(condition, body, None)


def either(condition: Any, body: Any, otherwise: Any) -> Any:
    """One of two statements."""
    from tvm import tirx

    return tirx.IfThenElse(condition, body, otherwise)


def run(expression: Any) -> Any:
    """A call as a statement."""
    from tvm import tirx

    return tirx.Evaluate(expression)


def barrier() -> Any:
    """All threads of a block wait for each other."""
    from tvm import tirx

    return run(tirx.op.tvm_storage_sync("shared"))


def const(value: int) -> Any:
    """A number of 32 bits."""
    from tvm import tirx

    return tirx.const(value, "int32")


def narrow(extent: Any) -> Any:
    """An extent in 32 bits, an expression."""
    from tvm import tirx

    return const(extent) if isinstance(extent, int) else tirx.Cast("int32", extent)


def divides(part: int, extent: Any) -> bool:
    """Whether it is known that an extent has whole parts."""
    return isinstance(extent, int) and extent % part == 0


def f32(value: float) -> Any:
    """A number in float32."""
    from tvm import tirx

    return tirx.const(value, "float32")
