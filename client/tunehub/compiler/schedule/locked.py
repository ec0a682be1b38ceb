"""What a lock file asks for: the kernels that served a model when its choice was frozen, made again before today's
rules are asked (docs/adr/0080-one-meaning-of-stale.md). What is made again passes the checks of every schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_fields
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from tunehub.compiler.schedule.attempts import is_by_rule, tried
from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.compiler.schedule.request import Request, Served, Steps
from tunehub.compiler.schedule.rule_choice import text_hash
from tunehub.exceptions import LockError, last_line
from tunehub.kernels.template_fit import machine_for
from tunehub.records.lookup import Candidate, content_of
from tunehub.report.ladder import StepRejected
from tunehub.tir.cpu_check import check_proven
from tunehub_registry.locked_kernel import LockedKernel, LockedModel
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.exceptions import HubError
    from tunehub.kernels.cuda.knobs import TileChoice

OTHER_CODE = "as locked, but its code is another now"
_MOST_TRIED = 16  # kernels of the usual steps
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class LockedChoices:
    """The ``models`` that the lock file ``place`` has for the target of a compile."""

    place: str
    models: tuple[LockedModel, ...]

    @cached_property
    def kernels(self) -> Mapping[str, LockedKernel]:
        """What served each workload, by its key."""
        return {kernel.key: kernel for model in self.models for kernel in model.kernels}

    def steps(self, request: Request, usual: Steps) -> Steps:
        """As :class:`tunehub.compiler.schedule.request.Choices` says: none where TVM's own served."""
        kernel = self.kernels.get(request.exact)
        if kernel is None:
            return usual
        return () if kernel.text == text_hash(None) else (partial(_locked, self.place, kernel, usual), *usual)

    def tell(
        self, schedulings: Iterable[Scheduling], note: Callable[[str], None], failed: Callable[[str, HubError], None]
    ) -> None:
        """Say by ``note`` what came of the choices for the workloads of a module; that some can no longer be made has
        ``failed``: a warning, in strict mode an error."""
        found = {each.request.exact: each for each in schedulings}
        asked = {key: each for key, each in found.items() if key in self.kernels}
        lost = [self.kernels[key].op for key, each in asked.items() if was_lost(each)]
        other = [self.kernels[key].op for key, each in asked.items() if each.served and each.served.locked]
        models = [model for model in self.models if any(kernel.key in found for kernel in model.kernels)]
        gone = [kernel.op for model in models for kernel in model.kernels if kernel.key not in found]
        said = [
            f"{len(asked) - len(lost) - len(other)} of {len(found)} kernels are as locked",
            *_counted(len(other), "have other code now", other),
            *_counted(len(gone), "of the lock's are for workloads that the model has no more", gone),
        ]
        if models:
            note(f"{self.place}: {'; '.join(said)}")
        if lost:
            reason = f"{self.place}: {_counted(len(lost), 'choices can no longer be made', lost)[0]}"
            made = ", ".join(dict.fromkeys(f"{model.created_by} with TVM {model.tvm}" for model in models))
            remedy = f"today's serve there; compile with {made}, or freeze today's by `tunehub lock --choices MODEL`"
            failed("choices of the lock file", LockError(reason, remedy=remedy, cause=f"choices of {self.place}"))


def was_lost(scheduling: Scheduling) -> bool:
    """Whether a lock file asks for a kernel that could not be made."""
    return any(rejected.step == "lock" for rejected in scheduling.outcome.rejected)


def _counted(count: int, text: str, names: list[str]) -> list[str]:
    more = ", …" if count > _MOST_NAMED else ""
    return [f"{count} {text} ({', '.join(names[:_MOST_NAMED])}{more})"] if count else []


def frozen(name: str, scheduling: Scheduling) -> LockedKernel:
    """What serves a function called ``name`` now, as lock files keep it."""
    served, request = scheduling.served, scheduling.request
    kernel = LockedKernel(
        key=request.exact,
        op=name,
        rung="default" if served is None else served.rung,
        text=text_hash(scheduling.function),
    )
    if served is None:
        return kernel
    knobs = _knobs_of(request, served)
    if knobs is not None:
        fields = msgspec.to_builtins(knobs.knobs)
        kernel = msgspec.structs.replace(kernel, template=knobs.template, version=knobs.version, knobs=fields)
    if served.record is None:
        return kernel
    said = hashlib.sha256(content_of(served.record)).hexdigest()
    return msgspec.structs.replace(kernel, package=served.package, record=said)


