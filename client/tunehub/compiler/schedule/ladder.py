"""One function of current TVM: the steps that find a schedule for it, in their order, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tunehub.compiler.schedule.apply import apply_candidate
from tunehub.compiler.schedule.transfer_sources import Strategy, Transfers, predicted_s, promising
from tunehub.exceptions import TunehubError, last_line
from tunehub.kernels.template_fit import TemplateFit
from tunehub.records.lookup import Candidate, content_of
from tunehub.records.never_worse import (
    against_borrowing,
    against_default_knobs,
    against_judged,
    against_ladder,
    against_promise,
    against_record,
    against_transfer,
    stale_text,
)
from tunehub.registries.key_scheme import LADDER, META_SCHEDULE, TEMPLATE
from tunehub.report.ladder import LadderWalk, Refusal, Step, StepRejected, walk
from tunehub.tir.cpu_check import check_proven
from tunehub.tir.cuda.known_faults import made_of
from tunehub.tir.guard import FaultFoundError, check_function, check_simulated
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import main_module
from tunehub.tir.operator_class import anchor_class_of, class_of
from tunehub.tir.symbols import is_symbolic, symbol_name, symbols_of, typical, typical_instance
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.compiler.schedule.rule_choice import RuleChoice
    from tunehub.kernels.cpu import NamedKnobs
    from tunehub.kernels.cuda.choose import ChosenKernel, Offer, RefusedKernel
    from tunehub.kernels.symbolic.schedule import TiledFunction
    from tunehub.options import Precision
    from tunehub.records.lookup import FoundLadder, Neighbour, RecordLookup, Rung
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc, ScheduledModule
    from tunehub_registry.any_record import AnyRecord
    from tunehub_registry.evidence import RecordEvidence
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
    ``piece``: it becomes a part of another function, and is not run by itself before that serves."""

    mod: IRModule
    target: Target
    lookup: RecordLookup
    transfers: Transfers = DEFAULT_TRANSFERS
    precision: Precision = "float32"
    piece: bool = False

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
    def rule_text(self) -> str:
        """The hash of the function as rules schedule it, whatever its names."""
        from tunehub.compiler.schedule.rule_choice import text_hash  # compiles need none of it

        with self.target:
            return text_hash(self.by_rule(self.mod["main"]))

    @cached_property
    def offers(self) -> list[Offer]:
        """What rules for CUDA have for the function, of known shapes; to be used up once."""
        from tunehub.kernels.cuda.choose import offers  # CPUs need none of it
        from tunehub.kernels.cuda.rules import RULES
        from tunehub.kernels.devices.known import device_of

        return offers(RULES, self.mod, self.target, device_of(self.target))

    def check(self, schedule: ScheduledModule) -> None:
        """Raise what speaks against a ``schedule`` of the function."""
        check_function(schedule.mod["main"], self.mod["main"], self.target)

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

    def by_rule(self, function: PrimFunc) -> PrimFunc | None:
        """A function like this one as it is scheduled without a record of its own, if it is."""
        request = replace(self, mod=main_module(function))
        served, _ = walk(_CUDA_RULES if self.target.kind.name == "cuda" else _CPU_RULES, request)
        return None if served is None else served.schedule.mod["main"]

    @cached_property
    def has_expert(self) -> bool:
        """Whether a template made for its operator recognises the function."""
        try:
            match = self.fit.match
        except Exception:  # what it is is said when default knobs are tried
            return False
        return match is not None and match.template.NAME not in GENERAL_TEMPLATES


_Outcomes = Iterable[Served | StepRejected]
Steps = tuple[Callable[[Request], _Outcomes], ...]


class Choices(Protocol):
    """What a lock file asks for (:mod:`tunehub.compiler.schedule.locked`)."""

    def steps(self, request: Request, usual: Steps) -> Steps:
        """The steps for a workload, of which ``usual`` are those without a lock file."""


