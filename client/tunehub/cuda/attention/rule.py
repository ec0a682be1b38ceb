"""Attention as one kernel without a record: the tile that should take least."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tunehub.cuda.attention.kernel import AttentionTile, kernel_of
from tunehub.cuda.attention.spec import Attention, attention_of
from tunehub.cuda.cost import MULTIPROCESSORS
from tunehub.relax.nodes import main_module
from tunehub.relax.schedule.guard import GuardError, check_function

NAME = "attention"  # in reports
_FIRST_ARCHITECTURE = 80  # with copies that are not waited for, and products of 16 × 8 × 16
_SHORT = 256  # keys that a block takes at once


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
    """The kernel of ``mod``, an IRModule with one PrimFunc ``main``; None when that is no attention. Raises GuardError
    when no tile can be launched, or for what would be wrong."""
    attention = attention_of(mod["main"])
    if attention is None:
        return None
    failure: Exception = GuardError("no tile")
    for tile in tiles(attention):
        kernel = kernel_of(attention, tile)
        try:
            check_function(kernel, mod["main"], target)
        except GuardError as error:  # of too much shared memory, say; another tile may do
            failure = error
        else:
            return AttentionSchedule(main_module(kernel)), None
    raise failure


def tiles(attention: Attention) -> Iterator[AttentionTile]:
    """Tiles, the best first, as far as measured: see docs/adr/0035-attention-on-cuda.md."""
    heads = math.prod(attention.lead)
    blocks = [heads * -(-attention.queries // rows) for rows in (16, 64)]
    if attention.dtype == "float16":
        small = (2, 4, 32) if attention.keys <= _SHORT else (4, 2, 64)
        best = (4, 1, 64) if blocks[1] >= MULTIPROCESSORS else small
        rest = [(4, 1, 64), (4, 1, 32), (4, 1, 16)]
    else:
        small = (1, 4, 16) if blocks[0] <= MULTIPROCESSORS else (2, 4, 32)
        small = small if attention.causal is None else (2, 2, 32)
        best = (4, 1, 32) if blocks[1] >= 2 * MULTIPROCESSORS else small
        rest = [(2, 2, 32), (4, 1, 32), (2, 1, 32), (2, 1, 16), (1, 1, 16)]
    for rows, along, keys in dict.fromkeys([best, *rest]):
        yield AttentionTile(warps=(rows, along), rows=1, keys=keys)
