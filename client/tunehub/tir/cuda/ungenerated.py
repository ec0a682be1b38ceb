"""What TVM makes no CUDA source of, though it takes each step of a schedule and lowers what comes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunehub.tir.index_expressions import parts_of
from tunehub.tir.nodes import buffer_of, children, element_type, parameters, statements_in
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import For, PrimExpr, PrimFunc, Stmt

_VECTOR = re.compile(r"\D+(8|16|32)x(\d+)")
_LANES = {8: {2, 3, 4, 8, 16}, 16: {2, 4, 6, 8}, 32: {2, 3, 4, 6, 8}}  # codegen_cuda.cc, PrintType
_FRAGMENTS = ("wmma.", "m16n8k8.")


def ungenerated(lowered: PrimFunc) -> str | None:
    """What TVM generates no code for in a function as :func:`tunehub.tir.cuda.lowering.lowered` gives it, or None."""
    left = undefined(lowered)
    if left is not None:
        return f"{left} is used where it has no value"
    if any(any(_kernels(loop.body)) for loop in _host_loops(lowered.body)):
        return "kernels are launched in a loop"  # where it is unrolled, TVM loses their threads
    statements = (node for body in _kernels(lowered.body) for node in statements_in(body))
    return next(filter(None, map(_ungenerated_statement, statements)), None)


def undefined(lowered: PrimFunc) -> str | None:
    """A variable of a lowered function that is used where it has no value, by its name."""
    from tvm.tirx.analysis import undefined_vars

    apart = parameters(lowered) if hasattr(lowered, "buffer_map") else []  # 0.25: a buffer's memory is no parameter
    own = [buffer.data for buffer in apart]
    return next((str(each.name) for each in undefined_vars(lowered.body, [*lowered.params, *own])), None)


def _ungenerated_statement(node: Stmt) -> str | None:
    kind = type(node).__name__
    if kind == "AllocBuffer" and str(node.buffer.scope()) == "global":
        return f"a kernel allocates global memory, {node.buffer.name}"
    if kind != "BufferStore":
        return None
    for part in (node, *_parts(node.value)):
        accesses = type(part).__name__ == "BufferStore" or type(part).__name__ in LOADS
        if accesses and str(buffer_of(part).scope()).startswith(_FRAGMENTS):
            return f"{buffer_of(part).name} is for tensor cores, and accessed without them"
        if (
            part is not node
            and type(part).__name__ != "StringImm"
            and (vector := _VECTOR.fullmatch(element_type(part)))
        ):
            bits, lanes = map(int, vector.groups())
            if lanes not in _LANES[bits]:
                return f"CUDA has no vector of {lanes} numbers of {bits} bits"
    return None


def _parts(expression: PrimExpr) -> Iterator[PrimExpr]:
    """An expression and all in it, but indices that follow each other."""
    yield expression
    indices = getattr(expression, "indices", ())
    for part in (*parts_of(expression), *(index for index in indices if type(index).__name__ != "Ramp")):
        if not isinstance(part, (int, float, str)):  # of constants
            yield from _parts(part)


def _kernels(node: Stmt) -> Iterator[Stmt]:
    """The bodies of kernels under a statement."""
    return (each.body for each in statements_in(node) if getattr(each, "attr_key", None) == "thread_extent")


def _host_loops(node: Stmt) -> Iterator[For]:
    """The loops outside all kernels."""
    if getattr(node, "attr_key", None) == "thread_extent":
        return
    if type(node).__name__ == "For":
        yield node
    for child in children(node):
        yield from _host_loops(child)
