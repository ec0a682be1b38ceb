"""Kernels written for threads, run on a CPU: all threads of a block take each statement together, with numpy.

Functions of CUDA C++ that a kernel calls by name (:mod:`tunehub.cuda.attention.device_code`) are done here as NVIDIA's
PTX ISA says. What is copied asynchronously arrives when it is waited for, and not before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunehub.relax.nodes import buffer_kind, buffer_of, parameters

from ..operators import BINARY

WARP = 32
_BOUND = 4


@dataclass(frozen=True)
class _Pointer:
    """An element for each thread: of an array that all have, or of each thread's own."""

    array: Any
    at: Any


@dataclass
class _Lockstep:
    arrays: dict[int, Any]
    own: set[int] = field(default_factory=set)  # buffers of which each thread has its own
    names: dict[int, Any] = field(default_factory=dict)
    threads: int = 1
    active: Any = None
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def statement(self, node: Any) -> None:
        getattr(self, f"do_{type(node).__name__}")(node)

    def do_SeqStmt(self, node: Any) -> None:
        for each in node.seq:
            self.statement(each)

    def do_SBlockRealize(self, node: Any) -> None:
        for buffer in node.block.alloc_buffers:
            shape = tuple(int(extent) for extent in buffer_kind(buffer).shape)
            if str(buffer.scope()) == "local":
                self.own.add(hash(buffer))
                shape = (self.threads, *shape)
            array = np.zeros(shape, str(buffer_kind(buffer).dtype))
            array.view("uint8")[...] = 0xFF  # NaN, or a large number
            self.arrays[hash(buffer)] = self.arrays[hash(buffer.data)] = array
        self.statement(node.block.body)

    def do_For(self, node: Any) -> None:
        tag = str(node.thread_binding.thread_tag) if int(node.kind) == _BOUND else ""
        name, extent = hash(node.loop_var), self.number(node.extent)
        if tag.startswith("threadIdx"):
            self.threads *= extent
            # threads that differ along x alone are neighbours
            self.names = {key: np.repeat(np.atleast_1d(value), extent) for key, value in self.names.items()}
            self.names[name] = np.tile(np.arange(extent), self.threads // extent)
            self.active = np.ones(self.threads, bool)
            self.statement(node.body)
            return
        for at in range(extent):
            self.names[name] = at
            if tag:
                inner = _Lockstep(dict(self.arrays), names=dict(self.names), active=np.ones(1, bool))
                inner.statement(node.body)
                assert not inner.waiting, "copies that nobody waits for"
            else:
                self.statement(node.body)

    def do_IfThenElse(self, node: Any) -> None:
        before, holds = self.active, np.asarray(self.value(node.condition), bool)
        assert node.else_case is None
        self.active = before & holds
        if self.active.any():
            self.statement(node.then_case)
        self.active = before

    def do_BufferStore(self, node: Any) -> None:
        buffer = node.buffer
        array, value = self.arrays[hash(buffer)], np.broadcast_to(self.value(node.value), (self.threads,))
        place = self.place(buffer, [self.value(index) for index in node.indices])
        array[tuple(each[self.active] for each in place)] = value[self.active]

    def do_Evaluate(self, node: Any) -> None:
        if type(node.value).__name__ == "Call":
            self.value(node.value)

    def place(self, buffer: Any, indices: Sequence[Any]) -> list[Any]:
        """Indices for each thread; those of threads that wait are inside."""
        shape = self.arrays[hash(buffer)].shape
        own = [np.arange(self.threads)] if hash(buffer) in self.own else []
        found = [*own, *(np.broadcast_to(index, (self.threads,)) for index in indices)]
        for each, extent in zip(found, shape, strict=True):
            assert ((each >= 0) & (each < extent))[self.active].all(), f"beyond the end of {buffer.name}"
        return [np.clip(each, 0, extent - 1) for each, extent in zip(found, shape, strict=True)]

    def number(self, expression: Any) -> int:
        values = np.unique(self.value(expression))
        assert len(values) == 1, "threads disagree"
        return int(values[0])

    def value(self, node: Any) -> Any:
        kind = type(node).__name__
        if kind == "IntImm":
            return int(node.value)
        if kind == "FloatImm":
            return np.float32(node.value)
        if kind == "Var":
            return self.names[hash(node)]
        if kind in BINARY:
            with np.errstate(all="ignore"):
                return BINARY[kind](self.value(node.a), self.value(node.b))
        if kind == "Cast":
            return np.asarray(self.value(node.value)).astype(str(node.ty.dtype))
        if kind == "Select":
            return np.where(*map(self.value, (node.condition, node.true_value, node.false_value)))
        if kind in ("BufferLoad", "TensorLoad"):
            buffer = buffer_of(node)
            return self.arrays[hash(buffer)][tuple(self.place(buffer, [self.value(index) for index in node.indices]))]
        assert kind == "Call", kind
        return self.call(str(node.op.name).rpartition(".")[2], node.args)

    def call(self, name: str, args: Any) -> Any:
        if name == "func_call":
            return getattr(self, args[0].value)(*map(self.value, args[1:-1]))
        if name == "address_of":
            buffer = buffer_of(args[0])
            place = self.place(buffer, [self.value(index) for index in args[0].indices])
            return _Pointer(self.arrays[hash(buffer)], np.ravel_multi_index(place, self.arrays[hash(buffer)].shape))
        if name == "tvm_access_ptr":
            memory = args[1].args[0] if type(args[1]).__name__ == "Call" else args[1]  # since 0.27
            array, at = self.arrays[hash(memory)], np.broadcast_to(self.value(args[2]), (self.threads,))
            own = array[0].size * np.arange(self.threads) if hash(memory) in self.own else 0
            return _Pointer(array, at + own)
        if name == "exp2":
            with np.errstate(all="ignore"):
                return np.exp2(self.value(args[0]))
        if name == "if_then_else":
            return np.where(*map(self.value, args))
        assert name == "tvm_storage_sync", name
        return None

    # -- functions of CUDA C++

    def tunehub_minus_infinity(self) -> Any:
        return np.float32(-math.inf)

    def tunehub_lane_xor(self, value: Any, mask: int) -> Any:
        assert self.active.all()
        return value[np.arange(self.threads) ^ mask]

    def tunehub_copies_commit(self) -> None:
        pass

    def tunehub_copies_wait(self) -> None:
        for each in self.waiting:
            each()
        self.waiting.clear()

    def tunehub_copy_16_bytes(self, target: _Pointer, source: _Pointer, size: Any) -> None:
        count = 16 // target.array.itemsize
        lanes = np.arange(count)
        assert (target.at[self.active] % count == 0).all()
        assert (source.at[self.active] % count == 0).all()
        read = np.minimum(source.at[:, None] + lanes, source.array.size - 1)
        values = np.where(np.broadcast_to(size, (self.threads,))[:, None] == 16, source.array.reshape(-1)[read], 0)
        places, values = (target.at[:, None] + lanes)[self.active], values[self.active]

        def arrive() -> None:
            target.array.reshape(-1)[places] = values

        target.array.reshape(-1)[places] = np.nan
        self.waiting.append(arrive)

    def tunehub_pair(self, target: _Pointer, low: Any, high: Any) -> None:
        with np.errstate(all="ignore"):
            both = np.stack([low, high], -1).astype("float16").copy().view("uint32")[:, 0]
        target.array.reshape(-1)[target.at] = both

    def tunehub_load_pair(self, target: _Pointer, source: _Pointer) -> None:
        both = source.array.reshape(-1)[source.at[:, None] + np.arange(2)]
        target.array.reshape(-1)[target.at] = both.copy().view("uint32")[:, 0]

    def tunehub_ldmatrix_x4(self, target: _Pointer, source: _Pointer, transposed: bool = False) -> None:
        assert (source.at % 8 == 0).all()
        rows = source.array.reshape(-1)[source.at[:, None] + np.arange(8)].reshape(-1, 4, 8, 8)
        rows = rows.swapaxes(2, 3) if transposed else rows
        pairs = np.ascontiguousarray(rows).view("uint32").reshape(-1, 4, WARP)  # a lane has two neighbours of a row
        _put(target, pairs.swapaxes(1, 2).reshape(-1, 4))

    def tunehub_ldmatrix_x4_trans(self, target: _Pointer, source: _Pointer) -> None:
        self.tunehub_ldmatrix_x4(target, source, transposed=True)

    def tunehub_mma_m16n8k16(self, sums: _Pointer, first: _Pointer, second: _Pointer) -> None:
        assert self.active.all()
        a, b = (_halves(pointer, count) for pointer, count in ((first, 4), (second, 2)))  # [warp, row, quad, part, 2]
        a = a.reshape(-1, 8, 4, 2, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, 16)
        b = b.reshape(-1, 8, 4, 2, 2).transpose(0, 3, 2, 4, 1).reshape(-1, 16, 8)
        product = a.astype("float32") @ b.astype("float32")
        lanes = product.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 4)
        _put(sums, sums.array.reshape(-1)[sums.at[:, None] + np.arange(4)] + lanes)


def _halves(pointer: _Pointer, count: int) -> Any:
    """What each lane has of a fragment, in pairs: [threads, count, 2]."""
    found = pointer.array.reshape(-1)[pointer.at[:, None] + np.arange(count)]
    return found.copy().view("float16").reshape(-1, count, 2)


def _put(pointer: _Pointer, values: Any) -> None:
    pointer.array.reshape(-1)[pointer.at[:, None] + np.arange(values.shape[1])] = values


def run(function: Any, *arrays: Any, symbols: dict[int, int] | None = None) -> None:
    """Run ``function``, a PrimFunc with bound threads, on numpy arrays in the order of its parameters."""
    known = {
        hash(each): array
        for buffer, array in zip(parameters(function), arrays, strict=True)
        for each in (buffer, buffer.data)
    }
    _Lockstep(known, names=dict(symbols or {}), active=np.ones(1, bool)).statement(function.body)