def _exact(request: Request) -> _Outcomes:
    """The record of this very function, or its ladder."""
    candidate = request.lookup.by_exact(request.exact)
    outcome = None if candidate is None else _unless_rules_are_faster("exact", request, candidate)
    if outcome is not None:
        yield outcome
    yield from _laddered("exact", request, request.exact)


def _anchor(request: Request) -> _Outcomes:
    """The records of functions with the same anchor block."""
    for candidate in request.lookup.by_anchor(request.anchor) if request.anchor else ():
        tuner = TEMPLATE if isinstance(candidate.record, TemplateRecord) else META_SCHEDULE
        against = against_borrowing(request.lookup.measured(tuner, request.exact))
        if against is not None:
            yield StepRejected(step="anchor", reason=against)
        else:
            outcome = _unless_rules_are_faster("anchor", request, candidate)
            if outcome is not None:
                yield outcome
    yield from _laddered("anchor", request, request.anchor)


def _unless_rules_are_faster(step: Step, request: Request, candidate: Candidate) -> Served | StepRejected | None:
    """What a record gives, rejected where what rules have for this very function today is known to be faster; None
    where the step ``exact`` has said so. A user's own records, and what was measured here, stay."""
    judged = _judged(request, candidate)
    now = None if judged is None else request.rule_choice
    if judged is None or now is None:
        return _unless_split_k_is_faster(step, request, candidate)
    promised_s = now.seconds if _is_of_this_device(request, candidate) else None
    against = against_judged(judged, now.hash, promised_s)
    if against is not None and step == "exact":
        return StepRejected(step=step, reason=against, package=candidate.package, record=candidate.record.op)
    if against is not None:
        return None
    outcome, stale = _unless_split_k_is_faster(step, request, candidate), stale_text(judged, now.hash, promised_s)
    return outcome if isinstance(outcome, StepRejected) else replace(outcome, stale=stale)


def _judged(request: Request, candidate: Candidate) -> RecordEvidence | None:
    """The evidence on a package's record of this very function that was judged beside what rules had then; None also
    where today's rules have the very schedule."""
    record, knobs = candidate.record, isinstance(candidate.record, TemplateRecord)
    if record.exact != request.exact or candidate.rung in ("user", "measured"):
        return None
    found = request.lookup.measured(TEMPLATE if knobs else META_SCHEDULE, record.exact)
    if found is None or found.package != candidate.package or not found.evidence.rule:
        return None
    as_rules = isinstance(record, TemplateRecord) and is_by_rule(request, record)
    return None if as_rules else found.evidence


def _is_of_this_device(request: Request, candidate: Candidate) -> bool:
    """Whether a package's times are of the GPU that rules promise times for: those of another one say nothing of this
    one. On CPUs rules promise what the machine's own profile says."""
    if request.target.kind.name != "cuda":
        return True
    from tunehub.kernels.devices.known import device_of  # CPUs need none of it
    from tunehub.target.descriptors import as_tvm_target

    try:
        measured_on = as_tvm_target(candidate.package.partition(" ")[0])
    except TunehubError:  # a package of a name that says no GPU
        return False
    return device_of(measured_on).name == device_of(request.target).name


def _unless_split_k_is_faster(step: Step, request: Request, candidate: Candidate) -> Served | StepRejected:
    """What a record gives, rejected where split-K by rule promises less than it took for its publisher: MetaSchedule
    has no such tiles. A user's own records, what was measured here, and records of another GPU stay."""
    promised = None if candidate.rung in ("user", "measured") else request.split_k_s
    if promised is None or not _is_of_this_device(request, candidate):
        return tried(step, request, candidate)
    against = against_promise(candidate.record.mean_s, promised)
    if against is None:
        return tried(step, request, candidate)
    return StepRejected(step=step, reason=against, package=candidate.package, record=candidate.record.op)


