"""Whether sums begin with their first term, in the order in which the loops of a schedule take them, and have all their
terms, each once.

TVM writes a block's initial value where all axes that it reduces have their first value. Loops over a fusion of such
axes with others that are then reordered come there when some terms are added already, and these are lost. Where the
initial value is written by a block of its own, loops that are around the update alone must not come to a term again.
``ReverseComputeAt`` of a window takes the terms that come from a part of what it reads, and forgets the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tunehub.tir.guard import GuardError
from tunehub.tir.index_expressions import compiled
from tunehub.tir.nodes import buffer_of, children, integer, is_reduction, reduces
from tunehub.tir.symbols import instances, variables_in

if TYPE_CHECKING:
    from tunehub.tir.types import Array, For, PrimExpr, PrimFunc, SBlockRealize, Stmt

_MOST = 1 << 20  # iterations that are followed


def check_first_terms(scheduled: PrimFunc) -> None:
    """Raise GuardError when a block of ``scheduled`` adds to a result before it begins it, or a term twice or never."""
    for each in instances(scheduled):
        _check_first_terms(each)


def _check_first_terms(scheduled: PrimFunc) -> None:
    begun: dict[int, tuple[For, ...]] = {}  # by buffer: the loops around what began it
    for realize, loops in _realized(scheduled.body, ()):
        block = realize.block
        name, written = block.name_hint, [hash(buffer_of(region)) for region in block.writes]
        if not reduces(block):
            begun |= dict.fromkeys(written, loops)
            continue
        if not _has_all_terms(realize, loops):
            raise GuardError(f"the loops of {name} may leave out terms of a sum")
        if block.init is not None:
            if not _begins_first(realize, loops):
                raise GuardError(f"the loops of {name} may begin a sum after its first term")
        elif not all(_adds_once(realize, loops, begun.get(each, ())) for each in written):
            raise GuardError(f"the loops of {name} may add a term twice")


def _realized(node: Stmt, loops: tuple[For, ...]) -> Iterator[tuple[SBlockRealize, tuple[For, ...]]]:
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
    iterations = _count(loop.extent for loop in used)
    if iterations is None or iterations > _MOST:
        return False
    return _first_visits_begin(
        realize, used, [value for _, value in reduced], [axis.dom.min for axis, _ in reduced], kept
    )


def _has_all_terms(realize: SBlockRealize, loops: tuple[For, ...]) -> bool:
    """Whether the loops come to all values of the axes that are reduced, for each of the others' that they have."""
    axes = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
    reduced = [value for axis, value in axes if is_reduction(axis)]
    inside = {*map(hash, variables_in(reduced))}
    own = [loop for loop in loops if hash(loop.loop_var) in inside]
    iterations = _count(loop.extent for loop in own)
    count = _count(axis.dom.extent for axis, _ in axes if is_reduction(axis))
    if iterations is None or count is None:
        return False
    if iterations == count:
        return True  # TVM has checked that the loops cover the block
    if iterations > _MOST:
        return False
    kept = [value for axis, value in axes if not is_reduction(axis)]
    others = [loop for loop in loops if hash(loop.loop_var) not in inside]
    visited = _visited(realize, own, others, [*reduced, *kept])
    if visited is None:
        return False
    places = np.unique(visited[len(reduced) :], axis=1).shape[1] if kept else 1
    return bool(np.unique(visited, axis=1).shape[1] == places * count)


def _adds_once(realize: SBlockRealize, loops: tuple[For, ...], around: tuple[For, ...]) -> bool:
    """Whether the loops that are not ``around`` the initial value, too, come to each term once."""
    iterations = _count(loop.extent for loop in loops)
    if iterations is not None and iterations == _count(axis.dom.extent for axis in realize.block.iter_vars):
        return True  # TVM has checked that the loops cover the block
    shared = [loop for loop in loops if any(loop.same_as(other) for other in around)]
    own = list(loops[len(shared) :])  # those around both are the outer ones
    iterations = _count(loop.extent for loop in own)
    if iterations is None or iterations > _MOST:
        return False
    places = _visited(realize, own, shared, list(realize.iter_values))
    return places is not None and np.unique(places, axis=1).shape[1] == places.shape[1]


def _count(extents: Iterable[PrimExpr]) -> int | None:
    """Their product; None if one of them is not known."""
    known = [integer(each) for each in extents]
    return None if None in known else math.prod(map(int, filter(None, known)))


def _first_visits_begin(
    realize: SBlockRealize, loops: list[For], reduced: list[PrimExpr], first: list[PrimExpr], kept: list[PrimExpr]
) -> bool:
    """Whether each place of ``kept`` axes is first visited where ``reduced`` ones are at their ``first`` values."""
    visited = _visited(realize, loops, [], [*reduced, *kept])
    if visited is None:
        return False
    terms, places = visited[: len(reduced)], visited[len(reduced) :]
    begins = np.all(terms == np.array([[int(low)] for low in first]), axis=0)
    if not kept:
        return bool(begins[:1].all())
    return bool(begins[np.unique(places, axis=1, return_index=True)[1]].all())


def _visited(realize: SBlockRealize, loops: list[For], fixed: list[For], of: list[PrimExpr]) -> Array | None:
    """The values of expressions, a row for each, in the iterations of ``loops`` in which a block is run, those of
    ``fixed`` at their first; None where these depend on something else."""
    shape = [int(loop.extent) for loop in loops]
    visits = [each.ravel() for each in np.indices(shape)]
    values = {hash(loop.loop_var): visit for loop, visit in zip(loops, visits, strict=True)}
    values |= {hash(loop.loop_var): np.asarray(0) for loop in fixed}
    count = math.prod(shape)

    def rows(expression: PrimExpr) -> Array:
        return np.broadcast_to(compiled(expression).value(values), (count,))

    try:
        happens = rows(realize.predicate).astype(bool)
        return np.stack([rows(each)[happens] for each in of])
    except KeyError:  # depends on memory, or on what is outside
        return None
