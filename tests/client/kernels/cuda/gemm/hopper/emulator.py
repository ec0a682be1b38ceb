"""A GPU of compute capability 9.0 for kernels of :mod:`tunehub.kernels.cuda.gemm.hopper`: all threads of a block at
once, by NumPy.

Copies into shared memory arrive when they are waited for, and not before; operands are read from shared memory where
PTX says that a swizzled operand lies; sums are in registers as PTX says. What is not there yet is NaN. Source: PTX ISA
8.5, 9.7.15.5 "Asynchronous wgmma: matrix fragments, shared memory layouts", 9.7.9.25 "cp.async".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tunehub.tir.cuda.ptx.wgmma import BYTE_KINDS
from tunehub.tir.nodes import buffer_kind, parameters
from tunehub.tir.versions import LOADS

from ...operators import BINARY
from ...read_once import read_once

_BASE = 1024  # where shared memory begins
_BEHIND = 1 << 18


def run(function: Any, *arrays: Any) -> None:
    """Run ``function`` on ``arrays``, the last of which it writes. Symbols are extents of these; behind each is more
    memory, in which nothing may be read or written."""
    with laid_out(function, *arrays) as (symbols, named, memory):
        _run(function, symbols, named, memory)


def _unknown(shape: Any, dtype: Any) -> Any:
    """What nothing has written yet: NaN, or the largest integer."""
    is_integer = str(dtype).startswith(("int", "uint"))
    return np.full(shape, np.iinfo(dtype).max if is_integer else np.nan, dtype)


@contextmanager
def laid_out(function: Any, *arrays: Any) -> Iterator[tuple[dict[int, Any], dict[int, Any], dict[int, Any]]]:
    """The values of symbols, what is in each parameter, and all memory from there on, by hashes; afterwards the last of
    ``arrays`` is what was written."""
    symbols = {
        hash(extent): size
        for buffer, array in zip(parameters(function), arrays, strict=True)
        for extent, size in zip(buffer_kind(buffer).shape, array.shape, strict=True)
    }
    memory = [np.concatenate([array.reshape(-1), _unknown(_BEHIND, array.dtype)]) for array in arrays]
    named = {
        hash(buffer): flat[: array.size].reshape(array.shape)
        for buffer, flat, array in zip(parameters(function), memory, arrays, strict=True)
    }
    yield symbols, named, dict(zip(named, memory, strict=True))
    behind = memory[-1][arrays[-1].size :]
    assert np.array_equal(behind, _unknown(behind.shape, behind.dtype), equal_nan=behind.dtype.kind not in "iu"), (
        "something is written behind the result"
    )
    arrays[-1][...] = named[hash(parameters(function)[-1])]


def _run(function: Any, symbols: dict[int, Any], named: dict[int, Any], memory: dict[int, Any]) -> None:
    body, order = read_once(function.body), []
    while type(body).__name__ == "SBlockRealize" or (type(body).__name__ == "For" and body.thread_binding is not None):
        if type(body).__name__ == "For":
            extent = int(_Block(symbols, {}, {}, 1).value(body.extent))
            order.append((str(body.thread_binding.thread_tag), hash(body.loop_var), extent))
        body = body.block.body if type(body).__name__ == "SBlockRealize" else body.body
    extents = {tag: (name, extent) for tag, name, extent in order}
    thread, threads = extents["threadIdx.x"]
    ranks = extents.get("clusterCtaIdx.x", (0, 1))
    for batch in range(extents.get("blockIdx.y", (0, 1))[1]):
        for first in range(0, extents["blockIdx.x"][1], ranks[1]):
            blocks = []
            for rank in range(ranks[1]):
                values = {thread: np.arange(threads), extents["blockIdx.x"][0]: first + rank, ranks[0]: rank}
                values[extents.get("blockIdx.y", (1, 1))[0]] = batch
                blocks.append(_Block(symbols | values, dict(named), memory, threads))
            cluster = [block.run(body) for block in blocks]
            for block in blocks:
                block.cluster = blocks
            while cluster:  # each up to where it waits for the others
                cluster = [one for one in cluster if next(one, None) is not None]


class _Block:
    cluster: list[_Block]

    def __init__(self, values: dict[int, Any], buffers: dict[int, Any], memory: dict[int, Any], threads: int) -> None:
        self.values, self.buffers, self.memory, self.threads = values, buffers, memory, threads
        self.all = np.arange(threads)
        self.own: set[int] = set()  # buffers that each thread has
        self.groups: list[list[Any]] = [[]]
        self.started: list[list[Any]] = [[]]
        self.shared = np.zeros(0, "uint8")

    def run(self, node: Any, mask: Any = True) -> Any:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for each in node.seq:
                yield from self.run(each, mask)
        elif kind == "For":
            for value in range(int(node.extent.value)):
                self.values[hash(node.loop_var)] = value
                yield from self.run(node.body, mask)
        elif kind == "IfThenElse":
            yield from self.run(node.then_case, np.logical_and(mask, self.value(node.condition)))
        elif kind == "AllocBuffer":
            size, dtype = int(node.buffer.ty.shape[0].value), str(node.buffer.ty.dtype)
            if node.buffer.scope() == "local":
                self.own.add(hash(node.buffer))
                self.buffers[hash(node.buffer)] = _unknown((self.threads, size), dtype)
            else:
                self.buffers[hash(node.buffer)] = _unknown(size, dtype)
                self.shared = self.buffers[hash(node.buffer)].view("uint8")
        elif kind == "DeclBuffer":
            self.declare(node.buffer, node.data.args[0])
        elif kind == "Bind":
            self.values[hash(node.var)] = self.value(node.value)
        elif kind == "BufferStore":
            self.store(node, mask)
        elif kind == "Evaluate":
            yield from self.call(node.value, mask)
        else:
            raise NotImplementedError(kind)

    def declare(self, part: Any, whole: Any) -> None:
        """``part`` begins at ``whole``, an element of a buffer or all of one, and may go beyond its end, and beyond the
        end of memory."""
        source, indices = (whole.source, whole.indices) if hasattr(whole, "indices") else (whole, ())
        start = 0
        for index, extent in zip(indices, self.buffers[hash(source)].shape if indices else (), strict=True):
            start = start * extent + int(self.value(index))
        shape = [int(extent.value) for extent in buffer_kind(part).shape]
        behind = self.memory[hash(source)][start:]
        outer = next((axis for axis, extent in enumerate(shape) if extent > 1), 0)
        shape[outer] = min(shape[outer], behind.size // math.prod(shape[outer + 1 :]))
        self.buffers[hash(part)] = behind[: math.prod(shape)].reshape(shape)

    def each(self, value: Any) -> Any:
        """A number for each thread."""
        known = getattr(value, "shape", None) == (self.threads,)
        return value if known else np.full(self.threads, value)

    def store(self, node: Any, mask: Any) -> None:
        held = self.each(mask)
        if type(node.indices[0]).__name__ == "Ramp":
            first, lanes = int(self.value(node.indices[0].base)), int(node.indices[0].lanes)
            self.buffers[hash(node.buffer)][held, first : first + lanes] = self.value(node.value)[held]
            return
        indices = [self.each(self.value(index))[held] for index in node.indices]
        value = self.each(self.value(node.value))[held]
        buffer = self.buffers[hash(node.buffer)]
        if hash(node.buffer) in self.own:
            indices = [self.all[held], *indices]
        buffer[tuple(indices)] = value

    def place(self, load: Any) -> tuple[Any, tuple[Any, ...]]:
        indices = tuple(self.each(self.value(index)) for index in load.indices)
        if hash(load.source) in self.own:
            indices = (self.all, *indices)
        return self.buffers[hash(load.source)], indices

    def value(self, node: Any) -> Any:
        kind = type(node).__name__
        if kind in ("IntImm", "FloatImm"):
            return node.value
        if kind == "Var":
            return self.values[hash(node)]
        if kind in BINARY:
            return BINARY[kind](self.value(node.a), self.value(node.b))
        if kind == "Not":
            return np.logical_not(self.value(node.a))
        if kind == "Cast":
            with np.errstate(invalid="ignore"):  # of threads that do not take part
                return np.asarray(self.value(node.value)).astype(str(node.ty.dtype))
        if kind in LOADS:
            buffer, indices = self.place(node)
            inside = tuple(_inside(i, n) for i, n in zip(indices, buffer.shape, strict=True))
            return buffer[inside]
        name = str(node.op.name).split(".")[-1]
        if name == "if_then_else":
            return np.where(*map(self.value, node.args))
        if name in ("exp", "round"):
            return (np.exp if name == "exp" else np.rint)(self.value(node.args[0]))
        if name == "reinterpret":
            words = self.each(self.value(node.args[0]))
            return np.ascontiguousarray(words).view(str(node.ty.dtype).rpartition("x")[0]).reshape(self.threads, -1)
        if name == "func_call" and str(node.args[0].value) == "tunehub_shared_address":
            return _BASE
        if name == "func_call" and str(node.args[0].value).endswith("table_element"):
            table = self.each(np.asarray(self.value(node.args[1])).astype(int) - _BASE)
            found = self.shared[np.clip(table + self.value(node.args[2]), 0, self.shared.size - 1)]
            return found.view("int8") if "signed" in str(node.args[0].value) else found
        if name == "func_call" and str(node.args[0].value).startswith(("tunehub_nearest", "tunehub_quotient")):
            return _computed(str(node.args[0].value), *(self.value(each) for each in node.args[1:-1]))
        if name == "func_call":
            start = self.each(np.asarray(self.value(node.args[1])).astype(int) - _BASE) // 4
            own = start[:, None] + np.arange(4)
            return np.sum([block.shared.view(element_of(node))[own] for block in self.cluster], axis=0)
        raise NotImplementedError(name)

    def call(self, node: Any, mask: Any) -> Any:
        name = str(node.args[0].value) if str(node.op.name).endswith("func_call") else str(node.op.name)
        args = node.args[1:-1]
        if name == "tunehub_copy_16":
            self.copy(args, self.each(mask))
        elif name.startswith("tunehub_copy_16_"):
            self.copy(args, self.each(mask), int(name.rpartition("_")[2]))
        elif name == "tunehub_copies_end":
            self.groups.append([])
        elif name == "tunehub_round_16":
            self.round(args[0], self.each(mask))
        elif name.startswith(("tunehub_copies_arrived_", "tunehub_copies_landed_", "tunehub_copies_met_")):
            self.arrive(int(name.split("_")[-1]))
        elif name.startswith("tunehub_mma_"):
            self.multiply_by_warps(args, *map(int, name.split("_")[2:]))
        elif name.startswith("tunehub_wgmma_done_"):
            self.finish(int(name.split("_")[-1]))
        elif name.startswith("tunehub_wgmma_finished_"):
            self.finish(0)
        elif name.startswith("tunehub_wgmma_bytes_"):
            self.multiply_bytes(args, *map(int, name.removeprefix("tunehub_wgmma_bytes_").split("_")))
        elif name.startswith("tunehub_wgmma_"):
            found = re.fullmatch(r"tunehub_wgmma_(\d+)_(\d+)_(\d)_(\d+)_(\d+)_(\d)", name)
            assert found is not None
            self.multiply(args, *map(int, found.groups()))
        elif name == "tunehub_set_table_element":
            place = self.each(np.asarray(self.value(args[0])).astype(int) - _BASE + self.value(args[1]))
            held = self.each(mask)
            self.shared[place[held]] = self.each(self.value(args[2]))[held].astype("uint8")
        elif name == "tunehub_cluster_waited":
            yield True
        elif not name.endswith("tvm_storage_sync"):
            raise NotImplementedError(name)

    def copy(self, args: Any, mask: Any, padding: int = 0) -> None:
        to = self.each(np.asarray(self.value(args[0])).astype(int) - _BASE)
        buffer, indices = self.place(args[1].args[0])
        holds = self.each(self.value(args[2]))
        flat, size = np.zeros(self.threads, int), 16 // buffer.dtype.itemsize
        for index, extent in zip(indices, buffer.shape, strict=True):
            flat = flat * extent + index
        to, flat, holds = to[mask], flat[mask], holds[mask].astype(bool)
        assert not (to % 16).any() and not (flat[holds] % size).any(), "an address is not aligned"
        source = buffer.reshape(-1)
        assert ((flat >= 0) & (flat + size <= source.size))[holds].all(), "a copy leaves its buffer"
        data = source[np.where(holds, flat, 0)[:, None] + np.arange(size)]
        data = data.view("uint8").reshape(len(data), 16)
        data[~holds] = padding & 0xFF
        self.groups[-1].append((to[:, None] + np.arange(16), data))

    def arrive(self, under_way: int) -> None:
        """The groups of copies that are waited for are there; the others may arrive at any time, so they are not."""
        ended = len(self.groups) - 1
        for group in self.groups[: ended - under_way]:
            for to, data in group:
                self.shared[to] = data
            group.clear()

    def round(self, address: Any, mask: Any) -> None:
        """To TF32, to nearest."""
        at = self.each(np.asarray(self.value(address)).astype(int) - _BASE)[mask] // 4
        words = self.shared.view("uint32")
        for lane in range(4):
            words[at + lane] = words[at + lane] + np.uint32(0x1000) & np.uint32(0xFFFFE000)

    def multiply(self, args: Any, rows: int, columns: int, turned: int, a_apart: int, b_apart: int, kind: int) -> None:
        sums, dtype = self.place(args[0].args[0])[0], ("float16", "bfloat16", "float32")[kind]
        a, b = (self.each(np.asarray(self.value(arg)).astype(int) - _BASE) for arg in args[1:])
        size = np.dtype(dtype).itemsize
        for first in range(0, self.threads // 128 * 128, 128):
            k, column = np.arange(128 // size), np.arange(columns)
            for part in range(rows // 64):
                left = self.operand(a[first] + part * a_apart + np.arange(64)[:, None] * 128 + k * size, dtype)
                at = column[:, None] * 128 + k * size
                if turned:
                    at = column[:, None] // 64 * b_apart + column[:, None] % 64 * 2 + k * 128
                product = left @ self.operand(b[first] + at, dtype).T
                self.started[-1].append((sums, first, part, columns, product))
        self.started.append([])

    def multiply_bytes(self, args: Any, rows: int, columns: int, a_type: int, b_type: int, fresh: int) -> None:
        """As PTX has it, but that no sums are cut off."""
        sums, dtypes = self.place(args[0].args[0])[0], [[*BYTE_KINDS][each] for each in (a_type, b_type)]
        a, b = (self.each(np.asarray(self.value(arg)).astype(int) - _BASE) for arg in args[1:])
        for first in range(0, self.threads // 128 * 128, 128):
            right = self.numbers(b[first], columns, dtypes[1])
            for part in range(rows // 64):
                left = self.numbers(a[first] + part * 8192, 64, dtypes[0])
                held = slice(part * columns // 2, (part + 1) * columns // 2)
                if fresh:
                    sums[first : first + 128, held] = 0
                self.started[-1].append((sums, first, part, columns, (left @ right.T).astype(sums.dtype)))
        self.started.append([])

    def numbers(self, address: Any, rows: int, dtype: str) -> Any:
        """Rows of 128 numbers of 8 bits, in float64, in which sums are exact."""
        absolute = address + np.arange(rows)[:, None] * 128 + np.arange(128) + _BASE
        swizzled = absolute ^ (absolute >> 7 & 7) << 4
        return self.shared[swizzled - _BASE].view(dtype).astype("float64")

    def multiply_by_warps(self, args: Any, rows: int, columns: int, a_kind: int, b_kind: int) -> None:
        """What ``mma`` of integers adds to the accumulators of each warp: PTX ISA 8.5, 9.7.14.5.10."""
        sums = self.place(args[0].args[0])[0]
        places = [self.each(np.asarray(self.value(arg)).astype(int) - _BASE) for arg in args[1:]]
        lane, at = np.arange(32)[:, None], np.arange(rows * columns // 32)
        fragment, inside = at // 4, at % 4
        row = fragment // (columns // 8) * 16 + lane // 4 + inside // 2 * 8
        column = fragment % (columns // 8) * 8 + lane % 4 * 2 + inside % 2
        for first in range(0, self.threads, 32):
            left, right = (
                self.numbers(place[first], extent, ("int8", "uint8")[kind])
                for place, extent, kind in zip(places, (rows, columns), (a_kind, b_kind), strict=True)
            )
            sums[first : first + 32] += (left @ right.T)[row, column].astype("int32")

    def operand(self, address: Any, dtype: str) -> Any:
        absolute = address + _BASE
        swizzled = absolute ^ (absolute >> 7 & 7) << 4
        found = self.shared.view(dtype)[(swizzled - _BASE) // np.dtype(dtype).itemsize].astype("float32")
        return (found.view("uint32") & np.uint32(0xFFFFE000)).view("float32") if dtype == "float32" else found

    def finish(self, under_way: int) -> None:
        ended = len(self.started) - 1
        for group in self.started[: ended - under_way]:
            for sums, first, part, columns, product in group:
                thread, j = np.arange(128)[:, None], np.arange(columns // 2)
                row = thread // 32 * 16 + thread % 32 // 4 + 8 * (j // 2 % 2)
                column = j // 4 * 8 + thread % 4 * 2 + j % 2
                sums[first + thread, part * columns // 2 + j] += product[row, column]
            group.clear()


def element_of(vector: Any) -> str:
    """The type of the numbers of a vector."""
    return str(vector.ty.dtype).split("x")[0]


def _computed(name: str, x: Any, *numbers: Any) -> Any:
    """What the functions of :mod:`tunehub.tir.cuda.ptx.rounding` do."""
    if name == "tunehub_quotient":
        return x / np.float32(numbers[0])
    steps = np.rint(np.fmin(np.fmax(x, numbers[0]), numbers[1]))
    kinds = {"tunehub_nearest": "float32", "tunehub_nearest_byte": "uint8", "tunehub_nearest_signed_byte": "int8"}
    return (steps + sum(numbers[2:])).astype(kinds[name])


def _inside(index: Any, extent: int) -> Any:
    """What threads read that take no part is not used, and may be anywhere."""
    return index if index.astype("uint64").max() < extent else np.clip(index, 0, extent - 1)