def _laddered(step: Literal["exact", "anchor"], request: Request, key: str | None) -> _Outcomes:
    """The ladders of a symbolic function."""
    if not request.is_symbolic or key is None:
        return
    from tunehub.compiler.schedule.size_ladder import by_ladder, ladder_text  # static functions need none of it

    function = request.mod["main"]
    for found in request.lookup.ladders(step, key):
        record = found.record
        if step == "anchor" and record.exact == request.exact:
            continue
        against = against_ladder(record, borrowed=step == "anchor")
        apply = partial(by_ladder, function, request.target, record, request.by_rule)
        applied = _applied(step, request, found, against, apply)
        if isinstance(applied, StepRejected):
            yield applied
            continue
        times = record.near(typical(function) or ())
        yield Served(
            step=step,
            schedule=applied,
            rung=found.rung,
            package=found.package,
            run_s=times.run_s,
            default_s=times.default_s,
            record=record,
            sizes=ladder_text(record, request.symbols),
            embedded=found.embedded,
            foreign=found.foreign,
        )


def _instance(request: Request) -> _Outcomes:
    """A ladder that was measured at the sizes of this static function: the knobs of its step for them."""
    if request.is_symbolic:
        return
    for found in request.lookup.ladders("instance", request.exact):
        from tunehub.compiler.schedule.size_ladder import static_record

        record = static_record(found.record, request.exact, request.fit)
        if record is None:
            continue
        against = against_borrowing(request.lookup.measured(TEMPLATE, request.exact))
        against = against or against_record(record, borrowed=True)
        if against is not None:
            yield StepRejected(step="transfer", reason=against, package=found.package, record=record.op)
            continue
        candidate = Candidate(
            record=record, rung=found.rung, package=found.package, embedded=found.embedded, foreign=found.foreign
        )
        yield tried("transfer", request, candidate, record.mean_s)


def _transferred_knobs(request: Request) -> _Outcomes:
    """Knobs tuned for other shapes, where a template made for the operator fits."""
    return _transferred(request, request.transfers.knobs, TEMPLATE) if request.has_expert else ()


def _transferred_traces(request: Request) -> _Outcomes:
    """Traces tuned for other static shapes, where no template made for the operator fits."""
    if request.is_symbolic or request.has_expert:
        return ()
    found = _transferred(request, request.transfers.traces, META_SCHEDULE)
    return map(partial(_unless_rule_is_faster, request), found) if request.target.kind.name == "cuda" else found


def _unless_rule_is_faster(request: Request, found: Served | StepRejected) -> Served | StepRejected:
    """``found`` with the time that its tile should take here, rejected where the rule for CUDA promises much less.

    Rules come first: 42 functions in float32 that they and transferred records served took 1.34 times as long by these
    on an H200 (docs/adr/0024)."""
    if isinstance(found, StepRejected):
        return found
    from tunehub.kernels.cuda.adapted import adapted_s  # CPUs need none of it
    from tunehub.kernels.devices.known import device_of

    expected_s = adapted_s(request.mod, found.schedule.trace, device_of(request.target)) or found.predicted_s
    rule_s = request.without_record_s
    against = against_transfer(expected_s, rule_s) if expected_s and rule_s else None
    if against is not None:
        record = None if found.record is None else found.record.op
        return StepRejected(step="transfer", reason=against, package=found.package, record=record)
    return replace(found, predicted_s=expected_s)


def _default_knobs(request: Request) -> _Outcomes:
    """The template that fits, with the knobs of its own rule, where these promise to beat TVM's default."""
    name, measured = None, request.lookup.measured(TEMPLATE, request.exact)
    try:
        match = request.fit.match
        if match is None:
            return
        name = match.template.NAME
        against = None if measured is None else against_default_knobs(measured, name)
        if measured is not None and against is not None:
            default_s = measured.evidence.default_s
            yield StepRejected(step="template", template=name, reason=against, default_s=default_s)
            return
        schedule = request.fit.by_promising_default(match)
        check_function(schedule.mod["main"], request.mod["main"], request.target)
    except Exception as error:  # TVM raises many kinds for a schedule that does not fit
        yield StepRejected(step="template", template=name, reason=_reason(error))
    else:
        yield Served(step="template", schedule=schedule, rung="template", template=name)


