"""Rows of numbers of 16 bits in e4m3 with a scale each, for an unknown number of them, from sm_89 on: a block reads a
row once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tvm import te, tirx
from tvm_ffi import structural_equal

from tunehub.kernels.cuda.low_batch.source import instructions
from tunehub.kernels.te.e4m3 import LEAST, rows_in_e4m3
from tunehub.tir.guard import GuardError, check_features, check_function
from tunehub.tir.nodes import buffer_kind, integer, main_module, parameters
from tunehub.tir.statements import address, block_of, const, run, threads
from tunehub.tir.views import product, wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, IRModule, PrimExpr, PrimFunc

NAME = "rows_in_e4m3"
_NEEDED = frozenset({"sm_89"})
_VECTOR, _WARP, _MOST_THREADS, _HELD = 8, 32, 512, 4  # _HELD: vectors of a thread that few threads have
_TYPES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class NarrowedSchedule:
    """``mod``: with the function as ``main``, scheduled."""

    mod: IRModule


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> NarrowedSchedule | None:
    """The kernel for ``mod``, one PrimFunc ``main`` with open rows, checked; None for another function or GPU. Raises
    GuardError."""
    function = mod["main"]
    own = parameters(function)
    if len(own) != 3 or not _serves(target):
        return None
    x = buffer_kind(own[0])
    length = integer(x.shape[-1])
    if str(x.dtype) not in _TYPES or length is None or length % _VECTOR or not _is_narrowing(function, x):
        return None
    made = _kernel(function, length)
    check_function(made, function, target)
    return NarrowedSchedule(main_module(made))


def _serves(target: Target) -> bool:
    try:
        check_features(_NEEDED, target)
    except GuardError:
        return False
    return True


def _is_narrowing(function: PrimFunc, kind: Buffer) -> bool:
    """Whether ``function`` is what :func:`rows_in_e4m3` makes of its own operand."""
    x = te.placeholder(kind.shape, str(kind.dtype))
    wanted = te.create_prim_func([x, *rows_in_e4m3(x)], index_dtype_override="int64")
    return bool(structural_equal(function.body, wanted.body, map_free_vars=True))


def _kernel(function: PrimFunc, length: int) -> PrimFunc:
    from tvm.backend.cuda.op import cuda_func_call

    def at(buffer: Buffer) -> PrimExpr:
        return address(buffer, *[const(0)] * len(buffer_kind(buffer).shape))

    own = parameters(function)
    kind = buffer_kind(own[0])
    name, source = _source(length, str(kind.dtype))
    row = tirx.Var("row", "int64")
    call = run(cuda_func_call(name, *map(at, own), row, source_code=source))
    rows = product(wide(list(kind.shape[:-1])))
    nest = threads("blockIdx.x", rows, threads("threadIdx.x", _threads(length), call), row)
    return function.with_body(block_of(function.body, nest, "root", []))


def _threads(length: int) -> int:
    """Of a block: those of whole warps that have few vectors each."""
    return min(_MOST_THREADS, -(-length // (_VECTOR * _HELD * _WARP)) * _WARP)


def _source(length: int, dtype: str) -> tuple[str, str]:
    """The function's name, another one for each source, and the source."""
    known = {"K": length, "THREADS": _threads(length), "BFLOAT": int(dtype == "bfloat16")}
    space = f"tunehub_{NAME}_" + "_".join(map(str, known.values()))
    defined = "".join(f"constexpr int {name} = {value};\n" for name, value in known.items())
    defined += f"constexpr float LEAST = {LEAST}f;\n"
    return f"{space}::narrowed", f"namespace {space} {{\n{defined}{instructions()}{_file()}}}\n"


@cache
def _file() -> str:
    return (Path(__file__).parent / "rows_in_e4m3.cuh").read_text(encoding="utf-8")
