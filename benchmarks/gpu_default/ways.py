"""Ways to compute a function on a GPU, each compiled into a library: as TVM alone schedules it, as it is served without
records, and by the likeliest tile of each rule that knows it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.gpu_fuzz import H200
from tunehub.exceptions import last_line
from tunehub.kernels.devices.known import device_of
from tunehub.tir.nodes import buffer_shapes, main_module

if TYPE_CHECKING:
    from tunehub.compiler.schedule.ladder import Scheduling
    from tunehub.target.types import Target
    from tunehub.tir.cuda.nvrtc import Compiler

DEFAULT, SERVED = "default", "served"


class BuiltFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function: its ``key``, the ``shapes`` and types of its buffers, what serves it, if not TVM (``served``; not
    ``asked``: only TVM alone has the function); by the name of each way to compute it the seconds that this should
    take, None where nothing says so; why others are not there (``failed``)."""

    key: str
    name: str
    asked: bool
    shapes: list[tuple[tuple[int, ...], str]]
    served: str | None = None
    ways: dict[str, float | None]
    failed: dict[str, str] = {}


def build_function(
    folder: Path, target: Target, schedulings: Mapping[str, Scheduling], name: str, function: Any, *, further: bool
) -> str:
    """The key of ``function``, a PrimFunc called ``name``, whose ways are in ``folder`` then: libraries ``KEY.WAY.so``,
    what is to be known of them, ``KEY.json`` (:class:`BuiltFunction`), and ``KEY.tir``, the function in TVM's JSON.

    ``schedulings``: what serves functions, by name. ``further``: also by rules that do not serve it.
    """
    import tvm

    from tunehub.tir.keys import workload_key

    mod = main_module(function)
    scheduling = schedulings.get(name)
    served = None if scheduling is None else scheduling.served
    key = workload_key(mod)
    about = folder / f"{key}.json"
    if about.exists() and (scheduling is None or msgspec.json.decode(about.read_bytes(), type=BuiltFunction).asked):
        return key
    ways: dict[str, float | None] = {}
    failed: dict[str, str] = {}
    for way, make in _ways(mod, target, scheduling, further=further):
        try:
            scheduled, ways[way] = make()
            _export(scheduled, target, folder / f"{key}.{way}.so")
        except Exception as error:  # of any kind: what TVM raises for a schedule, and NVRTC
            ways.pop(way, None)
            failed[way] = last_line(error, limit=160)
    (folder / f"{key}.tir").write_text(tvm.ir.save_json(mod["main"]))
    found = BuiltFunction(
        key=key,
        name=name,
        asked=scheduling is not None,
        shapes=[(tuple(map(int, shape)), dtype) for shape, dtype in buffer_shapes(mod["main"])],
        served=None if served is None else str(served.template or served.rung),
        ways=ways,
        failed=failed,
    )
    about.write_bytes(msgspec.json.encode(found) + b"\n")
    return key


_Made = Callable[[], "tuple[Any, float | None]"]


def _ways(mod: Any, target: Target, scheduling: Scheduling | None, *, further: bool) -> Iterator[tuple[str, _Made]]:
    from tunehub.kernels.cuda.default import default_schedule

    yield DEFAULT, lambda: (default_schedule(mod["main"], target), _default_s(mod, target))
    if scheduling is not None and scheduling.served is not None:
        served = scheduling.served
        yield SERVED, lambda: (served.schedule.mod["main"], served.predicted_s)
    if further:
        yield from _by_rules(mod, target)


def _default_s(mod: Any, target: Target) -> float | None:
    """What the costs say of TVM's own schedule."""
    from tunehub.kernels.cuda.gemm.cost import default_s
    from tunehub.kernels.cuda.gemm.half_default import default_s as half_default_s
    from tunehub.kernels.cuda.gemm.tensor_core.sketch import matmul_of
    from tunehub.kernels.cuda.gemm.tiles import reduction_block_of

    matmul, reducing = matmul_of(mod), reduction_block_of(mod)
    if matmul is not None:
        return half_default_s(matmul, device_of(target))
    return None if reducing is None or reducing.problem is None else default_s(reducing.problem, device_of(target))