def _knobs_of(request: Request, served: Served) -> TemplateRecord | TileChoice | _Named | None:
    """The template with its knobs that makes the schedule, None where it has none."""
    if isinstance(served.record, TemplateRecord):
        return served.record
    if served.rung != "template" or request.is_symbolic:
        return None
    if request.target.kind.name == "cuda":
        from tunehub.kernels.cuda.knobs import choice_of_tile  # CPUs need none of it

        return choice_of_tile(served.tile)
    match = request.fit.match
    if match is None or served.template != match.template.NAME:
        return None
    knobs = msgspec.to_builtins(match.template.default_knobs(match.workload, machine_for(request.target)))
    return _Named(template=match.template.NAME, version=match.template.VERSION, knobs=knobs)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    template: str
    version: int
    knobs: Mapping[str, object]


def _locked(place: str, kernel: LockedKernel, usual: Steps, request: Request) -> Iterator[Served | StepRejected]:
    """The kernel of a lock file: by its knobs or its record, else by the usual steps where these have its very code."""
    against = "no step gives its code"
    for outcome in _again(kernel, request):
        if isinstance(outcome, Served):
            same = text_hash(outcome.schedule.mod["main"]) == kernel.text
            yield outcome if same else with_fields(outcome, locked=OTHER_CODE)
            against = "it is refused"  # else nobody asks for more
            break
        against = outcome.reason
    else:
        yield from _by_code(kernel, usual, request)
    yield StepRejected(step="lock", reason=f"{place}: its choice, {_said(kernel)}, can no longer be made: {against}")


def _by_code(kernel: LockedKernel, usual: Steps, request: Request) -> Iterator[Served]:
    """The first of the usual steps' kernels that has the very code."""
    found = (outcome for step in usual for outcome in step(request) if isinstance(outcome, Served))
    for outcome in islice(found, _MOST_TRIED):
        if text_hash(outcome.schedule.mod["main"]) == kernel.text:
            yield outcome
            return


def _said(kernel: LockedKernel) -> str:
    by = f" by {kernel.template} {dict(kernel.knobs)}" if kernel.template else ""
    return f"rung {kernel.rung}{f' of {kernel.package}' if kernel.package else ''}{by}"


def _again(kernel: LockedKernel, request: Request) -> Iterator[Served | StepRejected]:
    """What the record gives that the lock file names, where there is still one; else its knobs."""
    candidate = _recorded(kernel, request) if kernel.record else None
    if candidate is not None:
        yield tried("exact" if candidate.record.exact == request.exact else "anchor", request, candidate)
    elif kernel.template is not None and not request.is_symbolic:
        yield _by_knobs(kernel, request)


def _recorded(kernel: LockedKernel, request: Request) -> Candidate | None:
    exact, anchor = request.lookup.by_exact(request.exact), request.anchor
    found = [*([exact] if exact else []), *(request.lookup.by_anchor(anchor) if anchor else ())]
    return next((each for each in found if _is_of(kernel, each)), None)


def _is_of(kernel: LockedKernel, candidate: Candidate) -> bool:
    return hashlib.sha256(content_of(candidate.record)).hexdigest() == kernel.record


def _by_knobs(kernel: LockedKernel, request: Request) -> Served | StepRejected:
    assert kernel.template is not None
    named = _Named(template=kernel.template, version=kernel.version, knobs=kernel.knobs)
    try:
        schedule = request.fit.by_knobs(named)
        request.check(schedule)
        if request.target.kind.name == "llvm" and not is_by_rule(request, named):
            check_proven(schedule.mod["main"], request.target)
    except Exception as error:  # TVM raises many kinds for knobs that do not fit
        return StepRejected(step="lock", reason=last_line(error, limit=200))
    return Served(step="template", schedule=schedule, rung="template", template=kernel.template)
