"""A ladder: ordered steps that each try records, or a rule that needs none, for one workload. The first that serves
ends the walk; what does not serve says so in fields. Texts are made of them once, in :mod:`tunehub.report.text`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Step = Literal["lock", "exact", "anchor", "transfer", "template", "dlight"]
Check = Literal["static", "run"]
_Request = TypeVar("_Request")
_Served = TypeVar("_Served")


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """What speaks against a schedule that was verified, and the ``check`` that found it.

    ``static``: by its text, ``reason`` says what. ``run``: it was run beside the plain schedule. Outputs differ by
    ``difference``, relative to the largest, where ``tolerance`` is the most; without one, some are not finite or were
    never written. Or it cannot be built or run, and ``reason`` says why.
    """

    check: Check
    reason: str | None = None
    difference: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRejected:
    """Why a step of a ladder does not serve a workload with what it tried: a ``reason``, or a ``refusal``.

    ``record`` (the workload that it was made for) and ``package`` are of the record that was tried, ``template`` is the
    template whose default knobs were: None where it was not one of these that spoke against the step. ``default_s`` are
    the seconds that TVM's default takes, where that was measured to be no slower.
    """

    step: Step
    reason: str = ""
    package: str | None = None
    record: str | None = None
    template: str | None = None
    default_s: float | None = None
    refusal: Refusal | None = None


class LadderWalk(Generic[_Served]):
    """One workload's way down a ladder. It stands at what the first step that serves gives; who refuses that goes on.

    A step gives an outcome for each thing that it tries, and none where it has nothing to try. What speaks against
    every record alike is said once.
    """

    def __init__(
        self, steps: Iterable[Callable[[_Request], Iterable[_Served | StepRejected]]], request: _Request
    ) -> None:
        """Walks to the first thing that serves."""
        self._outcomes = (outcome for step in steps for outcome in step(request))
        self._rejected: list[StepRejected] = []
        self.served: _Served | None = None
        self._proceed(self._outcomes)

    @property
    def rejected(self) -> tuple[StepRejected, ...]:
        """What was tried before, and why it does not serve."""
        return tuple(self._rejected)

    def refuse(self, rejected: StepRejected) -> None:
        """What serves does not, after all: go on to what serves next."""
        self._rejected.append(rejected)
        self._proceed(self._outcomes)

    def _proceed(self, outcomes: Iterator[_Served | StepRejected]) -> None:
        self.served = None
        for outcome in outcomes:
            if not isinstance(outcome, StepRejected):
                self.served = outcome
                return
            if not _is_said(outcome, self._rejected):
                self._rejected.append(outcome)


def walk(
    steps: Iterable[Callable[[_Request], Iterable[_Served | StepRejected]]], request: _Request
) -> tuple[_Served | None, tuple[StepRejected, ...]]:
    """What the first step that serves gives, None without any, and all that was rejected before it."""
    walked: LadderWalk[_Served] = LadderWalk(steps, request)
    return walked.served, walked.rejected


def _is_said(outcome: StepRejected, rejected: Sequence[StepRejected]) -> bool:
    fields = (None, outcome.template, outcome.reason)
    return any((other.record, other.template, other.reason) == fields for other in rejected) and outcome.record is None
