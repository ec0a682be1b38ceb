"""The functions of a module on their way down the ladder, each schedule verified before it serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.relax.schedule.ladder import Scheduling, Served
from tunehub.verify.port import KernelVerdict, ScheduledFunction, ScheduleVerifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.records.lookup import RecordLookup


@dataclass(slots=True)
class VerifiedScheduling:
    """A function's ``scheduling``, and what verifying said of the schedule that serves; no more where none does."""

    scheduling: Scheduling
    verdict: KernelVerdict
    asked: ScheduledFunction | None = None


def schedule_verified(
    functions: Iterable[Any],
    target: Any,
    lookup: RecordLookup,
    verifier: ScheduleVerifier,
    wants: Callable[[Served], bool],
) -> list[VerifiedScheduling]:
    """Schedule PrimFuncs as :func:`tunehub.relax.schedule.ladder.schedule_function`, in their order.

    Those schedules that ``wants`` names are verified while the next functions are scheduled. What is refused goes on
    to the next thing that serves, and that is verified, too.
    """
    found = []
    for function in functions:
        found.append(VerifiedScheduling(Scheduling(function, target, lookup), KernelVerdict()))
        _submit(found[-1], verifier, wants)
    waiting = [item for item in found if item.asked is not None]
    while waiting:
        refused = [item for item in waiting if _is_refused(item, verifier)]
        for item in refused:
            _submit(item, verifier, wants)
        waiting = [item for item in refused if item.asked is not None]
    return found


def _submit(item: VerifiedScheduling, verifier: ScheduleVerifier, wants: Callable[[Served], bool]) -> None:
    served, request = item.scheduling.served, item.scheduling.request
    item.asked, item.verdict = None, KernelVerdict()
    if served is None or not wants(served):
        return
    scheduled = served.schedule.mod["main"]
    item.asked = ScheduledFunction(
        exact=request.exact, original=request.mod["main"], scheduled=scheduled, record=served.record
    )
    verifier.submit(item.asked)


def _is_refused(item: VerifiedScheduling, verifier: ScheduleVerifier) -> bool:
    assert item.asked is not None
    item.verdict = verifier.verdict(item.asked)
    if item.verdict.refusal is None:
        return False
    item.scheduling.refuse(item.verdict.refusal)
    return True
