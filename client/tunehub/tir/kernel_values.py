"""What a kernel computes, found with numpy instead of code: for constants.

It knows kernels whose results are the same in every bit however they are computed: those that move numbers, choose
among them by conditions, compute with whole numbers, or round once. Everything else is left to TVM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.tir.index_expressions import Array, operator_name, parts_of
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    element_type,
    integer,
    is_reduction,
    is_static,
    parameters,
)
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, For, Number, PrimExpr, PrimFunc, SBlock, SBlockRealize, Stmt

MOST_ELEMENTS = 1 << 20  # of a result: beyond, a kernel of TVM's is as fast
_NUMBERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_WHOLE = ("bool", *_NUMBERS)
_ROUNDED = ("float32", "float64")
_SAFE = 2.0**31  # a number of less is converted to a whole one everywhere alike
_ARITHMETIC: dict[str, Callable[..., Array]] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}
_DIVISIONS: dict[str, Callable[..., Array]] = {
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Mod": np.fmod,
    "Div": lambda one, other: np.floor_divide(one - np.fmod(one, other), other),
}
_CHOSEN: dict[str, Callable[..., Array]] = {"Min": np.minimum, "Max": np.maximum}
_WHOLE_ARITHMETIC = {**_ARITHMETIC, **_DIVISIONS, **_CHOSEN}
_COMPARED: dict[str, Callable[..., Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
}


class _UnknownError(Exception):
    """A kernel has something that is not evaluated here."""


def result_of(function: PrimFunc, arguments: Sequence[Array]) -> Array | None:
    """What ``function``, a PrimFunc whose last parameter is its result, writes for ``arguments``; None when that is not
    known, or depends on what lies outside of a buffer."""
    if not is_static(function) or len(parameters(function)) != len(arguments) + 1:
        return None
    kernel = _Kernel(beyond=0)
    try:
        with np.errstate(all="ignore"):
            result = kernel.result(function, arguments)
            if not kernel.went_beyond:  # TVM's slice_scatter does, and drops what it reads there
                return result
            other = _Kernel(beyond=1).result(function, arguments)
    except _UnknownError:
        return None
    return result if result.tobytes() == other.tobytes() else None


@dataclass(slots=True)
class _Kernel:
    """``beyond`` is what lies outside of buffers."""

    beyond: int
    went_beyond: bool = False
    memories: dict[int, Array] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)  # of variables
    written: set[int] = field(default_factory=set)

    def result(self, function: PrimFunc, arguments: Sequence[Array]) -> Array:
        *buffers, last = parameters(function)
        for buffer, argument in zip(buffers, arguments, strict=True):
            self.memories[hash(buffer)] = argument
            self.written.add(hash(buffer))
        result = self.allocate(last)
        self.run(function.body, ())
        if hash(last) not in self.written:
            raise _UnknownError
        return result

    def allocate(self, buffer: Buffer) -> Array:
        kind = buffer_kind(buffer)
        shape = [integer(extent) for extent in kind.shape]
        if None in shape or math.prod(extent or 0 for extent in shape) > MOST_ELEMENTS:
            raise _UnknownError
        memory = np.zeros([extent or 0 for extent in shape], _numpy_type(str(kind.dtype)))
        self.memories[hash(buffer)] = memory
        return memory

    def run(self, node: Stmt, loops: tuple[For, ...]) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for each in node.seq:
                self.run(each, loops)
        elif kind == "For":
            if integer(node.min) != 0 or integer(node.extent) is None:
                raise _UnknownError
            self.run(node.body, (*loops, node))
        elif kind == "SBlockRealize":
            self.block(node, loops)
        else:
            raise _UnknownError

    def block(self, realize: SBlockRealize, loops: tuple[For, ...]) -> None:
        block = realize.block
        if integer(realize.predicate) != 1 or block.init is not None or block.match_buffers:
            raise _UnknownError
        for buffer in block.alloc_buffers:
            self.allocate(buffer)
        if not block.iter_vars and not loops:
            self.run(block.body, loops)
            return
        extents = [integer(loop.extent) or 0 for loop in loops]
        for axis, loop in enumerate(loops):
            behind = len(loops) - 1 - axis
            self.values[hash(loop.loop_var)] = np.arange(extents[axis]).reshape(extents[axis], *(1,) * behind)
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if is_reduction(axis):
                raise _UnknownError
            self.values[hash(axis.var)] = self.value(value, None)
        self.store(block, extents)

    def store(self, block: SBlock, extents: list[int]) -> None:
        """Only along the axes of the block, so that each element is written once."""
        node, axes = block.body, [hash(axis.var) for axis in block.iter_vars]
        if type(node).__name__ != "BufferStore" or [hash(index) for index in node.indices] not in (axes, []):
            raise _UnknownError
        buffer = buffer_of(node)
        memory = self.memories.get(hash(buffer))
        if memory is None or memory.size != math.prod(extents) or hash(buffer) in self.written:
            raise _UnknownError
        found = self.value(node.value, None)
        memory[...] = np.broadcast_to(found, extents).reshape(memory.shape)
        self.written.add(hash(buffer))

    def value(self, node: PrimExpr, active: Array | None) -> Array:
        """Where ``active`` holds; None: everywhere."""
        kind = type(node).__name__
        if kind in ("IntImm", "FloatImm"):
            return np.asarray(node.value, _numpy_type(element_type(node)))
        if kind == "Var":
            return self.variable(node)
        if kind in LOADS:
            return self.load(node, active)
        if kind == "Cast":
            return _cast(self.value(node.value, active), element_type(node))
        if kind == "Not":
            return np.logical_not(self.value(node.a, active))
        if kind == "Select":
            return self.choice(node.condition, node.true_value, node.false_value, active)
        if kind == "Call" and operator_name(node) == "if_then_else":
            condition, then, otherwise = node.args
            return self.choice(condition, then, otherwise, active)
        if kind == "Call" and operator_name(node) == "likely":
            return self.value(node.args[0], active)
        return self.operation(kind, node, active)

    def variable(self, node: PrimExpr) -> Array:
        if hash(node) not in self.values:
            raise _UnknownError
        return self.values[hash(node)].astype(_numpy_type(element_type(node)), copy=False)

    def operation(self, kind: str, node: PrimExpr, active: Array | None) -> Array:
        if kind not in (*_ARITHMETIC, *_DIVISIONS, *_CHOSEN, *_COMPARED):
            raise _UnknownError
        one, other = self.value(node.a, active), self.value(node.b, active)
        if kind in _COMPARED:
            if kind == "NE" and bool((one != one).any() | (other != other).any()):
                raise _UnknownError  # NaN, on which compilers disagree
            return np.asarray(_COMPARED[kind](one, other))
        dtype = element_type(node)
        if dtype in _NUMBERS:
            if kind in _DIVISIONS and not other.all():
                raise _UnknownError
            return np.asarray(_WHOLE_ARITHMETIC[kind](one, other)).astype(dtype, copy=False)
        if dtype not in _ROUNDED or kind not in (*_ARITHMETIC, "Div") or any(map(_rounds, (node.a, node.b))):
            raise _UnknownError
        return np.asarray(np.divide(one, other) if kind == "Div" else _ARITHMETIC[kind](one, other))

    def choice(self, condition: PrimExpr, then: PrimExpr, otherwise: PrimExpr, active: Array | None) -> Array:
        holds = self.value(condition, active).astype(bool)
        first = self.value(then, holds if active is None else active & holds)
        second = self.value(otherwise, ~holds if active is None else active & ~holds)
        return np.where(holds, first, second)

    def load(self, node: PrimExpr, active: Array | None) -> Array:
        buffer = hash(buffer_of(node))
        if buffer not in self.written:
            raise _UnknownError
        memory = self.memories[buffer]
        if not memory.shape:
            return memory
        places = [self.value(index, active) for index in node.indices]
        inside = [(place >= 0) & (place < extent) for place, extent in zip(places, memory.shape, strict=True)]
        if all(each.all() for each in inside):
            return np.asarray(memory[tuple(places)])
        within = [np.clip(place, 0, extent - 1) for place, extent in zip(places, memory.shape, strict=True)]
        outside = ~reduce(np.logical_and, inside)
        self.went_beyond |= bool((outside if active is None else outside & active).any())
        return np.where(outside, np.asarray(self.beyond, memory.dtype), memory[tuple(within)])


def _cast(values: Array, dtype: str) -> Array:
    known = str(values.dtype) in (*_WHOLE, *_ROUNDED) and dtype in (*_WHOLE, *_ROUNDED)
    narrowed = dtype in _WHOLE and str(values.dtype) in _ROUNDED
    if not known or (narrowed and (dtype not in ("bool", "int32", "int64") or not (abs(values) < _SAFE).all())):
        raise _UnknownError
    return values.astype(dtype)


def _rounds(node: Number) -> bool:
    """Whether an operand is a rounded result itself: TVM's code could then round both at once."""
    kind = type(node).__name__
    if kind in (*_ARITHMETIC, "Div"):
        return element_type(node) in _ROUNDED or any(map(_rounds, (node.a, node.b)))
    return any(map(_rounds, parts_of(node)))


def _numpy_type(dtype: str) -> np.dtype[Any]:
    try:
        return np.dtype(dtype)
    except TypeError as error:  # bfloat16, say
        raise _UnknownError from error
