"""The functions of a prepared module that are to be scheduled, and how often each is called."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunehub.tir.lowering import is_scheduled
from tunehub.tir.nodes import buffer_kind, calls_in, operator_of, parameters, plain_extent, same_extent

if TYPE_CHECKING:
    from tunehub.tir.types import GlobalVar, IRModule, PrimFunc


def workloads(mod: IRModule) -> Iterator[tuple[GlobalVar, PrimFunc]]:
    """The functions of ``mod`` to be scheduled, with their variables."""
    import tvm
    from tvm import relax

    for variable, function in mod.functions.items():
        if not isinstance(function, tvm.tirx.PrimFunc) or is_scheduled(function):
            continue
        if not (relax.analysis.has_reshape_pattern(function) and _keeps_all(function)):
            yield variable, function  # of the others TVM makes views, as long as nobody schedules them


def _keeps_all(function: PrimFunc) -> bool:
    """Whether the result of ``function`` has as many elements as its only input: a slice looks like a reshape, too."""
    shapes = [buffer_kind(buffer).shape for buffer in parameters(function)]
    first, *others = [math.prod(map(plain_extent, shape)) for shape in shapes]
    return all(same_extent(first, size) for size in others)


def call_counts(mod: IRModule) -> Counter[str]:
    """How often each PrimFunc is called by the graph."""
    counts: Counter[str] = Counter()
    for call in calls_in(mod):
        if operator_of(call).startswith("relax.call_tir"):
            counts[str(call.args[0].name_hint)] += 1
    return counts
