"""What a vector leaves over at the end of a row, as one shorter vector.

Templates cut a row of 26 into vectors of 16 and leave the rest to TVM's LoopPartition. That cuts the loop over vectors,
so that a whole one needs no condition. The last one is still 16 steps with `if s < 10` each, which TVM writes one by
one; LLVM spends four times as long to find the vector in them. With its hint on the vector's own loop, too,
LoopPartition makes that ten lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import tvm

from tunehub.tir.nodes import blocks_in, children, integer, main_module
from tunehub.tir.schedules import open_schedule
from tunehub.tir.versions import VECTORIZED

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, PrimFunc, Stmt

_HINT = "pragma_loop_partition_hint"
_MAX_LANES = 16  # LLVM takes longer vectors of odd lengths apart badly


def with_short_vectors(mod: IRModule) -> IRModule:
    """``mod`` with TVM's hint on every vectorized loop that ends inside a vector.

    Only for loops of at most 16 lanes inside another loop with the hint: elsewhere the end depends on an outer loop,
    and TVM makes no vectors of unknown length. Functions with tiles of several sizes, whose blocks have the same names,
    stay as they are.
    """
    hinted = {}
    for variable, function in mod.functions.items():
        names = list(_cut_blocks(function.body, hinted=False, lanes=0))
        if names and not set(names) & _repeated(function.body):
            hinted[variable] = _with_hints(function, names)
    return tvm.IRModule({**dict(mod.functions.items()), **hinted}, attrs=mod.attrs) if hinted else mod


def _cut_blocks(node: Stmt, *, hinted: bool, lanes: int) -> Iterator[str]:
    """The names of the blocks with a condition in a vector (the innermost loop) inside a loop with the hint."""
    kind = type(node).__name__
    if kind == "For":
        hinted = hinted or _HINT in node.annotations
        lanes = (integer(node.extent) or 0) if int(node.kind) == VECTORIZED and _HINT not in node.annotations else 0
    elif kind == "SBlockRealize" and hinted and 1 < lanes <= _MAX_LANES and integer(node.predicate) is None:
        yield str(node.block.name_hint)
    for child in children(node):
        yield from _cut_blocks(child, hinted=hinted, lanes=lanes)


def _repeated(body: Stmt) -> set[str]:
    """The names that several blocks have."""
    found = Counter(str(block.name_hint) for block in blocks_in(body))
    return {name for name, count in found.items() if count > 1}


def _with_hints(function: PrimFunc, blocks: list[str]) -> PrimFunc:
    mod = main_module(function)  # kept: of a module that nobody else holds, TVM would change the function in place
    schedule = open_schedule(mod)
    for name in blocks:
        schedule.annotate(schedule.get_loops(schedule.get_sblock(name))[-1], _HINT, 1)
    name = function.attrs["global_symbol"]
    return schedule.mod["main"].with_attr("global_symbol", name)
