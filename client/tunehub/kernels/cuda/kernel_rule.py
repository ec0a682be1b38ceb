"""What a kernel for CUDA is to the rest: a rule, a module with the names of :class:`KernelRule`.

:mod:`tunehub.kernels.cuda.rules` lists all rules; :mod:`tunehub.kernels.cuda.choose` compares what they promise.
CONTRIBUTING.md, "Add a CUDA kernel", shows how to write one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tunehub.kernels.devices.device import GpuDevice

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, ScheduledModule


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCandidate:
    """A ``tile`` of a rule, of a type of its own, and the ``seconds`` that it should take, which reports repeat; None
    where no cost is known. ``compared_s``: by which it is compared with tiles of other rules where that is something
    else; the rule says why."""

    tile: Any
    seconds: float | None
    compared_s: float | None = None

    @property
    def place_s(self) -> float:
        """By what it is compared. What no cost is known of is first: only one rule has such a kernel at all."""
        if self.compared_s is not None:
            return self.compared_s
        return 0.0 if self.seconds is None else self.seconds


class KernelRule(Protocol):
    """A kernel for functions of known shapes. ``mod`` is an IRModule with one PrimFunc ``main``, ``target`` one for
    CUDA; a workload is what the rule needs to know of both, of a type of its own."""

    NAME: str
    """In reports, and of the template in records if it is one."""
    VERSION: int
    """Of its tiles as records have them: it changes when they change their meaning."""
    ALONE: bool
    """Whether tunehub makes the functions that match for this rule: no other one is asked then."""

    def match(self, mod: IRModule, target: Target) -> Any | None:
        """The workload; None for a function of another kind, a GPU or a TVM without what the kernel needs. Cheap."""

    def candidates(self, workload: Any, device: GpuDevice) -> Iterable[KernelCandidate]:
        """Its likeliest tiles, the best first, made one by one; the next is asked for where one cannot be built.

        Raises an exception whose message says why there is none, or no more: TVM's own schedule should take as little,
        say (:class:`tunehub.kernels.cuda.gemm.rule.NoTileError`).
        """

    def build(self, workload: Any, tile: Any) -> ScheduledModule:
        """What has the scheduled function as ``main`` of its ``mod``, as a schedule of TVM has. Raises what it likes
        for a tile that cannot be built; what is checked of every schedule is not checked here."""


@runtime_checkable
class RecordedRule(Protocol):
    """A rule whose tiles records may name: their knobs are a tile's fields, but for those with ``is_knob=False`` among
    their metadata. A record is held to what :meth:`takes` says."""

    VERSION: int
    TEMPLATES: Mapping[str, type[Any]]
    """Frozen dataclasses, a type of tiles by the name of each template."""

    def match(self, mod: IRModule, target: Target) -> Any | None:
        """See :meth:`KernelRule.match`."""

    def takes(self, workload: Any, tile: Any) -> bool:
        """Whether ``tile``, from a record, is within the bounds that the rule's own tiles have."""

    def space(self, workload: Any, device: GpuDevice) -> Iterable[KernelCandidate]:
        """The tiles that are worth measuring, the likeliest first."""

    def build(self, workload: Any, tile: Any) -> ScheduledModule:
        """See :meth:`KernelRule.build`."""


class OpenKernelRule(Protocol):
    """Kernels for functions with open axes."""

    NAME: str
    """In reports."""

    def open_sizes(self, mod: IRModule, target: Target, pieces: Any) -> ScheduledModule | None:
        """What has the scheduled function as ``main`` of its ``mod``, checked; None for a function of another kind.

        ``pieces`` (:class:`tunehub.kernels.cuda.symbolic.schedule.Static`) schedules static functions of pieces. Raises
        as :meth:`KernelRule.candidates` and :meth:`KernelRule.build` do.
        """
