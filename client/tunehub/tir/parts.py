"""A function taken apart: of its statements, one after the other, functions of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tunehub.tir.nodes import blocks_in, buffer_of, parameters
from tunehub.tir.statements import with_root

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimFunc, Stmt

Parameter = tuple[Any, Any]  # of a function, and its buffer


def statements_of(function: PrimFunc) -> list[Stmt]:
    """The statements of a PrimFunc, a computation each."""
    root = getattr(getattr(function, "body", None), "block", None)
    if root is None:
        return []
    return list(root.body.seq) if type(root.body).__name__ == "SeqStmt" else [root.body]


def buffers_of(statement: Stmt, side: str) -> set[int]:
    """The buffers that a statement ``reads`` or ``writes``, by their hash."""
    return {hash(buffer_of(region)) for block in blocks_in(statement) for region in getattr(block, side)}


def needed(statements: Sequence[Stmt], wanted: Iterable[int]) -> list[Stmt]:
    """Those of ``statements`` that the buffers ``wanted``, by their hash, depend on."""
    needs, found = set(wanted), []
    for statement in reversed(statements):
        if needs & buffers_of(statement, "writes"):
            needs |= buffers_of(statement, "reads")
            found.append(statement)
    return found[::-1]


def used(function: PrimFunc, statements: Sequence[Stmt]) -> tuple[int, ...]:
    """The numbers of the parameters of ``function`` that some of its ``statements`` touch."""
    touched = set().union(*(buffers_of(each, side) for each in statements for side in ("reads", "writes")))
    return tuple(number for number, buffer in enumerate(parameters(function)) if hash(buffer) in touched)


def writes_only_last(function: PrimFunc) -> bool:
    """Whether the last parameter of ``function`` is its only result."""
    written = set().union(*(buffers_of(each, "writes") for each in statements_of(function)))
    return [hash(each) in written for each in parameters(function)] == [False] * (len(function.params) - 1) + [True]


def parameters_of(function: PrimFunc) -> list[Parameter]:
    """The parameters of ``function``, all buffers."""
    return list(zip(function.params, parameters(function), strict=True))


def function_of(
    like: PrimFunc, own: Sequence[Parameter], statements: Sequence[Stmt], local: Sequence[Buffer] = ()
) -> PrimFunc:
    """A PrimFunc of ``statements`` with the parameters ``own``; ``local``: buffers of its own beside those of
    ``like``."""
    from tvm import tirx

    given = {hash(buffer) for _, buffer in own}
    touched = set().union(*(buffers_of(each, side) for each in statements for side in ("reads", "writes"))) - given
    kept = [buffer for buffer in like.body.block.alloc_buffers if hash(buffer) in touched]
    body = with_root(like.body, statements, [*kept, *local])
    maps = [dict(own)] if hasattr(like, "buffer_map") else []  # until 0.25
    return tirx.PrimFunc([parameter for parameter, _ in own], body, like.ret_type, *maps, like.attrs)
