"""Kernels written for threads, run on a CPU: all threads of a block take each statement together, with numpy.

Functions of CUDA C++ that a kernel calls by name (:mod:`tunehub.tir.cuda.ptx`) are done here as NVIDIA's PTX ISA
says. What is copied asynchronously arrives when it is waited for, and not before."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tunehub.tir.nodes import buffer_kind, buffer_of, parameters, statements_in
from tunehub.tir.versions import LOADS, THREAD_BINDING

from ..operators import BINARY
from ..read_once import read_once

WARP = 32
_BASE = 1024  # where shared memory begins
_LONGEST_S = 60  # that a part of a block waits


_Code = Callable[["_Lockstep"], Any]


@dataclass(frozen=True)
class _Pointer:
    """An element for each thread: of an array that all have, or of each thread's own."""

    array: Any
    at: Any


@dataclass
class _Cluster:
    """Blocks that read each other's shared memory."""

    blocks: list[_Lockstep]
    barrier: threading.Barrier

    def run(self, block: _Lockstep, body: Any) -> None:
        try:
            block.statement(body)
        except BaseException:
            self.barrier.abort()
            raise


@dataclass
class _Barrier:
    """One that is passed each time ``count`` threads have arrived."""

    count: int
    left: int
    passed: int = 0
    brought: list[Any] = field(default_factory=list)  # places and values, which are there for those who wait
    bytes: int = 0  # that are to come


@dataclass
class _Ring:
    """Barriers in shared memory, by their addresses, at which parts of a block wait for each other."""

    barriers: dict[int, _Barrier] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    failed: bool = False

    def arrive(self, at: int, count: int) -> None:
        with self.changed:
            barrier = self.barriers[at]
            assert barrier.left >= count, "more arrive than are waited for"
            barrier.left -= count
            self.check(barrier)

    def check(self, barrier: _Barrier) -> None:
        if not barrier.left and not barrier.bytes:
            barrier.left, barrier.passed = barrier.count, barrier.passed + 1
            self.changed.notify_all()

    def expect(self, at: int, size: int) -> None:
        with self.changed:
            self.barriers[at].bytes += size
        self.arrive(at, 1)

    def bring(self, at: int, place: Any, data: Any) -> None:
        with self.changed:
            barrier = self.barriers[at]
            barrier.brought.append((place, data))
            barrier.bytes -= data.size
            self.check(barrier)

    def wait(self, at: int, parity: int, pool: Any) -> None:
        with self.changed:
            barrier = self.barriers[at]
            came = self.changed.wait_for(lambda: self.failed or barrier.passed % 2 != parity, _LONGEST_S)
            assert came and not self.failed, "nobody comes"
            for places, values in barrier.brought:
                pool[places] = values
            barrier.brought.clear()


