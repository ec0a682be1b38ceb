"""Sums of integers that LLVM is to keep in registers though TVM takes what is so large from a pool: memory on the
stack. Of the pool's LLVM does not know that a prefetch leaves it alone, and stores each sum in each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import tvm

from tunehub.tir.nodes import children, integer, with_children
from tunehub.tir.statements import allocate, const
from tunehub.tir.versions import PARALLEL

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, Stmt

_POOLED = range(1024, 2049)  # bytes: TVM's limit (runtime::kMaxStackAlloca), and as many as registers have
_VECTOR, _VECTOR_BYTES = "int32x16", 64
_ON_STACK = "disable_lower_builtin"  # TVM's name for it


def with_sums_on_stack(mod: IRModule) -> IRModule:
    """``mod``, lowered, with such sums of its PrimFuncs on the stack."""
    changed = {
        variable: function.with_body(_on_stack(function.body))
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) and any(map(_is_sums, _outside(function.body)))
    }
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs) if changed else mod


def _outside(node: Stmt) -> Iterator[Stmt]:
    """The statements outside of loops but those that threads share."""
    yield node
    if not _is_inner(node):
        for child in children(node):
            yield from _outside(child)


def _is_inner(node: Stmt) -> bool:
    return type(node).__name__ == "For" and int(node.kind) != PARALLEL


def _is_sums(node: Stmt) -> bool:
    if type(node).__name__ != "AllocBuffer" or str(node.buffer.dtype) != _VECTOR or len(node.buffer.shape) != 1:
        return False
    return (integer(node.buffer.shape[0]) or 0) * _VECTOR_BYTES in _POOLED


def _on_stack(node: Stmt) -> Stmt:
    if _is_sums(node):
        return allocate(node.buffer, {**dict(node.annotations.items()), _ON_STACK: const(True, "bool")})
    return node if _is_inner(node) else with_children(node, _on_stack)
