"""Records, tried for a function: what each gives, or what speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tunehub.compiler.schedule.apply import apply_candidate
from tunehub.compiler.schedule.request import Request, Served, reason_of
from tunehub.compiler.schedule.transfer_sources import Strategy, predicted_s, promising
from tunehub.exceptions import TunehubError
from tunehub.records.lookup import Candidate, content_of
from tunehub.records.never_worse import against_borrowing, against_record
from tunehub.registries.key_scheme import TEMPLATE
from tunehub.report.ladder import Refusal, Step, StepRejected
from tunehub.tir.cpu_check import check_proven
from tunehub.tir.cuda.known_faults import made_of
from tunehub.tir.guard import FaultFoundError, check_simulated, check_size
from tunehub.tir.operator_class import anchor_class_of, class_of
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.kernels.cpu import NamedKnobs
    from tunehub.records.lookup import FoundLadder, Neighbour
    from tunehub.tir.types import PrimFunc, ScheduledModule


def tried(step: Step, request: Request, candidate: Candidate, expected_s: float | None = None) -> Served | StepRejected:
    """What applying a record gives; ``expected_s``: of a record for other shapes, whose own times say little here."""
    record, moved = candidate.record, step == "transfer"
    against = None if moved else against_record(record, borrowed=candidate.anchored)
    apply = partial(apply_candidate, request.mod, candidate, request.target, request.fit)
    by_rule = isinstance(record, TemplateRecord) and is_by_rule(request, record)
    schedule = applied_and_checked(step, request, candidate, against, apply, proven=by_rule)
    if isinstance(schedule, StepRejected):
        return schedule
    return Served(
        step=step,
        schedule=schedule,
        rung=candidate.rung,
        package=candidate.package,
        run_s=None if moved else min(record.run_s, default=None),
        default_s=None if moved else record.default_s,
        template=record.template if isinstance(record, TemplateRecord) else None,
        source=record.op if moved else None,
        predicted_s=expected_s,
        record=record,
        embedded=candidate.embedded,
        by_rule=by_rule,
        foreign=candidate.foreign,
    )


def is_by_rule(request: Request, record: NamedKnobs) -> bool:
    """Whether the knobs of a record, or of a lock file, are what the template's own rule chooses."""
    try:
        return request.fit.has_default(record)
    except Exception:  # they do not fit, which is said when they are applied
        return False


def applied_and_checked(
    step: Step,
    request: Request,
    found: Candidate | FoundLadder,
    against: str | None,
    apply: Callable[[], ScheduledModule],
    *,
    proven: bool = False,
) -> ScheduledModule | StepRejected:
    """The schedule by a record that ``apply`` gives, or what speaks against it, a StepRejected. Those of embedded
    packages were proven before they were embedded; ``proven``: the schedule is one that needs no record."""
    record = found.record
    try:
        with made_of(content_of(record)):
            if against is None:
                schedule = apply()
                if request.target.kind.name == "llvm" and not (found.embedded or proven):
                    check_proven(schedule.mod["main"], request.target)
                elif request.target.kind.name == "cuda" and found.foreign:
                    _check_foreign(schedule.mod["main"], request, tiles=isinstance(record, TemplateRecord))
                return schedule
    except FaultFoundError as error:
        refusal = Refusal(check="static", reason=reason_of(error))
        return StepRejected(step=step, package=found.package, record=record.op, refusal=refusal)
    except Exception as error:  # TVM raises many kinds for a record that does not fit
        against = reason_of(error)
    return StepRejected(step=step, reason=against or "", package=found.package, record=record.op)


def _check_foreign(scheduled: PrimFunc, request: Request, *, tiles: bool) -> None:
    """Refuse what takes NVRTC minutes; ``tiles``: of a rule, which has bounds. What becomes a part of another function
    must be simulated."""
    if not tiles:
        check_size(scheduled, "gpu")
    if request.piece:
        check_simulated(scheduled, request.target)


def transferred(request: Request, strategy: Strategy | None, tuner: str) -> Iterator[Served | StepRejected]:
    """The records of the same operator class that are worth it, adapted."""
    try:
        chosen = _chosen(request, strategy, knobs=tuner == TEMPLATE)
    except TunehubError:
        raise  # strict mode
    except Exception as error:  # a strategy or a class that fails must not cost the steps that follow
        yield StepRejected(step="transfer", reason=f"records for other shapes: {reason_of(error)}")
        return
    against = against_borrowing(request.lookup.measured(tuner, request.exact)) if chosen else None
    if against is not None:
        yield StepRejected(step="transfer", reason=against)
        return
    for neighbour, expected_s in chosen:
        candidate = neighbour.read()
        if candidate is not None:
            yield tried("transfer", request, candidate, expected_s)


def _chosen(request: Request, strategy: Strategy | None, *, knobs: bool) -> list[tuple[Neighbour, float]]:
    """The neighbours to try, best first, and the seconds that each promises; either those with knobs or with traces.

    Those of the function's class; when none promises anything, those of its anchor block's.
    """
    if strategy is None or request.typical is None:
        return []
    for find in (class_of, anchor_class_of):
        own = find(request.typical)
        if own is None:
            continue
        known = [other for other in request.lookup.by_class(own.key) if other.knobs == knobs]
        found = strategy(own, promising(own, known))
        if found:
            return [(other, predicted_s(own, other)) for other in found[: request.transfers.attempts]]
    return []