@dataclass
class _Lockstep:
    arrays: dict[int, Any]
    own: set[int] = field(default_factory=set)  # buffers of which each thread has its own
    names: dict[int, Any] = field(default_factory=dict)
    threads: int = 1
    active: Any = None
    waiting: list[Callable[[], None]] = field(default_factory=list)
    copies: list[list[Any]] = field(default_factory=lambda: [[]])  # groups of those for warpgroups
    started: dict[int, list[Callable[[], None]]] = field(default_factory=dict)  # products of each warpgroup
    pool: Any = None
    cluster: Any = None
    allocated: list[Any] = field(default_factory=list)
    ring: _Ring = field(default_factory=_Ring)
    codes: dict[int, _Code] = field(default_factory=dict)  # of expressions, each read once

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
            self.allocated.append(array)
        self.statement(node.block.body)

    def do_For(self, node: Any) -> None:
        tag = _tag(node)
        name, extent = hash(node.loop_var), self.number(node.extent)
        if tag.startswith("threadIdx"):
            self.threads *= extent
            # threads that differ along x alone are neighbours
            self.names = {key: np.repeat(np.atleast_1d(value), extent) for key, value in self.names.items()}
            self.names[name] = np.tile(np.arange(extent), self.threads // extent)
            self.active = np.ones(self.threads, bool)
            self.statement(node.body)
            return
        if tag.startswith("blockIdx") and _tag(node.body).startswith("clusterCtaIdx"):
            self.clusters(node)
            return
        for at in range(extent):
            self.names[name] = at
            if tag:
                inner = _Lockstep(dict(self.arrays), names=dict(self.names), active=np.ones(1, bool), codes=self.codes)
                inner.statement(node.body)
                assert not inner.waiting and not any(inner.started.values()) and not any(inner.copies), (
                    "nobody waits for it"
                )
            else:
                self.statement(node.body)

    def clusters(self, node: Any) -> None:
        """The blocks of a cluster, each up to where it waits for the others."""
        inside = node.body
        count = self.number(inside.extent)
        for first in range(0, self.number(node.extent), count):
            shared = _Cluster([], threading.Barrier(count))
            with ThreadPoolExecutor(count) as pool:
                for rank in range(count):
                    names = {**self.names, hash(node.loop_var): first + rank, hash(inside.loop_var): rank}
                    shared.blocks.append(_Lockstep(dict(self.arrays), names=names, active=np.ones(1, bool)))
                    shared.blocks[-1].cluster, shared.blocks[-1].codes = shared, self.codes
                runs = [pool.submit(shared.run, block, inside.body) for block in shared.blocks]
                raised = [error for each in runs if (error := each.exception()) is not None]
                for error in sorted(raised, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
                    raise error

    def tunehub_cluster_waited(self) -> None:
        assert self.active.all()
        self.cluster.barrier.wait()

    def tunehub_keep_four(self, target: _Pointer, source: _Pointer) -> None:
        held, lanes = np.broadcast_to(self.active, self.threads), np.arange(4)
        values = source.array.reshape(-1)[source.at[held][:, None] + lanes]
        wide = 4 // target.array.itemsize
        target.array.view("float32").reshape(-1)[target.at[held][:, None] // wide + lanes] = values

    def tunehub_cluster_read(self, target: _Pointer, own: _Pointer, rank: int) -> None:
        """Of the buffer that is this one in the other block."""
        at = next(n for n, array in enumerate(self.allocated) if array is own.array)
        other = self.cluster.blocks[int(rank)].allocated[at].view("float32").reshape(-1)
        held = np.broadcast_to(self.active, self.threads)
        read = np.where(held, own.at * own.array.itemsize // 4, 0)[:, None] + np.arange(4)
        values = np.where(held[:, None], other[read], np.nan)
        target.array.reshape(-1)[(target.at[:, None] + np.arange(4))[held]] = values[held]

    def do_IfThenElse(self, node: Any) -> None:
        before, holds = self.active, np.asarray(self.value(node.condition), bool)
        if node.else_case is not None and all(map(_waits, (node.then_case, node.else_case))):
            self.apart([(before & holds, node.then_case), (before & ~holds, node.else_case)])
            return
        for active, case in ((before & holds, node.then_case), (before & ~holds, node.else_case)):
            self.active = active
            if case is not None and active.any():
                self.statement(case)
        self.active = before

    def apart(self, cases: Sequence[tuple[Any, Any]]) -> None:
        """Parts of a block that wait for each other, side by side."""
        with ThreadPoolExecutor(len(cases)) as pool:
            runs = [pool.submit(self.part, active, body) for active, body in cases if active.any()]
            raised = [error for each in runs if (error := each.exception()) is not None]
        for error in sorted(raised, key=lambda each: str(each) == "nobody comes"):
            raise error

    def part(self, active: Any, body: Any) -> None:
        own = replace(self, names=dict(self.names), active=active, waiting=[], copies=[[]], started={})
        try:
            own.statement(body)
            assert not any(own.started.values()) and not any(own.copies), "nobody waits for it"
        except BaseException:
            with self.ring.changed:
                self.ring.failed = True
                self.ring.changed.notify_all()
            raise

    def tunehub_ring_barrier(self, at: Any, count: Any) -> None:
        self.ring.barriers[self.one(at)] = _Barrier(self.one(count), self.one(count))

    def tunehub_ring_set(self) -> None:
        assert self.active.all()

    def tunehub_ring_arrive(self, at: Any) -> None:
        self.ring.arrive(self.one(at), int(np.broadcast_to(self.active, self.threads).sum()))

    def tunehub_ring_brought(self, at: Any) -> None:
        self.ring.barriers[self.one(at)].brought.extend(each for group in self.copies for each in group)
        self.copies = [[]]
        self.tunehub_ring_arrive(at)

    def tunehub_ring_wait(self, at: Any, parity: Any) -> None:
        self.ring.wait(self.one(at), self.one(parity), self.pool)

    def tunehub_ring_expect(self, at: Any, size: int) -> None:
        assert np.broadcast_to(self.active, self.threads).sum() == 1
        self.ring.expect(self.one(at), size)

    def tunehub_ring_box_of(self, to: Any, source: Any, barrier: Any, x: Any, y: Any, z: Any) -> None:
        """A box of a matrix, zeros behind its end."""
        start, (width, rows, count), (apart, apart_z), (across, high) = source
        to, barrier, x, y, z = map(self.one, (to, barrier, x, y, z))
        assert to % 1024 == 0 and 0 <= z < count and 0 <= x <= width - across
        flat = np.ascontiguousarray(start).reshape(-1)
        row, column = np.arange(y, y + high)[:, None], np.arange(x, x + across)
        at = np.where(row < rows, z * apart_z + row * apart + column, 0)
        data = np.where(row < rows, flat[at], flat.dtype.type(0)).astype(flat.dtype).view("uint8")
        place = to + np.arange(data.size).reshape(data.shape)
        place = (place ^ (place >> 7 & 7) << 4) - _BASE
        self.pool[place] = 0xFF
        self.ring.bring(barrier, place, data)

    def tunehub_ring_turn(self, *_: Any) -> None:
        """Who takes turns does so in lockstep here."""

    tunehub_ring_give = tunehub_ring_registers = tunehub_ring_turn

    def one(self, value: Any) -> int:
        """What all threads that take part have."""
        found = np.unique(np.broadcast_to(value, (self.threads,))[np.broadcast_to(self.active, self.threads)])
        assert len(found) == 1, "threads disagree"
        return int(found[0])

    def do_Bind(self, node: Any) -> None:
        self.names[hash(node.var)] = self.value(node.value)

    def do_BufferStore(self, node: Any) -> None:
        buffer = node.buffer
        array, value = self.arrays[hash(buffer)], self.each(self.value(node.value))
        place = self.place(buffer, [self.value(index) for index in node.indices])
        array[tuple(each[self.active] for each in place)] = value[self.active]

    def do_Evaluate(self, node: Any) -> None:
        if type(node.value).__name__ == "Call":
            self.value(node.value)

    def each(self, value: Any) -> Any:
        """A number for each thread."""
        known = getattr(value, "shape", None) == (self.threads,)
        return value if known else np.full(self.threads, value)

    def place(self, buffer: Any, indices: Sequence[Any]) -> list[Any]:
        """Indices for each thread; those of threads that wait are inside."""
        shape = self.arrays[hash(buffer)].shape
        own = [np.arange(self.threads)] if hash(buffer) in self.own else []
        found = [*own, *map(self.each, indices)]
        for axis, (each, extent) in enumerate(zip(found, shape, strict=True)):
            if each.astype("uint64").max() >= extent:  # or negative
                active = each[self.active]
                assert ((active >= 0) & (active < extent)).all(), f"beyond the end of {buffer.name}"
                found[axis] = np.clip(each, 0, extent - 1)
        return found

    def number(self, expression: Any) -> int:
        values = np.unique(self.value(expression))
        assert len(values) == 1, "threads disagree"
        return int(values[0])

    def value(self, node: Any) -> Any:
        code = self.codes.get(hash(node))
        if code is None:
            code = self.codes[hash(node)] = _code(node)
        return code(self)

    def call(self, name: str, args: Any) -> Any:
        if name == "func_call":
            return self.function(str(args[0].value), [self.value(each) for each in args[1:-1]])
        if name == "address_of" and type(args[0]).__name__ == "Var":
            return self.arrays[hash(args[0])]
        if name == "tvm_stack_alloca":
            return 0
        if name == "tensormap_encode_tiled":
            sizes = [self.value(each) for each in args[2:]]
            start = self.arrays[hash(buffer_of(args[1].args[0]))]
            assert len(sizes) == 11 and sizes[5] == 64
            self.arrays[hash(args[0])] = (start, sizes[:3], [each // 2 for each in sizes[3:5]], sizes[5:7])
            return None
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
        if name == "nearbyint":
            return np.rint(self.value(args[0]))
        if name == "if_then_else":
            return np.where(*map(self.value, args))
        assert name == "tvm_storage_sync", name
        return None

    # -- functions of CUDA C++

    def function(self, name: str, values: list[Any]) -> Any:
        own = getattr(self, name, None)
        if own is not None:
            return own(*values)
        found = re.fullmatch(r"(tunehub_[a-z_]+?)((?:_\d+)+)_?(f16|bf16)?", name)
        assert found is not None, name
        dtype = {"f16": ["float16"], "bf16": ["bfloat16"]}.get(found[3], [])
        return getattr(self, found[1])(*values, *map(int, found[2].split("_")[1:]), *dtype)

    def tunehub_minus_infinity(self) -> Any:
        return np.float32(-math.inf)

    def tunehub_power_of_two(self, value: Any) -> Any:
        return np.exp2(value)

    def tunehub_lane_xor(self, value: Any, mask: int) -> Any:
        warps = np.broadcast_to(self.active, self.threads).reshape(-1, WARP)
        assert (warps == warps[:, :1]).all()
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

    def tunehub_pair(self, target: _Pointer, low: Any, high: Any, dtype: str = "float16") -> None:
        with np.errstate(all="ignore"):
            both = np.stack([low, high], -1).astype(dtype).copy().view("uint32")[:, 0]
        target.array.reshape(-1)[target.at] = both

    def tunehub_pair_bf16(self, target: _Pointer, low: Any, high: Any) -> None:
        self.tunehub_pair(target, low, high, "bfloat16")

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

    def tunehub_mma_m16n8k16_bf16(self, sums: _Pointer, first: _Pointer, second: _Pointer) -> None:
        self.tunehub_mma_m16n8k16(sums, first, second, "bfloat16")

    def tunehub_mma_m16n8k16(self, sums: _Pointer, first: _Pointer, second: _Pointer, dtype: str = "float16") -> None:
        assert self.active.all()
        a, b = (
            _halves(pointer, count, dtype) for pointer, count in ((first, 4), (second, 2))
        )  # [warp, row, quad, part, 2]
        a = a.reshape(-1, 8, 4, 2, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, 16)
        b = b.reshape(-1, 8, 4, 2, 2).transpose(0, 3, 2, 4, 1).reshape(-1, 16, 8)
        product = a.astype("float32") @ b.astype("float32")
        lanes = product.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 4)
        _put(sums, sums.array.reshape(-1)[sums.at[:, None] + np.arange(4)] + lanes)

    # -- of warpgroups

    def tunehub_shared_address(self, first: _Pointer, _: _Pointer) -> int:
        self.pool = first.array.view("uint8")
        return _BASE

    def tunehub_copy_16(self, to: Any, source: _Pointer, holds: Any) -> None:
        lanes, taken = np.arange(16), np.broadcast_to(holds, (self.threads,)) & self.active
        assert (np.broadcast_to(to, (self.threads,))[self.active] % 16 == 0).all()
        assert (source.at[taken] * source.array.itemsize % 16 == 0).all()
        places = (np.broadcast_to(to, (self.threads,))[:, None] - _BASE + lanes)[self.active]
        data = np.ascontiguousarray(source.array).view("uint8").reshape(-1)
        read = np.clip(source.at[:, None] * source.array.itemsize + lanes, 0, data.size - 1)
        values = np.where(taken[:, None], data[read], 0)[self.active]
        self.pool[places] = 0xFF
        self.copies[-1].append((places, values))

    def tunehub_copies_end(self) -> None:
        self.copies.append([])

    def tunehub_copies_arrived(self, under_way: int) -> None:
        assert self.active.all()
        self.land(under_way)

    def land(self, under_way: int) -> None:
        for group in self.copies[: len(self.copies) - 1 - under_way]:
            for places, values in group:
                self.pool[places] = values
            group.clear()

    def tunehub_wgmma_scores(
        self, sums: _Pointer, q: Any, k: Any, keys: int, depth: int, q_apart: int, k_apart: int, dtype: str
    ) -> None:
        along = np.arange(depth)

        def rows(start: int, count: int, apart: int) -> Any:
            place = start + np.arange(count)[:, None] * 128 + along // 64 * apart + along % 64 * 2
            return self.swizzled(place, dtype)

        starts = list(zip(self.of_groups(q), self.of_groups(k), strict=True))

        def products() -> Any:
            return np.stack([rows(at, 64, q_apart) @ rows(other, keys, k_apart).T for at, other in starts])

        self.start(sums, keys, products, 0.0)

    def tunehub_wgmma_weighted(
        self, sums: _Pointer, weights: _Pointer, v: Any, outputs: int, keys: int, apart: int, dtype: str
    ) -> None:
        held = weights.array.reshape(-1)[weights.at[:, None] + np.arange(keys // 4)].copy().view(dtype)
        held = held.reshape(-1, 4, 8, 4, keys // 16, 2, 2, 2)  # group, warp, row, quad, step, half of columns, of rows
        w = held.transpose(0, 1, 6, 2, 4, 5, 3, 7).reshape(-1, 64, keys).astype("float32")
        column, starts = np.arange(outputs), self.of_groups(v)

        def products() -> Any:
            place = np.arange(keys)[:, None] * 128 + column // 64 * apart + column % 64 * 2
            return np.stack([w[n] @ self.swizzled(at + place, dtype) for n, at in enumerate(starts)])

        before = sums.array.reshape(-1)[sums.at[:, None] + np.arange(outputs // 2)]
        self.start(sums, outputs, products, before)

    def of_groups(self, address: Any) -> list[int]:
        """An operand's address for each warpgroup, whose threads agree; of those that do not multiply, another's."""
        active = np.broadcast_to(self.active, (self.threads,))
        found = np.broadcast_to(address, (self.threads,))
        found = np.where(active, found, found[active][0]).reshape(-1, 128)
        assert (found == found[:, :1]).all()
        return [int(at) for at in found[:, 0]]

    def swizzled(self, place: Any, dtype: str) -> Any:
        return self.pool.view(dtype)[((place ^ (place >> 7 & 7) << 4) - _BASE) // 2].astype("float32")

    def start(self, sums: _Pointer, columns: int, products: Callable[[], Any], before: Any) -> None:
        """Sums are there when they are waited for; operands are read at any time until then."""
        first = products()
        own = np.broadcast_to(self.active, self.threads).reshape(-1, 128)
        before = np.broadcast_to(before, (self.threads, columns // 2))

        def arrive(group: int) -> None:
            with np.errstate(all="ignore"):
                found = np.where(first == products(), first, np.nan)
            fragments = found.reshape(-1, 4, 2, 8, columns // 8, 4, 2).transpose(0, 1, 3, 5, 4, 2, 6)
            lanes = slice(128 * group, 128 * group + 128)
            _put(sums, (before + fragments.reshape(-1, columns // 2))[lanes], lanes)

        for group, active in enumerate(own):
            assert active.all() or not active.any()
            if active.all():
                lanes = slice(128 * group, 128 * group + 128)
                _put(sums, np.full((128, columns // 2), np.nan), lanes)
                self.started.setdefault(group, []).append(partial(arrive, group))

    def tunehub_wgmma_have_weighted(self, sums: _Pointer, _: _Pointer, under_way: int, count: int, __: int) -> None:
        self.tunehub_wgmma_have(sums, under_way, count)

    def tunehub_wgmma_have(self, _: _Pointer, under_way: int, __: int) -> None:
        for group, own in self.started.items():
            if np.broadcast_to(self.active, self.threads)[128 * group]:
                count = max(0, len(own) - under_way)
                for arrive in own[:count]:
                    arrive()
                del own[:count]


def _code(node: Any) -> _Code:
    """How an expression is computed."""
    kind = type(node).__name__
    if kind in ("IntImm", "FloatImm"):
        number = int(node.value) if kind == "IntImm" else np.float32(node.value)
        return lambda _: number
    if kind == "Var":
        name = hash(node)
        return lambda own: own.names[name]
    if kind in BINARY:
        operator, first, second = BINARY[kind], _code(node.a), _code(node.b)
        if kind in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod") and _is_sure(node):
            return lambda own: operator(first(own), second(own))
        return partial(_binary, operator, first, second)
    if kind == "Cast":
        value, dtype = _code(node.value), str(node.ty.dtype)
        return lambda own: np.asarray(value(own)).astype(dtype)
    if kind == "Select":
        parts = [_code(each) for each in (node.condition, node.true_value, node.false_value)]
        return lambda own: np.where(*(each(own) for each in parts))
    if kind in LOADS:
        buffer, indices = buffer_of(node), [_code(each) for each in node.indices]
        name = hash(buffer)
        return lambda own: own.arrays[name][tuple(own.place(buffer, [each(own) for each in indices]))]
    assert kind == "Call", kind
    function, arguments = str(node.op.name).rpartition(".")[2], list(node.args)
    return lambda own: own.call(function, arguments)


def _is_sure(node: Any) -> bool:
    """Whether an operator gives a number for all threads, those that take no part, too."""
    divides = type(node).__name__.startswith("Floor")
    return str(node.ty.dtype).startswith("int") and (not divides or type(node.b).__name__ == "IntImm")


def _binary(operator: Callable[[Any, Any], Any], first: _Code, second: _Code, own: _Lockstep) -> Any:
    with np.errstate(all="ignore"):
        return operator(first(own), second(own))


def _waits(body: Any) -> bool:
    """Whether a statement waits for what others do meanwhile."""
    calls = [node.value for node in statements_in(body) if type(node).__name__ == "Evaluate"]
    return any("tunehub_ring_wait" in str(getattr(call, "args", [""])[0]) for call in calls if len(call.args))


def _tag(node: Any) -> str:
    bound = type(node).__name__ == "For" and int(node.kind) == THREAD_BINDING
    return str(node.thread_binding.thread_tag) if bound else ""


def _halves(pointer: _Pointer, count: int, dtype: str) -> Any:
    """What each lane has of a fragment, in pairs: [threads, count, 2]."""
    found = pointer.array.reshape(-1)[pointer.at[:, None] + np.arange(count)]
    return found.copy().view(dtype).reshape(-1, count, 2)


def _put(pointer: _Pointer, values: Any, lanes: slice = slice(None)) -> None:
    pointer.array.reshape(-1)[pointer.at[lanes, None] + np.arange(values.shape[1])] = values


def run(function: Any, *arrays: Any, symbols: dict[int, int] | None = None) -> None:
    """Run ``function``, a PrimFunc with bound threads, on numpy arrays in the order of its parameters."""
    known = {
        hash(each): array
        for buffer, array in zip(parameters(function), arrays, strict=True)
        for each in (buffer, buffer.data)
    }
    _Lockstep(known, names=dict(symbols or {}), active=np.ones(1, bool)).statement(read_once(function.body))