def _by_rules(mod: Any, target: Target) -> Iterator[tuple[str, _Made]]:
    """The likeliest tile of each rule that knows the function, whatever it promises."""
    from tunehub.kernels.cuda.gemm import tiles
    from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
    from tunehub.kernels.cuda.gemm.matmul import AT_ONCE
    from tunehub.kernels.cuda.gemm.split_k import sketch as split_k
    from tunehub.kernels.cuda.gemm.tensor_core import sketch as tensor_core

    reducing, matmul, wide = (
        tiles.reduction_block_of(mod, narrow=True),
        tensor_core.matmul_of(mod),
        split_k.matmul_of(mod),
    )
    if reducing is not None and reducing.problem is not None:
        yield "cuda_tiles", partial(_plain_tile, mod, target, reducing)
    if wide is not None:
        yield "split_k", partial(_divided, mod, wide)
    if matmul is not None:
        yield "tensor_cores", partial(_on_tensor_cores, mod, matmul)
        if min(tensor_core.runs_of(matmul)[matmul.rows_first :]) < AT_ONCE:
            yield "tensor_cores, longer vectors", partial(_on_tensor_cores, mod, matmul, longer=True)
    half = warpgroups.matmul_in(mod)
    if half is not None and warpgroups.expected_s(half, target) is not None:
        yield "warpgroups", partial(_by_warpgroups, mod, target, half)


def _plain_tile(mod: Any, target: Target, reducing: Any) -> tuple[Any, float | None]:
    from tunehub.kernels.cuda.gemm.rule import ranked
    from tunehub.kernels.cuda.gemm.tiles import checked_tiles
    from tunehub.tir.cuda.limits import limits_of

    limits = limits_of(target)
    bounds = {"shared_memory": limits.shared_memory, "threads": limits.threads, "count": 1}
    tile, *_ = ranked(reducing.problem, device_of(target), **bounds, covering=reducing.einsum)
    return checked_tiles(mod, reducing, tile).mod["main"], tile.expected_s


def _divided(mod: Any, target: Target, matmul: Any) -> tuple[Any, float | None]:
    from tunehub.kernels.cuda.gemm.split_k import rule as split_k_rule
    from tunehub.kernels.cuda.gemm.split_k import sketch as split_k

    (tile, expected_s), *_ = split_k_rule.likeliest(matmul, 1, device_of(target))
    return split_k.apply(mod, matmul, tile).mod["main"], expected_s


def _on_tensor_cores(mod: Any, target: Target, matmul: Any, *, longer: bool = False) -> tuple[Any, float | None]:
    from tunehub.kernels.cuda.gemm.matmul import AT_ONCE
    from tunehub.kernels.cuda.gemm.tensor_core.cost import seconds
    from tunehub.kernels.cuda.gemm.tensor_core.rule import checked, ranked
    from tunehub.kernels.cuda.gemm.tensor_core.sketch import is_among

    (tile,) = ranked(matmul, 1, device_of(target))
    if longer:  # as it was chosen before vectors ended with rows
        lengths = [1 << power for power in reversed(range(AT_ONCE.bit_length()))]
        also = (replace(tile, vectors=both) for both in product(lengths, lengths))
        tile = next(each for each in also if is_among(matmul, each))
    return checked(mod, matmul, tile).mod["main"], seconds(matmul, tile, device_of(target))


def _by_warpgroups(mod: Any, target: Target, matmul: Any) -> tuple[Any, float | None]:
    from tunehub.kernels.cuda.gemm.hopper import rule

    (tile,) = rule.ranked(matmul, 1, device_of(target))
    return rule.by_tile(mod, matmul, tile, target).mod["main"], rule.expected_s(matmul, target)


def _export(scheduled: Any, target: Target, path: Path) -> None:
    """Write a library, which has kernels as source, and their machine code into the same folder."""
    import tvm

    from tunehub.deploy.library import write_library
    from tunehub.tir.cuda.nvrtc import source_of

    named = scheduled.with_attr("global_symbol", "main")
    library = tvm.tirx.build(tvm.IRModule({"main": named}), target=target)
    source, compiler = source_of(library), _compiler()
    if source and compiler is not None:
        _machine_code(path.parent, source).write_bytes(compiler.compile(source))
    write_library(library, path)


def use_machine_code(folder: Path) -> None:
    """Let TVM take the machine code of kernels from where :func:`build_function` has put it, in this process: libraries
    have their source, which it would compile at the first call."""
    import tvm_ffi

    from tunehub.tir.cuda.nvrtc import CALLBACK

    compiler = _compiler()
    if compiler is None:
        return

    def compiled(code: Any, *_target: Any) -> bytearray:
        found = _machine_code(folder, str(code))
        return bytearray(found.read_bytes() if found.exists() else compiler.compile(str(code)))

    tvm_ffi.register_global_func(CALLBACK, compiled, override=True)


def _machine_code(folder: Path, source: str) -> Path:
    return folder / f"{hashlib.sha256(source.encode()).hexdigest()}.cubin"


@cache
def _compiler() -> Compiler | None:
    """What TVM compiles kernels with from now on; None without NVRTC."""
    from tunehub.tir.cuda.nvrtc import Compiler, NvrtcError

    try:
        compiler = Compiler(str(H200["arch"]))
    except NvrtcError:
        return None
    compiler.install()
    return compiler
