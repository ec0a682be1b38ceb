"""A ladder: ordered steps that each try records, or a rule that needs none, for one workload. The first that serves
ends the walk; what does not serve says so in fields. Texts are made of them once, in :mod:`tunehub.report.text`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Step = Literal["exact", "anchor", "transfer", "template"]
_Request = TypeVar("_Request")
_Served = TypeVar("_Served")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRejected:
    """Why a step of a ladder does not serve a workload with what it tried.

    ``record`` (the workload that it was made for) and ``package`` are of the record that was tried, ``template`` is the
    template whose default knobs were: None where it was not one of these that spoke against the step. ``default_s`` are
    the seconds that TVM's default takes, where that was measured to be no slower.
    """

    step: Step
    reason: str
    package: str | None = None
    record: str | None = None
    template: str | None = None
    default_s: float | None = None


def walk(
    steps: Iterable[Callable[[_Request], Iterable[_Served | StepRejected]]], request: _Request
) -> tuple[_Served | None, tuple[StepRejected, ...]]:
    """What the first step that serves gives, None without any, and all that was rejected before it.

    A step gives an outcome for each thing that it tries, and none where it has nothing to try. What speaks against
    every record alike is said once.
    """
    rejected: list[StepRejected] = []
    for step in steps:
        for outcome in step(request):
            if not isinstance(outcome, StepRejected):
                return outcome, tuple(rejected)
            if not _is_said(outcome, rejected):
                rejected.append(outcome)
    return None, tuple(rejected)


def _is_said(outcome: StepRejected, rejected: Sequence[StepRejected]) -> bool:
    fields = (None, outcome.template, outcome.reason)
    return any((other.record, other.template, other.reason) == fields for other in rejected) and outcome.record is None
