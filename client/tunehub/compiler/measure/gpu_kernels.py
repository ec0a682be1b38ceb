"""The kernels by which a GPU is calibrated: each is limited by one thing alone. They are made without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tunehub.kernels.devices.device import GpuSpecification
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.mma import mma_m16n8k16
from tunehub.tir.nodes import main_module, parameters
from tunehub.tir.statements import (
    block_of,
    const,
    load,
    pointer,
    sequence,
    serial,
    store,
    threads,
    unrolled,
    vectorized,
)

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, IRModule, PrimExpr, Stmt

_THREADS = 256  # of a block
_BLOCKS = 8  # of each multiprocessor, so that all its warps are there
_VECTOR = 4  # numbers that a thread reads at once
_BYTES = 4  # of a number
_COPIED = 64 << 20  # numbers: with the copy several times as many bytes as any cache has
_CACHED_PART = 4  # of the cache is read by each block: more than the multiprocessors' own caches have
_SUMS = 16  # of a thread that do not wait for one another
_CHAIN, _ROUNDS = 64, 1024  # multiply-adds of a sum in straight code, and how often that is repeated
_LATENCY = 4  # clocks until a multiply-add can follow one whose result it takes, since sm_70
_TILES = 8  # of 16 x 8 sums of a warp that do not wait for one another
_TILE_FLOPS = 2 * 16 * 8 * 16
_OF_TILE, _FIRST, _SECOND = 4, 4, 2  # registers of a lane: of a tile, and of its operands


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuKernel:
    """An IRModule with the kernel as ``main``, which reads an array of ``read`` float32 numbers and writes one of
    ``written``. ``work``: how much of what it is limited by there is in a run."""

    mod: IRModule
    read: int
    written: int
    work: float


def gpu_kernels(device: GpuSpecification) -> dict[str, GpuKernel]:
    """For each rate of a profile the kernel that it limits on a GPU like ``device``, and one that does nothing
    (``launch``). That of tensor cores since TVM 0.27, which takes functions of CUDA C++."""
    blocks = _BLOCKS * device.multiprocessors
    return {
        "clock": chained(),
        "bandwidth": copied(_COPIED),
        "l2_bandwidth": cached(device.l2 // _CACHED_PART, blocks),
        "flops": multiply_adds(blocks),
        "launch": empty(),
        **({"tensor_flops": on_tensor_cores(blocks)} if _has_functions() else {}),
    }


def _has_functions() -> bool:
    return find_spec("tvm.backend") is not None and find_spec("tvm.backend.cuda.ptx") is not None


def copied(count: int) -> GpuKernel:
    """Reads and writes each of ``count`` numbers."""

    def body(at: _Thread) -> Stmt:
        first = (at.block * _THREADS + at.thread) * _VECTOR
        return vectorized("v", _VECTOR, lambda v: store(at.written, [first + v], load(at.read, first + v)))

    blocks = count // (_THREADS * _VECTOR)
    return GpuKernel(mod=_module(count, count, blocks, _THREADS, body), read=count, written=count, work=8.0 * count)


def cached(size: int, blocks: int) -> GpuKernel:
    """Each block reads the same ``size`` bytes, at another place than its neighbours do at the time."""
    row = _THREADS * _VECTOR
    rows = max(1, size // (_BYTES * row))
    apart = max(1, rows // blocks)

    def body(at: _Thread) -> Stmt:
        sums = at.registers("sums", _VECTOR)

        def one(step: PrimExpr) -> Stmt:
            first = ((at.block * apart + step) % rows * _THREADS + at.thread) * _VECTOR
            return vectorized("v", _VECTOR, lambda v: store(sums, [v], load(sums, v) + load(at.read, first + v)))

        clear = unrolled("v", _VECTOR, lambda v: store(sums, [v], load(at.read, v)))
        return sequence(clear, serial("step", rows, one), at.result(sums, _VECTOR))

    mod, work = _module(rows * row, blocks * _THREADS, blocks, _THREADS, body), _BYTES * rows * row * blocks
    return GpuKernel(mod=mod, read=rows * row, written=blocks * _THREADS, work=float(work))


def multiply_adds(blocks: int) -> GpuKernel:
    """Multiply-adds in float32, of which many are independent in each thread; the work is counted in operations."""
    return _multiply_adds(blocks, _THREADS, _SUMS, 2.0 * blocks * _THREADS * _SUMS * _CHAIN * _ROUNDS)


def chained() -> GpuKernel:
    """Multiply-adds of one thread, each of which waits for the one before; the work is counted in clocks."""
    return _multiply_adds(1, 1, 1, float(_LATENCY * _CHAIN * _ROUNDS))


def _multiply_adds(blocks: int, own: int, count: int, work: float) -> GpuKernel:
    """By ``count`` sums in each of ``own`` threads."""

    def body(at: _Thread) -> Stmt:
        sums, factors = at.registers("sums", count), at.registers("factors", 2)

        def product(i: PrimExpr) -> Stmt:
            return store(sums, [i], load(sums, i) * load(factors, const(0)) + load(factors, const(1)))

        def one(_: PrimExpr) -> Stmt:
            return unrolled("k", _CHAIN, lambda _: unrolled("i", count, product))

        return sequence(
            unrolled("i", 2, lambda i: store(factors, [i], load(at.read, at.thread + i))),
            unrolled("i", count, lambda i: store(sums, [i], load(at.read, at.thread + i))),
            serial("round", _ROUNDS, one),
            at.result(sums, count),
        )

    read, written = own + max(count, 2), blocks * own
    return GpuKernel(mod=_module(read, written, blocks, own, body), read=read, written=written, work=work)


def on_tensor_cores(blocks: int) -> GpuKernel:
    """Products of 16 x 8 x 16 in float16, of which several are independent in each warp."""

    def body(at: _Thread) -> Stmt:
        sums = at.registers("sums", _OF_TILE * _TILES)
        operands = at.registers("operands", _FIRST + _SECOND, "uint32")

        def product(i: PrimExpr) -> Stmt:
            places = (pointer(sums, _OF_TILE * i), pointer(operands, const(0)), pointer(operands, const(_FIRST)))
            return mma_m16n8k16("float16")(*places)

        return sequence(
            unrolled("i", _FIRST + _SECOND, lambda i: store(operands, [i], _bits(load(at.read, at.thread + i)))),
            unrolled("i", _OF_TILE * _TILES, lambda i: store(sums, [i], load(at.read, at.thread + i))),
            serial("round", _ROUNDS, lambda _: unrolled("i", _TILES, product)),
            at.result(sums, _OF_TILE * _TILES),
        )

    read, written = _THREADS + _OF_TILE * _TILES, blocks * _THREADS
    work = float(blocks * (_THREADS // WARP) * _TILES * _ROUNDS * _TILE_FLOPS)
    return GpuKernel(mod=_module(read, written, blocks, _THREADS, body), read=read, written=written, work=work)


def empty() -> GpuKernel:
    """Copies a number."""
    mod = _module(1, 1, 1, 1, lambda at: store(at.written, [at.block], load(at.read, at.thread)))
    return GpuKernel(mod=mod, read=1, written=1, work=1.0)


def _bits(value: PrimExpr) -> PrimExpr:
    from tvm import tirx

    return tirx.reinterpret("uint32", value)


class _Thread:
    """Where a thread is, the arrays that it ``read``s and has ``written``, and its registers."""

    def __init__(self, read: Buffer, written: Buffer, block: PrimExpr, thread: PrimExpr, own: int) -> None:
        self.read, self.written, self.block, self.thread, self._own = read, written, block, thread, own
        self.buffers: list[PrimExpr] = []

    def registers(self, name: str, count: int, dtype: str = "float32") -> Buffer:
        """A thread's own array."""
        from tvm import tirx

        buffer = tirx.decl_buffer([const(count)], dtype, name, scope="local", layout=None)
        self.buffers.append(buffer)
        return buffer

    def result(self, sums: Buffer, count: int) -> Stmt:
        """Writes the sum of a thread's own array, so that nothing of it is left out."""
        total = load(sums, const(0))
        for at in range(1, count):
            total = total + load(sums, const(at))
        return store(self.written, [self.block * self._own + self.thread], total)


def _module(read: int, written: int, blocks: int, own: int, body: Callable[[_Thread], Stmt]) -> IRModule:
    """An IRModule whose ``main`` has ``body`` in each of ``own`` threads of each block."""
    from tvm import te

    read_array = te.placeholder((read,), "float32", name="x")
    function = te.create_prim_func([read_array, te.compute((written,), lambda i: read_array[i % read], name="y")])
    x, y = parameters(function)

    def of_thread(block: PrimExpr, thread: PrimExpr) -> Stmt:
        place = _Thread(x, y, block, thread, own)
        inside = body(place)
        return block_of(function.body, inside, "thread", place.buffers)

    grid = threads("blockIdx.x", blocks, lambda block: threads("threadIdx.x", own, lambda at: of_thread(block, at)))
    return main_module(function.with_body(block_of(function.body, grid, "root", [])))
