"""Whether sums begin with their first term, in the order in which the loops of a schedule take them.

TVM writes a block's initial value where all axes that it reduces have their first value. Loops over a fusion of such
axes with others that are then reordered come there when some terms are added already, and these are lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.tir.guard import GuardError
from tunehub.tir.index_expressions import compiled
from tunehub.tir.nodes import children, integer, is_reduction, reduces
from tunehub.tir.symbols import variables_in

if TYPE_CHECKING:
    from tunehub.tir.types import For, PrimExpr, PrimFunc, SBlockRealize, Stmt

_MOST = 1 << 20  # iterations that are followed


def check_first_terms(scheduled: PrimFunc) -> None:
    """Raise GuardError when a block of ``scheduled`` adds to a result before it begins it."""
    for realize, loops in _realized(scheduled.body, ()):
        if reduces(realize.block) and realize.block.init is not None and not _begins_first(realize, loops):
            raise GuardError(f"the loops of {realize.block.name_hint} may begin a sum after its first term")


def _realized(node: Stmt, loops: tuple[For, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """All blocks of a function body with the loops around them, inside of the block around these."""
    kind = type(node).__name__
    if kind == "SBlockRealize":
        yield node, loops
        loops = ()
    if kind == "For":
        loops = (*loops, node)
    for child in children(node):
        yield from _realized(child, loops)


def _begins_first(realize: SBlockRealize, loops: tuple[For, ...]) -> bool:
    axes = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
    reduced = [(axis, value) for axis, value in axes if is_reduction(axis)]
    kept = [value for axis, value in axes if not is_reduction(axis)]
    own, other = ({*map(hash, variables_in(values))} for values in ([value for _, value in reduced], kept))
    if own.isdisjoint(other):
        return True  # the first iteration of each loop over terms is the first term
    all_used = own | other | {*map(hash, variables_in([realize.predicate]))}
    used = [loop for loop in loops if hash(loop.loop_var) in all_used]
    extents = [integer(loop.extent) for loop in used]
    if None in extents or math.prod(map(int, filter(None, extents))) > _MOST:
        return False
    return _first_visits_begin(
        realize, used, [value for _, value in reduced], [axis.dom.min for axis, _ in reduced], kept
    )


def _first_visits_begin(
    realize: SBlockRealize, loops: list[For], reduced: list[PrimExpr], first: list[PrimExpr], kept: list[PrimExpr]
) -> bool:
    """Whether each place of ``kept`` axes is first visited where ``reduced`` ones are at their ``first`` values."""
    shape = [int(loop.extent) for loop in loops]
    visits = [each.ravel() for each in np.indices(shape)]
    values = {hash(loop.loop_var): visit for loop, visit in zip(loops, visits, strict=True)}
    count = math.prod(shape)

    def of(expression: PrimExpr) -> Any:
        return np.broadcast_to(compiled(expression).value(values), (count,))

    try:
        happens = of(realize.predicate).astype(bool)
        places = np.stack([of(value)[happens] for value in kept] or [np.zeros(happens.sum(), int)])
        begins = np.all([of(value)[happens] == int(low) for value, low in zip(reduced, first, strict=True)], axis=0)
    except KeyError:  # depends on memory, or on what is outside
        return False
    return bool(begins[np.unique(places, axis=1, return_index=True)[1]].all())
