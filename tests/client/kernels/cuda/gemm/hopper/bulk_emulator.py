"""As :mod:`.emulator`, for kernels whose operands the copy engine brings: who brings and who multiplies run side by
side and meet at barriers alone, which know how often somebody has arrived and how many bytes are still to come.

What was started arrives at once or when it is waited for, as a seed decides. Source: PTX ISA 8.5, "mbarrier",
"cp.async.bulk.tensor".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from ...read_once import read_once
from .emulator import _BASE, _Block, element_of, laid_out

_MOST_TURNS = 1_000_000
_MOST_AHEAD = 40  # steps of a block, of which the others do none


@dataclass
class _Map:
    """A matrix, and the rows of a box of it."""

    matrix: Any
    rows: int
    across: int
    swizzled: bool


@dataclass
class _Barrier:
    """``count`` arrivals pass it once; ``bytes``: still to come."""

    count: int
    left: int
    bytes: int = 0
    passed: int = 0
    coming: list[Any] = field(default_factory=list)

    def check(self) -> None:
        assert self.left >= 0, "more arrive than are awaited"
        if self.left == 0 and self.bytes == 0:
            self.left, self.passed = self.count, self.passed + 1


def run_bulk(function: Any, *arrays: Any, seed: int = 0) -> None:
    """Run ``function`` on ``arrays``, the last of which it writes; symbols are extents of these."""
    with laid_out(function, *arrays) as (symbols, named, memory):
        _run_bulk(function, symbols, named, memory, Random(seed))


def _run_bulk(
    function: Any, symbols: dict[int, Any], named: dict[int, Any], memory: dict[int, Any], rng: Random
) -> None:
    body = read_once(function.body)
    *host, grid = (body.block.body if type(body).__name__ == "SBlockRealize" else body).seq
    on_host, maps = _Block(symbols, {}, {}, 1), dict[int, _Map]()
    for statement in host:
        if type(statement).__name__ == "Evaluate":
            maps[hash(statement.value.args[0])] = _encoded(statement.value, named, on_host)
        elif type(statement.value).__name__ != "Call":
            on_host.values[hash(statement.var)] = int(on_host.value(statement.value))
    order, body = {}, grid
    while type(body).__name__ == "For" and body.thread_binding is not None:
        extent = int(on_host.value(body.extent))
        order[str(body.thread_binding.thread_tag)] = (hash(body.loop_var), extent)
        body = body.body
    thread, threads = order["threadIdx.x"]
    ranks = order.get("clusterCtaIdx.x", (0, 1))
    for first in range(0, order["blockIdx.x"][1], ranks[1]):
        blocks = []
        for rank in range(ranks[1]):
            values = {thread: np.arange(threads), order["blockIdx.x"][0]: first + rank, ranks[0]: rank}
            values = on_host.values | values
            blocks.append(_BulkBlock(rank, values, dict(named), memory, threads, maps, rng))
        for block in blocks:
            block.cluster = blocks
        running = {block.rank: block.run(body) for block in blocks}
        for _ in range(_MOST_TURNS):
            rank = rng.choice([*running])
            if all(next(running[rank], None) is not None for _ in range(rng.randint(1, _MOST_AHEAD))):
                continue
            blocks[rank].ended = True
            del running[rank]
            if not running:
                break
        else:
            raise AssertionError("somebody waits for ever")
        assert all(not barrier.coming for block in blocks for barrier in block.barriers.values()), (
            "copies are under way"
        )


def _encoded(call: Any, named: dict[int, Any], on_host: _Block) -> _Map:
    """What the copy engine is told of a matrix."""
    args, swizzled = call.args, bool(int(call.attrs.swizzle))
    sizes = [int(on_host.value(each)) for each in args[2:]]
    array = named[hash(args[1].args[0].source)]
    if array.size > sizes[0] * sizes[1]:  # bytes, that are copied as words
        array = array.view("uint32")
    matrix = array.reshape(sizes[1], sizes[0])
    assert sizes[2] == sizes[0] * array.itemsize and sizes[3] * array.itemsize == (128 if swizzled else 64), sizes
    return _Map(matrix, sizes[4], sizes[3], swizzled)


class _BulkBlock(_Block):
    def __init__(
        self, rank: int, values: Any, buffers: Any, memory: Any, threads: int, maps: dict[int, _Map], rng: Random
    ) -> None:
        super().__init__(values, buffers, memory, threads)
        self.rank, self.maps, self.rng = rank, maps, rng
        self.ended = False
        self.barriers: dict[int, _Barrier] = {}
        self.met = np.zeros(threads, int)  # of each thread, as sides of a branch meet apart

    def run(self, node: Any, mask: Any = True) -> Any:
        if type(node).__name__ == "IfThenElse" and node.else_case is not None:
            condition = self.value(node.condition)
            sides = [
                _Side(self).run(node.then_case, np.logical_and(mask, condition)),
                _Side(self).run(node.else_case, np.logical_and(mask, np.logical_not(condition))),
            ]
            while sides:
                sides = [side for side in sides if next(side, None) is not None]
                yield True
        elif type(node).__name__ == "For":
            start, extent = int(self.value(node.min)), int(self.value(node.extent))
            for value in range(start, start + extent):
                self.values[hash(node.loop_var)] = value
                yield from self.run(node.body, mask)
        elif type(node).__name__ == "IfThenElse":
            held = np.logical_and(mask, self.value(node.condition))
            if np.any(held):
                yield from self.run(node.then_case, held)
        else:
            yield from super().run(node, mask)

    def address(self, node: Any, mask: Any) -> int:
        found = self.each(np.asarray(self.value(node)).astype(int))[self.each(mask)]
        assert (found == found[0]).all()
        return int(found[0]) - _BASE

    def one(self, node: Any, mask: Any) -> int:
        return self.address(node, mask) + _BASE

    def value(self, node: Any) -> Any:
        if type(node).__name__ == "Call" and str(node.op.name).endswith("func_call"):
            name = str(node.args[0].value)
            if name in ("tunehub_ring_take", "tunehub_ring_take_integers"):
                at = self.each(np.asarray(self.value(node.args[1])).astype(int) - _BASE) // 4
                at = np.clip(at, 0, self.shared.size // 4 - 4)
                return self.shared.view(element_of(node))[at[:, None] + np.arange(4)]
            if name.startswith("tunehub_cluster_sum_"):
                count, first = int(name.split("_")[3]), int(np.asarray(self.value(node.args[2])))
                at = self.each(np.asarray(self.value(node.args[1])).astype(int) - _BASE) // 4
                own = np.clip(at, 0, self.shared.size // 4 - 4)[:, None] + np.arange(4)
                blocks = [self.there(rank) for rank in range(first, first + count)]
                with np.errstate(invalid="ignore"):  # of threads that do not take part: whatever lies there
                    return np.sum([block.shared.view(element_of(node))[own] for block in blocks], axis=0)
        if type(node).__name__ == "LShift":
            return np.left_shift(self.value(node.a), self.value(node.b))
        return super().value(node)

    def call(self, node: Any, mask: Any) -> Any:
        name = str(node.args[0].value) if str(node.op.name).endswith("func_call") else str(node.op.name)
        args = node.args[1:-1]
        if name.startswith("tunehub_ring_registers_"):
            return
        if name.startswith("tunehub_wgmma_packed_"):
            self.packed(*name.removeprefix("tunehub_wgmma_packed_").split("::"), args, mask)
            return
        if not name.startswith("tunehub_ring_"):
            yield from super().call(node, mask)
            return
        what = name.removeprefix("tunehub_ring_")
        held = self.each(mask)
        if what == "barrier":
            count = self.one(args[1], mask)
            self.barriers[self.address(args[0], mask)] = _Barrier(count, count)
        elif what in ("met", "set", "set_cluster"):
            self.met[held] += 1
            goal = self.met[held].max()
            while any((block.met < goal).any() for block in self.cluster):
                yield True
        elif what == "group":
            pass
        elif what.startswith("expect_"):
            barrier = self.barriers[self.address(args[0], mask)]
            barrier.bytes += int(what.split("_")[1])
            barrier.left -= held.sum()
            barrier.check()
        elif what in ("arrive", "arrive_at"):
            at = self.address(args[0], mask)
            ranks = self.each(self.value(args[1]) if what == "arrive_at" else self.rank)[held]
            for rank in ranks:
                barrier = self.there(int(rank)).barriers[at]
                barrier.left -= 1
                barrier.check()
        elif what in ("box", "box_shared"):
            self.bring(args, mask)
        elif what == "wait":
            barrier, parity = self.barriers[self.address(args[0], mask)], self.one(args[1], mask)
            while (barrier.passed & 1) == parity:
                for deliver in barrier.coming:
                    deliver()
                barrier.coming.clear()
                barrier.check()
                if (barrier.passed & 1) == parity:
                    yield True
        elif what == "keep_one":
            at = self.each(np.asarray(self.value(args[0])).astype(int) - _BASE)[held] // 4
            self.shared.view("float32")[at] = self.each(self.value(args[1]))[held]
        elif what in ("keep", "keep_integers"):
            at, dtype = self.each(np.asarray(self.value(args[0])).astype(int) - _BASE)[held] // 4, "float32"
            for v in (0, 1):
                self.shared.view(dtype if what == "keep" else "int32")[at + v] = self.each(self.value(args[1 + v]))[
                    held
                ]
        else:
            raise NotImplementedError(name)

    def packed(self, constants: str, what: str, args: Any, mask: Any) -> None:
        """What warpgroups do with packed weights: see packed.cuh."""
        if what == "finish":
            self.finish(0)
        if what != "products":
            return
        gated, constants = constants.endswith("_gated"), constants.removesuffix("_gated")
        columns, k, tiles, parts, bits, is_bfloat = map(int, constants.removesuffix("_e4m3").split("_"))
        sums, scales = self.place(args[0].args[0])[0], self.buffers[hash(args[4].args[0].source)]
        step, held = int(np.asarray(self.value(args[6]))), self.each(mask)
        places = [self.each(np.asarray(self.value(args[at]))).astype(int) for at in (2, 3, 5)]
        at, dtype = np.arange(128), "bfloat16" if is_bfloat else "float16"
        for first in np.flatnonzero(held)[::128]:
            weights, x, column = (place[first] for place in places)
            row = np.arange(8 * tiles)[:, None]
            right = self.operand(x - _BASE + at // 64 * (tiles * 1024) + row * 128 + at % 64 * 2, dtype)
            for part in range(parts):
                row = part * 64 + np.arange(64)[:, None]
                byte = weights + row * (16 * bits) + at * bits // 8
                byte = byte ^ (byte >> 7 & 7) << 4 if bits == 8 else byte
                numbers = self.shared[byte - _BASE] >> (at * bits % 8).astype("uint8") & np.uint8(2**bits - 1)
                of_part = column // 2 + row + part * (columns // 2 - 64) if gated else column + row
                own = np.minimum(of_part, columns - 1), np.minimum((step * 128 + at) // 32, k // 32 - 1)
                if constants.endswith("_e4m3"):
                    scaled = numbers.view("float8_e4m3fn")
                else:
                    scaled = (numbers.astype(dtype) - np.asarray(2 ** (bits - 1) - 1, dtype)) * scales[own]
                self.started[-1].append((sums, first, part, 8 * tiles, scaled.astype("float32") @ right.T))
        self.started.append([])
        self.finish(1)

    def there(self, rank: int) -> _BulkBlock:
        """A block of the cluster, which has to be there still."""
        assert not self.cluster[rank].ended, f"the block {rank} has ended"
        return self.cluster[rank]

    def bring(self, args: Any, mask: Any) -> None:
        held = self.each(mask)
        assert held.sum() == 1
        to, at = self.address(args[0], mask), self.address(args[2], mask)
        x, y, *bits = (self.one(arg, mask) for arg in args[3:])
        own = self.maps[hash(args[1].args[0])]
        assert to % (1024 if own.swizzled else 128) == 0
        box = np.zeros((own.rows, own.across), own.matrix.dtype)
        part = own.matrix[y : y + own.rows, x : x + own.across]
        box[: part.shape[0], : part.shape[1]] = part
        data = box.view("uint8")
        place = np.arange(data.size).reshape(data.shape) + to + _BASE
        place = (place ^ (place >> 7 & 7) << 4 if own.swizzled else place) - _BASE
        mask = bits[0] if bits else 1 << self.rank
        for block in (self.there(rank) for rank in range(mask.bit_length()) if mask >> rank & 1):
            barrier = block.barriers[at]

            def deliver(block: Any = block, barrier: Any = barrier) -> None:
                block.shared[place] = data
                barrier.bytes -= data.size

            if self.rng.random() < 0.5:
                deliver()
                barrier.check()
            else:
                barrier.coming.append(deliver)


class _Side:
    """A side of a branch: variables of its own."""

    def __init__(self, block: _BulkBlock) -> None:
        self.block = block

    def run(self, node: Any, mask: Any) -> Any:
        own = _BulkBlock.__new__(_BulkBlock)
        own.__dict__.update(self.block.__dict__)
        own.values = dict(self.block.values)
        yield from own.run(node, mask)
