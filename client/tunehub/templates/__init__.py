"""Expert schedules with named knobs, for CPUs and current TVM (0.25 and newer).

A template is a module with ``NAME``, ``VERSION`` (a number that changes when knobs change their meaning), ``KNOBS``
(the type of its knobs) and

* ``recognise(mod, blocks) -> Workload | None``: what the template needs to know of an IRModule with one PrimFunc
  ``main``, whose ``blocks`` are those of :func:`tunehub.templates.base.blocks_of`;
* ``knob_space(workload, machine) -> list[Knobs]``: the choices worth measuring, the default's first;
* ``default_knobs(workload, machine) -> Knobs``: a good choice without measuring;
* ``apply(mod, workload, knobs)``: the schedule, :class:`tunehub.templates.base.KnobError` when knobs do not fit.

A record holds a template's name and version, and knobs that :func:`tunehub.templates.base.read_knobs` checks.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tunehub.templates.base import Block, KnobError, Knobs, Machine, blocks_of, machine_of, read_knobs

__all__ = [
    "NAMES",
    "KnobError",
    "Knobs",
    "Machine",
    "Match",
    "Template",
    "find",
    "machine_of",
    "read_knobs",
    "template",
]

# in the order in which they are asked
NAMES = ("conv2d", "depthwise", "dense", "pooling", "last_axis", "elementwise", "loops")


class Template(Protocol):
    """What every module of this package whose name is in ``NAMES`` offers."""

    NAME: str
    VERSION: int
    KNOBS: type[Any]

    def recognise(self, mod: Any, blocks: tuple[Block, ...]) -> Any | None:
        """Describe the function ``main`` of ``mod``, which has ``blocks``; None when the template is not for it."""

    def knob_space(self, workload: Any, machine: Machine) -> list[Any]:
        """The choices worth measuring, the default's first."""

    def default_knobs(self, workload: Any, machine: Machine) -> Any:
        """A good choice without measuring."""

    def apply(self, mod: Any, workload: Any, knobs: Any) -> Any:
        """The schedule of ``mod``; KnobError when ``knobs`` do not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A template and what it recognised."""

    template: Template
    workload: Any


def template(name: str) -> Template:
    """Return the template called ``name``; KnobError when there is none."""
    if name not in NAMES:
        raise KnobError(f"there is no template {name!r}; there are {', '.join(NAMES)}")
    return cast(Template, importlib.import_module(f"tunehub.templates.{name}"))


def find(mod: Any) -> Match | None:
    """Return the template for ``mod`` (an IRModule with one PrimFunc ``main``), or None."""
    blocks = blocks_of(mod)
    for name in NAMES:
        candidate = template(name)
        workload = candidate.recognise(mod, blocks)
        if workload is not None:
            return Match(template=candidate, workload=workload)
    return None