def _tf32(request: Request) -> _Outcomes:
    """Products in float32 on tensor cores, where that is asked for and should beat what computes in float32."""
    if request.precision != "tf32" or request.is_symbolic:
        return
    from tunehub.kernels.cuda.choose import choose, likeliest, offers  # CPUs need none of it
    from tunehub.kernels.cuda.rules import TF32_RULES
    from tunehub.kernels.devices.known import device_of

    exact = request.lookup.by_exact(request.exact)
    known = [request.without_record_s, None if exact is None else exact.record.mean_s]
    found = offers(TF32_RULES, request.mod, request.target, device_of(request.target))
    best = likeliest(found)
    if best is None or best.place_s < min(filter(None, known), default=math.inf):
        yield from map(_of_rule, choose(found, request.check))


def _by_rules(request: Request) -> _Outcomes:
    """The kernel for CUDA that should take least; with open axes those of the first rule that has some."""
    from tunehub.kernels.cuda.choose import choose, choose_open  # CPUs need none of it
    from tunehub.kernels.cuda.rules import OPEN_RULES

    if request.is_symbolic:
        found = choose_open(OPEN_RULES, request.mod, request.target, _Pieces(replace(request, piece=True)))
    else:
        found = choose(request.offers, request.check)
    for outcome in map(_of_rule, found):
        against = _against_rule(request, outcome.template) if isinstance(outcome, Served) else None
        yield outcome if against is None else StepRejected(step="template", template=outcome.template, reason=against)


def _against_rule(request: Request, name: str | None) -> str | None:
    """What was measured of the function that speaks against a kernel without a record."""
    against = against_borrowing(request.lookup.measured(META_SCHEDULE, request.exact))
    tuned = request.lookup.measured(TEMPLATE, request.exact)
    return against or (None if tuned is None or name is None else against_default_knobs(tuned, name))


def _of_rule(found: ChosenKernel | RefusedKernel) -> Served | StepRejected:
    from tunehub.kernels.cuda.choose import RefusedKernel  # CPUs need none of it

    name = found.rule.NAME
    if not isinstance(found, RefusedKernel):
        return Served(
            step="template",
            schedule=found.schedule,
            rung="template",
            template=name,
            predicted_s=found.seconds,
            sizes=_sizes(getattr(found.schedule, "measured", ())),
            tile=getattr(found, "tile", None),
        )
    reason = _reason(found.error)
    if isinstance(found.error, FaultFoundError):
        return StepRejected(step="template", template=name, refusal=Refusal(check="static", reason=reason))
    return StepRejected(step="template", template=name, reason=reason)


