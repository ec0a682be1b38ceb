"""Schedules verified by their text alone, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tunehub.compiler.verify.port import KernelVerdict, ScheduledFunction
from tunehub.records.lookup import content_of
from tunehub.report.ladder import Refusal
from tunehub.tir.cuda.fault import Fault, NotSimulated
from tunehub.tir.cuda.known_faults import made_of
from tunehub.tir.guard import unproven_text

if TYPE_CHECKING:
    from tunehub.target.types import Target

FindFault = Callable[[Any, Any], Fault | NotSimulated | None]


class StaticVerifier:
    """Says what ``find_fault`` finds, the check that is made of every schedule for a GPU, and of records' for a CPU.
    ``not_run`` is why schedules are not run, too; ``run_later``: a compile will run them. Where none does, somebody
    else's schedule of which the check says nothing is refused."""

    checks = False  # not beside the compile

    def __init__(self, target: Target, find_fault: FindFault, not_run: str, *, run_later: bool = False) -> None:
        self._target, self._find_fault = target, find_fault
        self._not_run, self._run_later = not_run, run_later

    def begin(self) -> None:
        """As the port says."""

    def submit(self, asked: ScheduledFunction) -> None:
        """As the port says."""

    def verdict(self, asked: ScheduledFunction) -> KernelVerdict:
        """As the port says."""
        with made_of(content_of(asked.record) if asked.record is not None else b""):
            found = self._find_fault(asked.scheduled, self._target)
        if isinstance(found, NotSimulated):
            refused = asked.foreign and not self._run_later
            unproven = Refusal(check="static", reason=unproven_text(found, self._not_run)) if refused else None
            return KernelVerdict(refusal=unproven, not_run=f"{self._not_run}; {found}")
        refusal = None if found is None else Refusal(check="static", reason=str(found))
        return KernelVerdict(check="static", refusal=refusal, not_run=self._not_run)

    def close(self) -> None:
        """As the port says."""
