"""Attention as one kernel without a record: the tile that should take least."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tunehub.cuda.attention.kernel import AttentionTile, kernel_of
from tunehub.cuda.attention.spec import Attention, attention_of
from tunehub.cuda.cost import MULTIPROCESSORS
from tunehub.relax.nodes import main_module
from tunehub.relax.schedule.branches import SizeBranch, joined, size_of
from tunehub.relax.schedule.guard import GuardError, check_function
from tunehub.relax.symbols import is_symbolic

NAME = "attention"  # in reports
_FIRST_ARCHITECTURE = 80  # with copies that are not waited for, and products of 16 × 8 × 16
_SHORT = 256  # keys that a block takes at once
_FEW = 256  # queries of all matrices of a batch, for which blocks are small
_ANY = {  # warps along queries and keys, keys of a warp, from many queries to large depths
    "float16": ((4, 1, 64), (4, 1, 32), (4, 1, 16)),
    "float32": ((4, 1, 32), (2, 2, 32), (2, 1, 32), (2, 1, 16), (1, 1, 16)),
}


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """``mod``: with the kernel as ``main``."""

    mod: Any


def serves(target: Any) -> bool:
    """Whether kernels can be made for ``target`` by the TVM that is installed: since 0.27 it takes functions of CUDA
    C++."""
    arch = str(target.attrs.get("arch", "")).removeprefix("sm_").rstrip("af")
    newest = find_spec("tvm.backend") is not None and find_spec("tvm.backend.cuda.ptx") is not None
    return newest and target.kind.name == "cuda" and arch.isdigit() and int(arch) >= _FIRST_ARCHITECTURE


def by_rule(mod: Any, target: Any) -> tuple[AttentionSchedule, None] | None:
    """The kernel of ``mod``, an IRModule with one PrimFunc ``main``, or several for its sizes; None when that is no
    attention. Raises GuardError when no tile can be launched, or for what would be wrong."""
    function = mod["main"]
    attention = attention_of(function)
    if attention is None:
        return None
    if not is_symbolic(function):
        return AttentionSchedule(main_module(_first(attention, tiles(attention), target))), None
    few, many = (_first(attention, order, target) for order in _open_tiles(attention))
    branches = [SizeBranch(up_to=_FEW, function=few), SizeBranch(up_to=None, function=many)]
    return AttentionSchedule(main_module(joined(function, size_of(function), branches))), None


def _first(attention: Attention, order: Iterable[AttentionTile], target: Any) -> Any:
    """The kernel by the first tile that does."""
    failure: Exception = GuardError("no tile")
    for tile in order:
        kernel = kernel_of(attention, tile)
        try:
            check_function(kernel, attention.function, target)
        except GuardError as error:  # of too much shared memory, say; another tile may do
            failure = error
        else:
            return kernel
    raise failure


def tiles(attention: Attention) -> Iterator[AttentionTile]:
    """Tiles for known extents, the best first, as far as measured: see docs/adr/0036-attention-on-cuda.md."""
    heads = math.prod(attention.lead)
    fewest, most = (heads * -(-attention.queries // rows) for rows in (64, 16))  # blocks
    shape = _for_halves if attention.dtype == "float16" else _for_singles
    return _made([shape(attention, fewest, most), *_ANY[attention.dtype]])


def _for_halves(attention: Attention, fewest: int, most: int) -> tuple[int, int, int]:
    if fewest >= MULTIPROCESSORS * (1 if attention.causal is None else 2):
        return (4, 1, 64)
    if attention.keys > _SHORT:
        return (4, 2, 64)
    return (1, 4, 32) if most <= MULTIPROCESSORS else (2, 2, 64)


def _for_singles(attention: Attention, fewest: int, most: int) -> tuple[int, int, int]:
    if fewest >= 2 * MULTIPROCESSORS:
        return (4, 1, 32)
    if attention.keys > _SHORT:
        return (4, 2, 32) if attention.causal is None else (2, 2, 32)
    return (1, 4, 16) if most <= MULTIPROCESSORS else (2, 4, 32)


def _open_tiles(attention: Attention) -> tuple[Iterator[AttentionTile], Iterator[AttentionTile]]:
    """Tiles for few and for many queries of an unknown number."""
    rest = _ANY[attention.dtype]
    return _made([(2, 4, 32), *rest]), _made(rest)


def _made(shapes: Iterable[tuple[int, int, int]]) -> Iterator[AttentionTile]:
    for rows, along, keys in dict.fromkeys(shapes):
        yield AttentionTile(warps=(rows, along), rows=1, keys=keys)
