"""Kernels of current TVM for the warpgroups of GPUs of compute capability 9.0, by rule: products and convolutions of
operands in half precision, where these promise to beat what tensor cores do otherwise, and TVM's own schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from heapq import nsmallest
from typing import Any

from tunehub.cuda.hopper.cost import seconds
from tunehub.cuda.hopper.ptx import ARCHITECTURE, COPIED
from tunehub.cuda.hopper.tiles import WarpgroupTile, suits, tiles
from tunehub.cuda.matmul import Matmul, find_matmul
from tunehub.cuda.nvrtc import compile_for_warpgroups
from tunehub.cuda.tensor_core_cost import default_s
from tunehub.records.never_worse import against_guess
from tunehub.relax.nodes import main_module
from tunehub.relax.schedule.guard import check_function

NAME = "warpgroups"  # in records


@dataclass(frozen=True, slots=True)
class WarpgroupSchedule:
    """A kernel as a module with one PrimFunc ``main``, as a schedule of TVM has it."""

    mod: Any


def serves(target: Any) -> bool:
    """Whether ``target`` has warpgroups, and this TVM (0.27 and newer) functions of CUDA C++ in its kernels."""
    return str(target.attrs.get("arch", "")).rstrip("a") == "sm_90" and has_functions()


@cache
def has_functions() -> bool:
    """Whether this TVM has functions of CUDA C++ in its kernels: that whose loads are of the class that these name."""
    import tvm

    return hasattr(tvm.ir, "TensorLoad")


def matmul_in(mod: Any) -> Matmul | None:
    """The anchor block of ``mod``, one PrimFunc ``main``, as a product of operands that warpgroups take, or None."""
    found = (find_matmul(mod, dtype) for dtype in ("float16", "bfloat16"))
    return next((matmul for matmul in found if matmul is not None), None)


def ranked(matmul: Matmul, count: int) -> list[WarpgroupTile]:
    """The ``count`` tiles that should take least, the best first."""
    return nsmallest(count, tiles(matmul), key=lambda tile: (seconds(matmul, tile), tile))


def expected_s(matmul: Matmul, target: Any) -> float | None:
    """What the best kernel should take; None where there is none for ``target``."""
    best = ranked(matmul, 1) if serves(target) and suits(matmul) else []
    return seconds(matmul, best[0]) if best else None


def turned_s(matmul: Matmul) -> float:
    """What a convolution that is ``matmul`` should take with channels last."""
    turned = replace(matmul, rows_first=False, k_last=True, columns_first=False, runs=(COPIED, COPIED), window=1)
    return min((seconds(turned, tile) for tile in tiles(turned)), default=math.inf)


def by_rule(mod: Any, matmul: Matmul, target: Any) -> tuple[WarpgroupSchedule, float] | None:
    """A schedule of ``mod``, one PrimFunc ``main`` whose anchor block is ``matmul``, and the seconds that it should
    take; None where none is or where TVM's own schedule should take as little, within the margin of every guess.

    Raises GuardError for what would be wrong, ValueError where operands cannot be copied as they lie, or what TVM
    raises.
    """
    if not (serves(target) and suits(matmul)):
        return None
    best = ranked(matmul, 1)
    if not best or against_guess(seconds(matmul, best[0]), default_s(matmul)) is not None:
        return None
    schedule = by_tile(mod, matmul, best[0], target)
    check_function(schedule.mod["main"], mod["main"], target)
    return schedule, seconds(matmul, best[0])


def by_tile(mod: Any, matmul: Matmul, tile: WarpgroupTile, target: Any) -> WarpgroupSchedule:
    """The schedule of ``mod`` by ``tile``, for a ``target`` with warpgroups; not checked. Raises as :func:`by_rule`."""
    from tunehub.cuda.hopper.kernel import kernel, product_of

    function = kernel(product_of(mod, matmul), tile)
    return WarpgroupSchedule(main_module(for_own_target(function, target)))


def for_own_target(function: Any, target: Any) -> Any:
    """``function``, which has kernels for warpgroups, as it is compiled for ``target``."""
    compile_for_warpgroups()
    return function.with_attr("target", own_target(target))


def own_target(target: Any) -> Any:
    """``target`` with the instructions of its architecture alone."""
    import tvm

    config = dict(target.attrs.items())
    return tvm.target.Target({"kind": target.kind.name, **config, "arch": ARCHITECTURE})
