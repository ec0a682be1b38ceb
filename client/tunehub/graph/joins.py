"""Joins that are read in many places: fusion makes one function of a concatenation and of the slices of it that the
next one joins (BAT's attention), or of paddings around each other.

Schedules inline each step into those that read it, so that what a function computes is written out as often as it is
read: a concatenation of eight in each part of another one is 64, which TVM takes half a minute for. Here such a step is
the last of a function of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm

from tunehub.graph.apart import halves_at, in_halves
from tunehub.graph.workloads import workloads
from tunehub.tir.nodes import blocks_in, is_static, parameters, reduces
from tunehub.tir.parts import buffers_of, statements_of, writes_only_last
from tunehub.tir.schedules import has_root

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, PassContext, PrimFunc

_MOST = 64  # loads of a statement into which all before it are inlined
_FEWEST = 3  # statements of a function in which there are so many
_AT_MOST = 8  # joins of a function


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """``sources``: the places of the steps whose results it loads. ``others``: of how many parameters it does."""

    sources: tuple[int, ...]
    others: int
    inlined: bool


@tvm.transform.module_pass(opt_level=0, name="tunehub.joins_apart")  # type: ignore[untyped-decorator]
def joins_apart(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass behind fusion."""
    for _ in range(_AT_MOST):
        places = {variable: place for variable, each in workloads(mod) if (place := join_of(each)) is not None}
        found = {str(variable.name_hint): halves_at(mod[variable], place) for variable, place in places.items()}
        before, mod = mod, in_halves(mod, found, ("join", "rest"))
        if mod.same_as(before):
            break
    return mod


def join_of(function: PrimFunc) -> int | None:
    """The place of the statement of ``function`` without which least is written out, where that is too much; None where
    it is not, or nothing is written out twice."""
    if not has_root(function) or len(statements_of(function)) < _FEWEST:
        return None
    if not is_static(function) or not writes_only_last(function):
        return None
    steps = _steps(function)
    loads, uses = _loads(steps), _uses(steps)
    saved = {at: (uses[at] - 1) * (loads[at] - 1) for at, step in enumerate(steps) if step.inlined}
    best = max(saved, key=lambda at: saved[at], default=None)
    return best if best is not None and max(loads) > _MOST and saved[best] else None


def _steps(function: PrimFunc) -> list[_Step]:
    """Of each statement; what reduces is not inlined, nor what is the result."""
    statements, given = statements_of(function), {hash(each) for each in parameters(function)}
    places = {buffer: at for at, each in enumerate(statements) for buffer in buffers_of(each, "writes")}
    found = []
    for at, each in enumerate(statements):
        reads = [places.get(buffer) for buffer in buffers_of(each, "reads")]
        own = any(map(reduces, blocks_in(each))) or bool(buffers_of(each, "writes") & given)
        sources = tuple(place for place in reads if place not in (None, at))
        found.append(_Step(sources=sources, others=reads.count(None), inlined=not own))
    return found


def _loads(steps: list[_Step]) -> list[int]:
    """How many tensors each step loads once all before it are inlined, again in each place where it does."""
    found: list[int] = []
    for step in steps:
        found.append(step.others + sum(found[at] if steps[at].inlined else 1 for at in step.sources))
    return found


def _uses(steps: list[_Step]) -> list[int]:
    """How often each step is written out."""
    found = [0 if step.inlined else 1 for step in steps]
    for at in reversed(range(len(steps))):
        for source in steps[at].sources:
            found[source] += found[at] if steps[source].inlined else 0
    return found
