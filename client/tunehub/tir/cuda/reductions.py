"""Reductions that do more than to combine: TVM may put into one what comes behind it.

``reverse_compute_inline`` does so where all axes that are summed over have one value, as those of a depthwise 1×1
convolution: the epilogue then makes the initial value, too, and is applied to the result once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunehub.tir.nodes import blocks_in, buffer_of, children, reduces
from tunehub.tir.versions import BINDINGS, LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, Number, PrimExpr, PrimFunc, SBlock, Stmt

_WRITING = ("BufferStore", *BINDINGS)
_COMBINING = ("Add", "Mul", "Max", "Min", "And", "Or")
_COMPARING = ("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or", "Not")
_SELECTING = ("condition", "true_value", "false_value")
_OPERANDS = ("a", "b", "value", *_SELECTING, "base", "stride")


def impure_reduction(function: PrimFunc) -> str | None:
    """The name of a block of ``function``, a scheduled PrimFunc, that reduces and whose update is not
    ``result = result ⊕ value`` with a value that does not read the result; None when there is none.

    A selection counts, too, that compares results with values and takes one of them, as that of an argmax. What the
    update combines with must not be in the initial value, too: a bias would be added twice.
    """
    for block in blocks_in(function.body):
        if block.match_buffers:  # an instruction: what it does stands nowhere
            continue
        if reduces(block) or block.init is not None:
            own = [buffer_of(region) for region in block.writes]
            if not all(_combines(store, own) for store in _stores(block.body)) or _begins_with_update(block):
                return str(block.name_hint)
    return None


def _begins_with_update(block: SBlock) -> bool:
    """Whether a part of the initial value of a ``block`` is one of its update."""
    from tvm_ffi import structural_equal

    first, update = (list(_parts(body)) for body in (block.init, block.body))
    return any(structural_equal(part, other) for part in first for other in update)


def _parts(body: Stmt | None) -> Iterator[PrimExpr]:
    """The operands of what a ``body`` stores, where it combines some."""
    for store in () if body is None else _stores(body):
        kind = type(store.value).__name__
        if kind in _COMBINING:
            yield from _flat(store.value, kind)


def _stores(node: Stmt) -> Iterator[Stmt]:
    """The stores of a block, and the values that it names first, without those of blocks inside."""
    kind = type(node).__name__
    if kind in _WRITING:
        yield node
    for child in () if kind == "SBlockRealize" else children(node):
        yield from _stores(child)


def _combines(store: Stmt, own: list[Buffer]) -> bool:
    value = store.value
    kind = type(value).__name__
    if kind in _COMBINING:
        parts = list(_flat(value, kind))
        return sum(_is_own(part, own) for part in parts) == 1 and all(_is_plain(part, own) for part in parts)
    return _selects(value, own)


def _flat(value: PrimExpr, kind: str) -> Iterator[PrimExpr]:
    """The operands of nested operations of one kind."""
    if type(value).__name__ != kind:
        yield value
        return
    for part in (value.a, value.b):
        yield from _flat(part, kind)


def _selects(value: PrimExpr, own: list[Buffer]) -> bool:
    """Whether a value is one of results and of values that read none, chosen by comparing them."""
    kind = type(value).__name__
    if kind == "Select":
        return all(_selects(getattr(value, name), own) for name in _SELECTING)
    if kind == "Call" and str(value.op.name).endswith("if_then_else"):
        return all(_selects(argument, own) for argument in value.args)
    if kind in _COMPARING:
        return all(_selects(part, own) for part in (value.a, getattr(value, "b", None)) if part is not None)
    return _is_plain(value, own)


def _is_plain(value: PrimExpr, own: list[Buffer]) -> bool:
    return _is_own(value, own) or not _reads(value, own)


def _is_own(value: Number, own: list[Buffer]) -> bool:
    return type(value).__name__ in LOADS and any(buffer_of(value).same_as(buffer) for buffer in own)


def _reads(value: Number, own: list[Buffer]) -> bool:
    if _is_own(value, own):
        return True
    parts = [getattr(value, name, None) for name in _OPERANDS]
    return any(_reads(part, own) for part in (*parts, *getattr(value, "args", ())) if part is not None)
