"""Operator classes of current TVM (0.25 and newer): which functions are the same computation at other shapes.

The class of a function is a text of its blocks with all extents and numbers left out, hashed like the keys of
:mod:`tunehub.tir.keys`; the extents themselves are kept beside it. Records of one class have the same blocks by the
same names, so the steps of a trace mean the same in each of them (:mod:`tunehub.kernels.transfer.trace`).

What a class keeps: names of blocks, kinds of their loops, operators, element types, and how reductions and windows
index their operands. What it leaves out: extents, numbers (means and scales follow from extents), and whether a plain
index is a loop or 0, because an operand of one row is read at 0 by many rows and at the loop by one.

The class of a function's anchor block alone is that of all functions that do the same heavy work, whatever is fused
around it: of eleven networks, the others' records have the class of 4 to 100 % of one's work, but the anchor's class of
93 to 100 % (grouped and large kernels that occur in one network only aside).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.tir.nodes import buffer_kind, buffer_of, integer, is_reduction, parameters, reduces
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, IRModule, IterVar, PrimExpr, SBlock, Stmt, Var

CLASS_SCHEME, ANCHOR_SCHEME = "op-class-1", "anchor-class-1"
MAX_EXTENTS = 512
_KEY_LENGTH = 32
_NUMBERS = ("IntImm", "FloatImm")
_PAIRS = ("a", "b")
_OPERANDS = {
    "Cast": ("value",),
    "Not": ("a",),
    "Select": ("condition", "true_value", "false_value"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorClass:
    """``key`` (32 hex digits) names the class; ``shape`` holds the extents of the loops of each block, in order."""

    key: str
    shape: tuple[tuple[int, ...], ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """All extents in one list, as records hold them."""
        return tuple(extent for block in self.shape for extent in block)

    @property
    def work(self) -> int:
        """Steps of the block that takes the most."""
        return max(map(math.prod, self.shape))

    def same_shape(self, extents: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
        """``extents`` of a record of this class by block; None when their number is another."""
        if len(extents) != len(self.extents):
            return None
        flat = iter(extents)
        return tuple(tuple(next(flat) for _ in block) for block in self.shape)


def class_of(mod: IRModule) -> OperatorClass | None:
    """Return the class of ``mod`` (an IRModule with one PrimFunc ``main``), or None where no trace could be adapted:
    loops or buffers of unknown extent, blocks inside blocks, anything but stores into buffers."""
    function = mod["main"]
    try:
        blocks = _blocks(function.body)
        if not blocks:
            return None
        names: dict[Buffer, str] = {}
        head = [_kind(buffer, names) for buffer in parameters(function)]
        return _classified([CLASS_SCHEME, *head], blocks, names)
    except _NoClassError:
        return None


def anchor_class_of(mod: IRModule) -> OperatorClass | None:
    """Return the class of the anchor block of ``mod`` alone (see :func:`tunehub.tir.keys.anchor_key`).

    None where there is no such block, it is no reduction, or :func:`class_of` has no name for what it does.
    """
    from tvm.s_tir import analysis

    block = analysis.find_anchor_sblock(mod)
    if block is None or not reduces(block):
        return None
    try:
        return _classified([ANCHOR_SCHEME, *_operand_types(block)], [block], {})
    except _NoClassError:
        return None


def class_fields(mod: IRModule) -> dict[str, object]:
    """The classes of ``mod`` and of its anchor block, with extents, as in records."""
    own, anchors = class_of(mod), anchor_class_of(mod)
    return {
        "op_class": None if own is None else own.key,
        "extents": () if own is None else own.extents,
        "anchor_class": None if anchors is None else anchors.key,
        "anchor_extents": () if anchors is None else anchors.extents,
    }


def _operand_types(block: SBlock) -> list[str]:
    """The types of what a block reads and casts to that of its sums, but for float16: so its records in published
    packages have their classes."""
    sums = str(buffer_kind(buffer_of(block.writes[0])).dtype)
    found = [str(buffer_kind(buffer_of(region)).dtype) for region in block.reads]
    return [dtype for dtype in found if dtype not in (sums, "float16")]


def _classified(head: list[str], blocks: list[SBlock], names: dict[Buffer, str]) -> OperatorClass | None:
    text = "\n".join([*head, *(_BlockText(block, names).text() for block in blocks)])
    shape = tuple(tuple(_extent(axis) for axis in block.iter_vars) for block in blocks)
    if not all(shape) or sum(map(len, shape)) > MAX_EXTENTS:
        return None
    return OperatorClass(key=hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH], shape=shape)


class _NoClassError(Exception):
    """The function is outside what classes describe."""


def _blocks(body: Stmt) -> list[Stmt]:
    """The blocks inside the root block, in order."""
    kind = type(body).__name__
    root = body.block if kind == "SBlockRealize" else None
    if root is None or root.iter_vars:
        raise _NoClassError
    found: list[SBlock] = []
    _collect(root.body, found)
    return found


def _collect(node: Stmt, found: list[Stmt]) -> None:
    kind = type(node).__name__
    if kind == "SeqStmt":
        for child in node.seq:
            _collect(child, found)
    elif kind == "For":
        _collect(node.body, found)
    elif kind == "SBlockRealize":
        found.append(node.block)
    else:
        raise _NoClassError


def _kind(buffer: Buffer, names: dict[Buffer, str]) -> str:
    kind = buffer_kind(buffer)
    return f"{_name(buffer, names)}: {kind.dtype} {len(kind.shape)}"


def _name(buffer: Buffer, names: dict[Buffer, str]) -> str:
    """Buffers by first occurrence; they hash by identity."""
    return names.setdefault(buffer, f"x{len(names)}")


def _extent(axis: IterVar) -> int:
    extent = integer(axis.dom.extent)
    if extent is None:
        raise _NoClassError
    return extent


def _size(buffer: Buffer) -> int:
    extents = [integer(extent) for extent in buffer_kind(buffer).shape]
    if None in extents:
        raise _NoClassError
    return math.prod(int(extent or 0) for extent in extents)


class _BlockText:
    """The text of one block. ``names`` are those of the function's buffers so far."""

    def __init__(self, block: SBlock, names: dict[Buffer, str]) -> None:
        self._block = block
        self._names = names
        self._axes: dict[Var, str] = {}
        for position, axis in enumerate(block.iter_vars):
            self._axes[axis.var] = f"{'r' if is_reduction(axis) else 's'}{position}"
        self._steps = math.prod(_extent(axis) for axis in block.iter_vars if not is_reduction(axis))

    def text(self) -> str:
        block = self._block
        init = "" if block.init is None else self._store(block.init)
        return f"{block.name_hint}({','.join(self._axes.values())}) [{init}] {self._store(block.body)}"

    def _store(self, node: Stmt) -> str:
        if type(node).__name__ != "BufferStore":
            raise _NoClassError
        buffer = buffer_of(node)
        kind = buffer_kind(buffer)
        target = f"{_name(buffer, self._names)}:{kind.dtype}{self._indices(node.indices, buffer)}"
        return f"{target} = {self._value(node.value)}"

    def _value(self, node: PrimExpr) -> str:
        kind = type(node).__name__
        if kind in _NUMBERS:
            return "#"
        if kind in LOADS:
            buffer = buffer_of(node)
            return f"{_name(buffer, self._names)}{self._indices(node.indices, buffer)}"
        if node in self._axes:
            return self._axes[node]
        if kind == "Call":
            operator = str(getattr(node.op, "name", "call")).partition(".")[2]  # its dialect was renamed in 0.26
            return f"{operator}({','.join(map(self._value, node.args))})"
        if kind == "StringImm":
            return repr(str(node.value))
        fields = _OPERANDS.get(kind) or (_PAIRS if hasattr(node, "a") and hasattr(node, "b") else None)
        if fields is None:
            raise _NoClassError
        return f"{kind}({','.join(self._value(getattr(node, name)) for name in fields)})"

    def _indices(self, indices: Sequence[PrimExpr], buffer: Buffer) -> str:
        """Plain indices are dots. Behind them: whether the operand is broadcast, and whether axes change places."""
        parts, order = [], []
        for index in indices:
            axis = self._axes.get(index) if type(index).__name__ == "Var" else None
            plain = type(index).__name__ == "IntImm" or (axis is not None and axis[0] == "s")
            parts.append("." if plain else axis or self._value(index))
            order += [int(axis[1:])] if plain and axis else []
        if set(parts) - {"."}:
            return f"[{','.join(parts)}]"
        broadcast = "<" if _size(buffer) < self._steps else ""
        return f"[{','.join(parts)}{broadcast}{'~' if order != sorted(order) else ''}]"
