"""Templates for one function of current TVM: by a record's knobs, or by those of the template's own rule.

A record names a template, its version, and knobs. All three are checked before anything is scheduled, and the schedule
is made by code of the client alone; what is checked of every schedule (:mod:`tunehub.tir.guard`) comes on
top.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from tunehub.kernels import cpu as templates
from tunehub.kernels.cpu import KnobError, Machine, Match, NamedKnobs
from tunehub.tir.guard import check_tiles
from tunehub.tir.nodes import buffer_kind, extents_of, integer, parameters

if TYPE_CHECKING:
    from tunehub.kernels.cpu.base import Knobs
    from tunehub.target.machine_profile import PublishedProfile
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule

_LONG, _SHORT = ("int64", "uint64"), 2**31


_published: ContextVar[PublishedProfile | None] = ContextVar("published machine profile", default=None)


@contextmanager
def published_rates(profile: PublishedProfile | None) -> Iterator[None]:
    """Inside, in this thread or task, machines without a profile of their user's have this one, if it is for them."""
    token = _published.set(profile)
    try:
        yield
    finally:
        _published.reset(token)


def machine_for(target: Target) -> Machine:
    """The CPU of ``target``, looked at once."""
    return _machine(target, _published.get())


@lru_cache(maxsize=8)
def _machine(target: Target, published: PublishedProfile | None) -> Machine:
    return templates.machine_of(target, published=published)  # asks LLVM, 0.4 ms


def multiplies_pairs(target: Target) -> bool:
    """Whether ``target`` multiplies pairs of bfloat16 by vectors, and so faster than numbers of float32."""
    from tunehub.kernels.cpu import pairs  # not of TVM up to 0.19

    return pairs.doubt(target) is None and machine_for(target).rates.pairs > 1


def with_short_indices(mod: IRModule) -> IRModule:
    """``mod`` with loops and shapes of 32 bits, as far as it has static shapes, and no buffer of 64-bit integers.

    Functions of Relax count in 64 bits. TVM narrows them while it generates code, and forgets which loops are to be cut
    into whole vectors and a remainder: the pragma names the old variable, and every element gets a condition.
    """
    import tvm

    buffers = [*parameters(mod["main"]), *mod["main"].body.block.alloc_buffers]
    shapes = [list(map(integer, extents_of(buffer))) for buffer in buffers]
    kinds = {str(buffer_kind(buffer).dtype) for buffer in buffers}
    small = all(None not in shape and math.prod(extent or 0 for extent in shape) < _SHORT for shape in shapes)
    if not small or not kinds.isdisjoint(_LONG):
        return mod
    return tvm.tirx.transform.ForceNarrowIndexToInt32()(mod)


class TemplateFit:
    """The template that fits ``mod``, an IRModule with one PrimFunc ``main``; looked for once, when it is needed."""

    def __init__(self, mod: IRModule, target: Target) -> None:
        self._mod = mod
        self._target = target

    @cached_property
    def match(self) -> Match | None:
        """The template and what it recognised; None when none fits, or the target is no CPU."""
        return templates.find(self._mod) if self._target.kind.name == "llvm" else None

    def by_knobs(self, named: NamedKnobs) -> Schedule:
        """The schedule by given knobs; KnobError when they are not for this function, GuardError when its tiles
        overrun. On CUDA they are a tile of the rules."""
        if self._target.kind.name == "cuda":
            from tunehub.kernels.cuda.knobs import by_knobs  # CPUs need none of it

            return by_knobs(self._mod, self._target, named)
        match = self.match
        if match is None:
            raise KnobError(f"the template {named.template} does not fit this function")
        own = match.template
        if named.template != own.NAME:
            raise KnobError(f"the record is for the template {named.template!r}, the function for {own.NAME}")
        if named.version != own.VERSION:
            raise KnobError(f"version {named.version} of the template {own.NAME} is not known, only {own.VERSION}")
        return self._apply(match, templates.read_knobs(own.KNOBS, named.knobs))

    def knob_space(self, match: Match) -> list[Knobs]:
        """The choices of the template's knobs that are worth measuring, its own first."""
        return match.template.knob_space(match.workload, machine_for(self._target))

    def has_default(self, named: NamedKnobs) -> bool:
        """Whether given knobs are the template's own choice: then the schedule is that of `by_default`."""
        match = self.match
        if match is None or (named.template, named.version) != (match.template.NAME, match.template.VERSION):
            return False
        knobs = templates.read_knobs(match.template.KNOBS, named.knobs)
        return bool(knobs == match.template.default_knobs(match.workload, machine_for(self._target)))

    def by_default(self, match: Match) -> Schedule:
        """The schedule by the template's own choice of knobs. Raises as `by_knobs`."""
        knobs = match.template.default_knobs(match.workload, machine_for(self._target))
        return self._apply(match, knobs)

    def by_promising_default(self, match: Match) -> Schedule:
        """As `by_default`; KnobError also when the template's model does not promise to beat TVM's own loops."""
        doubt = templates.doubt(match, machine_for(self._target))
        if doubt is not None:
            raise KnobError(doubt)
        return self.by_default(match)

    def _apply(self, match: Match, knobs: Knobs) -> Schedule:
        lacking = templates.lacking(match, self._target)
        if lacking is not None:
            raise KnobError(f"the template {match.template.NAME} has no instruction for it: {lacking}")
        schedule = match.template.apply(with_short_indices(self._mod), match.workload, knobs)
        check_tiles(schedule.mod["main"])
        return schedule
