"""What a schedule is wanted for, and what came of it: a function on its way down the ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

from tunehub.compiler.schedule.transfer_sources import Transfers
from tunehub.exceptions import last_line
from tunehub.kernels.template_fit import TemplateFit
from tunehub.report.ladder import Step, StepRejected
from tunehub.tir.guard import check_function, check_statements
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import is_symbolic, symbol_name, symbols_of, typical_instance

if TYPE_CHECKING:
    from tunehub.compiler.schedule.rule_choice import RuleChoice
    from tunehub.kernels.cuda.choose import Offer
    from tunehub.options import Precision
    from tunehub.records.lookup import RecordLookup, Rung
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, ScheduledModule
    from tunehub_registry.any_record import AnyRecord
    from tunehub_registry.ladder_record import LadderRecord

DEFAULT_TRANSFERS = Transfers()
GENERAL_TEMPLATES = frozenset({"loops"})  # for whatever nothing else fits: a neighbour's tuned schedule comes before
_REASON_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A schedule for a function, and where it is from: the ``step`` that found it, and the ``rung`` for the report.

    ``record`` made it, a template's knobs where ``template`` is named; on the rung ``template`` it is by default knobs.
    ``run_s`` and ``default_s`` are the record's. On the rung ``transfer`` nobody has measured the schedule: ``source``
    is the workload that the record was tuned for, ``predicted_s`` what its time is expected to be here. In seconds.
    ``sizes`` says which sizes of a symbolic function what serves; the times are then those at typical ones.
    ``embedded``: the record is of a package that comes with tunehub; ``foreign``: neither of one nor the user's own.
    ``by_rule``: its knobs are what the template's own rule chooses, so that the function would have this schedule
    without a record, too. ``stale`` is what a report says of a record that was judged beside other rules, ``locked``
    of a kernel that a lock file asks for. ``tile``: of a kernel for CUDA by rule.
    """

    step: Step
    schedule: ScheduledModule
    rung: Rung | Literal["template"]
    package: str | None = None
    run_s: float | None = None
    default_s: float | None = None
    template: str | None = None
    source: str | None = None
    predicted_s: float | None = None
    record: AnyRecord | LadderRecord | None = None
    sizes: str | None = None
    embedded: bool = False
    by_rule: bool = False
    foreign: bool = False
    stale: str | None = None
    locked: str | None = None
    tile: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduled:
    """What :func:`schedule_module` did. ``anchor`` is None when it was not asked for. ``served`` is None when nothing
    did; ``rejected`` is what was tried before."""

    exact: str
    anchor: str | None
    served: Served | None
    rejected: tuple[StepRejected, ...]

    @property
    def schedule(self) -> ScheduledModule | None:
        """The schedule, if any."""
        return None if self.served is None else self.served.schedule

    @property
    def rung(self) -> Rung | Literal["template"] | None:
        """The rung that serves, if any."""
        return None if self.served is None else self.served.rung

    @property
    def default_s(self) -> float | None:
        """The record's, or without a schedule what was measured to be the best."""
        if self.served is not None:
            return self.served.default_s
        return next((item.default_s for item in self.rejected if item.default_s is not None), None)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a schedule is wanted for: ``mod``, an IRModule with one PrimFunc ``main``, and where records come from.
    ``piece``: it becomes a part of another function, and is not run by itself before that serves. ``checked_later``:
    who verifies what rules have for it makes the simulation that is a part of the static check."""

    mod: IRModule
    target: Target
    lookup: RecordLookup
    transfers: Transfers = DEFAULT_TRANSFERS
    precision: Precision = "float32"
    piece: bool = False
    checked_later: bool = False

    @cached_property
    def fit(self) -> TemplateFit:
        """The templates for the function."""
        return TemplateFit(self.mod, self.target)

    @cached_property
    def exact(self) -> str:
        """The key of the very function."""
        return workload_key(self.mod)

    @cached_property
    def anchor(self) -> str | None:
        """The key of its anchor block, if it has one."""
        return anchor_key(self.mod)

    @cached_property
    def without_record_s(self) -> float | None:
        """Seconds that it should take on a CUDA GPU without a record, if the costs know it."""
        from tunehub.kernels.cuda.promises import without_record_s  # CPUs need none of it

        return without_record_s(self.mod, self.target)

    @cached_property
    def split_k_s(self) -> float | None:
        """The seconds that the function should take on a CUDA GPU with split-K by rule, where it is made so."""
        if self.target.kind.name != "cuda" or self.is_symbolic:
            return None
        from tunehub.kernels.cuda.choose import likeliest  # CPUs need none of it
        from tunehub.kernels.cuda.gemm.split_k import rule

        best = likeliest(self.offers)
        return best.best.seconds if best is not None and best.best is not None and best.rule is rule else None

    @cached_property
    def rule_choice(self) -> RuleChoice | None:
        """What rules choose for the function; None where that is not known: it has open axes, or a rule fails."""
        from tunehub.compiler.schedule.rule_choice import cpu_choice, cuda_choice  # records without it need none

        try:
            if self.is_symbolic:
                return None
            on_cuda = self.target.kind.name == "cuda"
            return cuda_choice(self.offers) if on_cuda else cpu_choice(self.fit, self.mod, self.target)
        except Exception:  # what fails is said when the rule is asked for a schedule
            return None

    @cached_property
    def offers(self) -> list[Offer]:
        """What rules for CUDA have for the function, of known shapes; to be used up once."""
        from tunehub.kernels.cuda.choose import offers  # CPUs need none of it
        from tunehub.kernels.cuda.rules import RULES
        from tunehub.kernels.devices.known import device_of

        return offers(RULES, self.mod, self.target, device_of(self.target))

    def check(self, schedule: ScheduledModule) -> None:
        """Raise what speaks against a ``schedule`` of the function."""
        check = check_statements if self.checked_later else check_function
        check(schedule.mod["main"], self.mod["main"], self.target)

    @cached_property
    def typical(self) -> IRModule | None:
        """``mod``, or of a symbolic function the instance by which it is compared with others, if there is one."""
        if not self.is_symbolic:
            return self.mod
        instance = typical_instance(self.mod["main"])
        return None if instance is None else main_module(instance)

    @cached_property
    def is_symbolic(self) -> bool:
        """Whether its shapes have symbols."""
        return is_symbolic(self.mod["main"])

    @property
    def symbols(self) -> tuple[str, ...]:
        """What the model calls its symbols."""
        return tuple(map(symbol_name, symbols_of(self.mod["main"])))

    @cached_property
    def has_expert(self) -> bool:
        """Whether a template made for its operator recognises the function."""
        try:
            match = self.fit.match
        except Exception:  # what it is is said when default knobs are tried
            return False
        return match is not None and match.template.NAME not in GENERAL_TEMPLATES


Outcomes = Iterable[Served | StepRejected]
Steps = tuple[Callable[[Request], Outcomes], ...]


class Choices(Protocol):
    """What a lock file asks for (:mod:`tunehub.compiler.schedule.locked`)."""

    def steps(self, request: Request, usual: Steps) -> Steps:
        """The steps for a workload, of which ``usual`` are those without a lock file."""


def reason_of(error: Exception) -> str:
    """The last line of what an error says, shortened for reports."""
    return last_line(error, limit=_REASON_CHARACTERS)
