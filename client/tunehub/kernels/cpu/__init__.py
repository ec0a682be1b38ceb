"""Expert schedules with named knobs, for CPUs and current TVM (0.25 and newer).

A template is a module with ``NAME``, ``VERSION`` (a number that changes when knobs change their meaning), ``KNOBS``
(the type of its knobs) and

* ``recognise(mod, blocks) -> Workload | None``: what the template needs to know of an IRModule with one PrimFunc
  ``main``, whose ``blocks`` are those of :func:`tunehub.kernels.cpu.base.blocks_of`;
* ``knob_space(workload, machine) -> list[Knobs]``: the choices worth measuring, the default's first;
* ``default_knobs(workload, machine) -> Knobs``: a good choice without measuring;
* ``apply(mod, workload, knobs)``: the schedule, :class:`tunehub.kernels.cpu.base.KnobError` when knobs do not fit;
* optionally ``lacks(workload, target) -> str | None``: why the target cannot have instructions that it needs;
* optionally ``gains(workload, machine) -> bool``: whether its default knobs surely beat TVM's own loops. Templates
  without it always do, by the evidence of packages.

A record holds a template's name and version, and knobs that :func:`tunehub.kernels.cpu.base.read_knobs` checks.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from tunehub.kernels.cpu.base import (
    Block,
    KnobError,
    Knobs,
    Machine,
    NamedKnobs,
    blocks_of,
    machine_of,
    read_knobs,
    size_of,
)

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Schedule

__all__ = [
    "NAMES",
    "KnobError",
    "Knobs",
    "Machine",
    "Match",
    "NamedKnobs",
    "Template",
    "doubt",
    "find",
    "lacking",
    "machine_of",
    "read_knobs",
    "template",
]

# in the order in which they are asked
NAMES = (
    *("matrix_tiles", "conv2d", "winograd", "depthwise", "dense", "nt_dense"),
    *("pooling", "last_axis", "elementwise", "loops"),
)


_LITTLE = 1024  # steps of all loops, that take less than a microsecond however they are written


class Template(Protocol):
    """What every module of this package whose name is in ``NAMES`` offers."""

    NAME: str
    VERSION: int
    KNOBS: type[Any]

    def recognise(self, mod: IRModule, blocks: tuple[Block, ...]) -> Any | None:
        """Describe the function ``main`` of ``mod``, which has ``blocks``; None when the template is not for it."""

    def knob_space(self, workload: Any, machine: Machine) -> list[Any]:
        """The choices worth measuring, the default's first."""

    def default_knobs(self, workload: Any, machine: Machine) -> Any:
        """A good choice without measuring."""

    def apply(self, mod: IRModule, workload: Any, knobs: Any) -> Schedule:
        """The schedule of ``mod``; KnobError when ``knobs`` do not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A template and what it recognised. ``steps``: how often the statements of the function's blocks run."""

    template: Template
    workload: Any
    steps: int

    @property
    def is_little(self) -> bool:
        """Whether it takes no time that matters, however it is written."""
        return self.steps < _LITTLE


def template(name: str) -> Template:
    """Return the template called ``name``; KnobError when there is none."""
    if name not in NAMES:
        raise KnobError(f"there is no template {name!r}; there are {', '.join(NAMES)}")
    return cast(Template, importlib.import_module(f"tunehub.kernels.cpu.{name}"))


def find(mod: IRModule) -> Match | None:
    """Return the template for ``mod`` (an IRModule with one PrimFunc ``main``), or None."""
    blocks = blocks_of(mod)
    for name in NAMES:
        candidate = template(name)
        workload = candidate.recognise(mod, blocks)
        if workload is not None:
            steps = sum(size_of((*block.spatial, *block.reduction)) for block in blocks)
            return Match(template=candidate, workload=workload, steps=steps)
    return None


def lacking(match: Match, target: Target) -> str | None:
    """Why ``target`` cannot have the instructions with which a template computes a function, or None: LLVM ends the
    process when it is to generate one that the target lacks, whoever asked for it."""
    lacks = getattr(match.template, "lacks", None)
    found: str | None = None if lacks is None else lacks(match.workload, target)
    return found


def doubt(match: Match, machine: Machine) -> str | None:
    """Why a template's default knobs may be no faster than TVM's own loops; None when its model promises a gain."""
    if match.is_little:
        return f"{match.steps} steps are too few to gain from a schedule"
    gains = getattr(match.template, "gains", None)
    if gains is not None and not gains(match.workload, machine):
        return "this function is no faster than with TVM's own loops"
    return None
