"""The functions of a module on their way down the ladder, each schedule verified before it serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.compiler.schedule.request import Served
from tunehub.compiler.verify.port import KernelVerdict, ScheduledFunction, ScheduleVerifier

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class VerifiedScheduling:
    """The ``scheduling`` of the function ``name``, and what verifying said of what serves, if that was asked."""

    name: str
    scheduling: Scheduling
    verdict: KernelVerdict
    asked: ScheduledFunction | None = None


class VerifiedFunctions:
    """PrimFuncs on their way down the ladder, in their order.

    Those schedules that ``wants`` names are verified while the next functions are scheduled, and while the caller goes
    on. What is refused goes on to the next thing that serves, and that is verified, too.
    """

    def __init__(
        self, schedulings: Iterable[tuple[str, Scheduling]], verifier: ScheduleVerifier, wants: Callable[[Served], bool]
    ) -> None:
        """Takes one after the other, by the names of functions, and submits what is to be verified."""
        self._verifier, self._wants = verifier, wants
        self.items: list[VerifiedScheduling] = []
        for name, scheduling in schedulings:
            self.items.append(VerifiedScheduling(name, scheduling, KernelVerdict()))
            _submit(self.items[-1], verifier, wants)

    def settle(self) -> bool:
        """Wait for all verdicts; whether any schedule was refused, so that others serve now."""
        waiting = [item for item in self.items if item.asked is not None]
        changed = False
        while waiting:
            refused = [item for item in waiting if _is_refused(item, self._verifier)]
            for item in refused:
                _submit(item, self._verifier, self._wants)
            waiting = [item for item in refused if item.asked is not None]
            changed = changed or bool(refused)
        return changed


def _submit(item: VerifiedScheduling, verifier: ScheduleVerifier, wants: Callable[[Served], bool]) -> None:
    served, request = item.scheduling.served, item.scheduling.request
    item.asked, item.verdict = None, KernelVerdict()
    if served is None or not wants(served):
        return
    scheduled = served.schedule.mod["main"]
    item.asked = ScheduledFunction(
        exact=request.exact,
        original=request.mod["main"],
        scheduled=scheduled,
        record=served.record,
        foreign=served.foreign,
        name=item.name,
        unchecked=request.checked_later and served.record is None,
    )
    verifier.submit(item.asked)


def _is_refused(item: VerifiedScheduling, verifier: ScheduleVerifier) -> bool:
    assert item.asked is not None
    item.verdict = verifier.verdict(item.asked)
    if item.verdict.refusal is None:
        return False
    item.scheduling.refuse(item.verdict.refusal)
    return True