def _sizes(measured: tuple[int, ...]) -> str | None:
    """What the report says of records that serve pieces."""
    return f"records for pieces of {', '.join(map(str, sorted({*measured})))}, else by rule" if measured else None


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Static functions of which a symbolic one is made, for :func:`tunehub.kernels.cuda.symbolic.schedule.by_size`."""

    request: Request

    def scheduled(self, piece: PrimFunc) -> Any | None:
        own = self.request
        return Scheduling(piece, own.target, own.lookup, transfers=own.transfers, piece=True).function

    def recorded(self, piece: PrimFunc) -> tuple[Any, float] | None:
        served, _ = walk(RECORD_STEPS, replace(self.request, mod=main_module(piece)))
        if served is None or served.run_s is None:
            return None
        return served.schedule.mod["main"], served.run_s

    def transferred(self, piece: PrimFunc) -> tuple[Any, float] | None:
        served, _ = walk((_transferred_traces,), replace(self.request, mod=main_module(piece)))
        if served is None or served.predicted_s is None:
            return None
        return served.schedule.mod["main"], served.predicted_s


def _long_attention(request: Request) -> _Outcomes:
    """Attention of known lengths as one kernel."""
    from tunehub.kernels.cpu import attention  # GPUs need none of it

    if request.is_symbolic or not attention.is_attention(request.mod):
        return
    from tunehub.kernels.template_fit import machine_for

    lacking = attention.lacks(request.mod, request.target)
    if lacking is not None:
        yield StepRejected(step="template", template=attention.NAME, reason=lacking)
        return
    try:
        schedule = attention.schedule_attention(request.mod, machine_for(request.target))
    except Exception as error:  # TVM raises many kinds for a schedule that does not fit
        yield StepRejected(step="template", template=attention.NAME, reason=_reason(error))
    else:
        yield Served(step="template", schedule=schedule, rung="template", template=attention.NAME)


def _by_tiles(request: Request) -> _Outcomes:
    """Of a function with open axes, tiles of known extents, each scheduled as a function of its own."""
    if not request.is_symbolic:
        return
    against = against_borrowing(request.lookup.measured(LADDER, request.exact))
    if against is not None:
        yield StepRejected(step="template", reason=against)
        return
    from tunehub.kernels.symbolic.schedule import by_tiles  # static functions need none of it

    def scheduled(tile: PrimFunc) -> tuple[Any | None, Any | None]:
        inner = Scheduling(tile, request.target, request.lookup, transfers=request.transfers)
        return inner.function, inner.served

    try:
        found = by_tiles(request.mod["main"], request.target, scheduled)
    except Exception as error:  # TVM raises many kinds for a schedule that does not fit
        yield StepRejected(step="template", reason=_reason(error))
        return
    if found is not None:
        yield _of_tiles(found)


def _of_tiles(schedule: TiledFunction) -> Served:
    """What serves a function in tiles, whose record was not measured for more than one."""
    tile: Served | None = schedule.tile
    if tile is None or tile.record is None:
        return Served(step="template", schedule=schedule, rung="template", template=schedule.template)
    return replace(
        tile,
        step="transfer",
        schedule=schedule,
        rung="transfer",
        run_s=None,
        default_s=None,
        source=tile.source or tile.record.op,
    )


RECORD_STEPS = (_exact, _anchor)
_CPU_RULES = (_instance, _long_attention, _by_tiles, _transferred_knobs, _transferred_traces, _default_knobs)
_CUDA_RULES = (_by_rules, _transferred_traces)
CPU_STEPS = (*RECORD_STEPS, *_CPU_RULES)
CUDA_STEPS = (_tf32, *RECORD_STEPS, *_CUDA_RULES)


def schedule_module(mod: IRModule, target: Target, lookup: RecordLookup) -> Scheduled:
    """Schedule ``mod``, an IRModule with one PrimFunc ``main``, by the best record of ``lookup`` that applies.

    Order: exact records, then records of the same anchor block. A record that is malformed, illegal here or refused
    by TVM is rejected with its reason; nothing is raised for a bad record.
    """
    request = Request(mod=mod, target=target, lookup=lookup)
    return _scheduled(request, LadderWalk(RECORD_STEPS, request))


def schedule_function(
    function: PrimFunc, target: Target, lookup: RecordLookup, *, transfers: Transfers = DEFAULT_TRANSFERS
) -> tuple[Scheduled, Any | None]:
    """Schedule a PrimFunc under any name by the steps for the kind of ``target``: those of :func:`schedule_module`,
    then a record for other shapes as ``transfers`` says, then a template with default knobs or the rule for CUDA.

    Also returns the function scheduled, its name kept, or None.
    """
    scheduling = Scheduling(function, target, lookup, transfers=transfers)
    return scheduling.outcome, scheduling.function


class Scheduling:
    """A PrimFunc on its way down the ladder, as :func:`schedule_function`: what serves may be refused, and the next
    thing that serves takes its place."""

    def __init__(
        self,
        function: PrimFunc,
        target: Target,
        lookup: RecordLookup,
        *,
        transfers: Transfers = DEFAULT_TRANSFERS,
        precision: Precision = "float32",
        piece: bool = False,
        choices: Choices | None = None,
    ) -> None:
        """Schedules it by the first thing that serves; ``piece`` as of a :class:`Request`; what ``choices`` ask for
        comes first."""
        self.original = function
        self.request = Request(
            mod=main_module(function),
            target=target,
            lookup=lookup,
            transfers=transfers,
            precision=precision,
            piece=piece,
        )
        steps: Steps = CUDA_STEPS if target.kind.name == "cuda" else CPU_STEPS
        steps = steps if choices is None else choices.steps(self.request, steps)
        self._walk: LadderWalk[Served] = LadderWalk(steps, self.request)

    def under_name_of(self, function: PrimFunc) -> Scheduling:
        """This one, for ``function``, which has another name."""
        self.original = function
        return self

    @property
    def served(self) -> Served | None:
        """What serves now, if anything does."""
        return self._walk.served

    @property
    def outcome(self) -> Scheduled:
        """What serves now, and what was rejected."""
        return _scheduled(self.request, self._walk)

    @property
    def function(self) -> PrimFunc | None:
        """The function with the schedule that serves now, its name kept; None without any."""
        if self.served is None:
            return None
        scheduled = self.served.schedule.mod["main"]
        symbol = self.original.attrs.get("global_symbol") if self.original.attrs else None
        if symbol is None:
            return scheduled.without_attr("global_symbol")
        return scheduled.with_attr("global_symbol", symbol)

    def refuse(self, refusal: Refusal) -> StepRejected:
        """Refuse what serves now, and go on down the ladder. Returns what is said of it."""
        served = self.served
        assert served is not None
        rejected = StepRejected(
            step=served.step,
            package=served.package,
            record=None if served.record is None else served.record.op,
            template=served.template,
            refusal=refusal,
        )
        self._walk.refuse(rejected)
        return rejected


def _scheduled(request: Request, walked: LadderWalk[Served]) -> Scheduled:
    served = walked.served
    anchor = None if served is not None and served.step == "exact" else request.anchor
    return Scheduled(exact=request.exact, anchor=anchor, served=served, rejected=walked.rejected)


def _transferred(request: Request, strategy: Strategy | None, tuner: str) -> Iterator[Served | StepRejected]:
    """The records of the same operator class that are worth it, adapted."""
    try:
        chosen = _chosen(request, strategy, knobs=tuner == TEMPLATE)
    except TunehubError:
        raise  # strict mode
    except Exception as error:  # a strategy or a class that fails must not cost the steps that follow
        yield StepRejected(step="transfer", reason=f"records for other shapes: {_reason(error)}")
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


def tried(step: Step, request: Request, candidate: Candidate, expected_s: float | None = None) -> Served | StepRejected:
    """What applying a record gives; ``expected_s``: of a record for other shapes, whose own times say little here."""
    record, moved = candidate.record, step == "transfer"
    against = None if moved else against_record(record, borrowed=candidate.anchored)
    apply = partial(apply_candidate, request.mod, candidate, request.target, request.fit)
    by_rule = isinstance(record, TemplateRecord) and is_by_rule(request, record)
    applied = _applied(step, request, candidate, against, apply, proven=by_rule)
    if isinstance(applied, StepRejected):
        return applied
    return Served(
        step=step,
        schedule=applied,
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


def _applied(
    step: Step,
    request: Request,
    found: Candidate | FoundLadder,
    against: str | None,
    apply: Callable[[], Any],
    *,
    proven: bool = False,
) -> Any:
    """The schedule by a record that ``apply`` gives, or what speaks against it, a StepRejected. Those of embedded
    packages were proven before they were embedded; ``proven``: the schedule is one that needs no record."""
    record = found.record
    try:
        with made_of(content_of(record)):
            if against is None:
                schedule = apply()
                if request.target.kind.name == "llvm" and not (found.embedded or proven):
                    check_proven(schedule.mod["main"], request.target)
                elif request.piece and found.foreign:
                    check_simulated(schedule.mod["main"], request.target)
                return schedule
    except FaultFoundError as error:
        refusal = Refusal(check="static", reason=_reason(error))
        return StepRejected(step=step, package=found.package, record=record.op, refusal=refusal)
    except Exception as error:  # TVM raises many kinds for a record that does not fit
        against = _reason(error)
    return StepRejected(step=step, reason=against or "", package=found.package, record=record.op)


def _reason(error: Exception) -> str:
    return last_line(error, limit=_REASON_CHARACTERS)
