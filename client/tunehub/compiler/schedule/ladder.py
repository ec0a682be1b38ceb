"""One function of current TVM: the steps that find a schedule for it, in their order, and what came of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from tunehub.compiler.schedule.attempts import applied_and_checked, is_by_rule, transferred, tried
from tunehub.compiler.schedule.request import (
    DEFAULT_TRANSFERS,
    Choices,
    Outcomes,
    Request,
    Scheduled,
    Served,
    Steps,
    reason_of,
)
from tunehub.compiler.schedule.transfer_sources import Transfers
from tunehub.exceptions import TunehubError
from tunehub.records.lookup import Candidate
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
from tunehub.tir.guard import FaultFoundError, check_function
from tunehub.tir.nodes import is_static, main_module
from tunehub.tir.symbols import typical
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.kernels.cuda.choose import ChosenKernel, RefusedKernel
    from tunehub.kernels.symbolic.schedule import TiledFunction
    from tunehub.options import Precision
    from tunehub.records.lookup import RecordLookup
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc
    from tunehub_registry.evidence import RecordEvidence


def _exact(request: Request) -> Outcomes:
    """The record of this very function, or its ladder."""
    candidate = request.lookup.by_exact(request.exact)
    outcome = None if candidate is None else _unless_rules_are_faster("exact", request, candidate)
    if outcome is not None:
        yield outcome
    yield from _laddered("exact", request, request.exact)


def _anchor(request: Request) -> Outcomes:
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


def _laddered(step: Literal["exact", "anchor"], request: Request, key: str | None) -> Outcomes:
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
        apply = partial(by_ladder, function, request.target, record, partial(by_rule, request))
        schedule = applied_and_checked(step, request, found, against, apply)
        if isinstance(schedule, StepRejected):
            yield schedule
            continue
        times = record.near(typical(function) or ())
        yield Served(
            step=step,
            schedule=schedule,
            rung=found.rung,
            package=found.package,
            run_s=times.run_s,
            default_s=times.default_s,
            record=record,
            sizes=ladder_text(record, request.symbols),
            embedded=found.embedded,
            foreign=found.foreign,
        )


def _instance(request: Request) -> Outcomes:
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


def _transferred_knobs(request: Request) -> Outcomes:
    """Knobs tuned for other shapes, where a template made for the operator fits."""
    return transferred(request, request.transfers.knobs, TEMPLATE) if request.has_expert else ()


def _transferred_traces(request: Request) -> Outcomes:
    """Traces tuned for other static shapes, where no template made for the operator fits."""
    if request.is_symbolic or request.has_expert:
        return ()
    found = transferred(request, request.transfers.traces, META_SCHEDULE)
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


def _default_knobs(request: Request) -> Outcomes:
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
        yield StepRejected(step="template", template=name, reason=reason_of(error))
    else:
        yield Served(step="template", schedule=schedule, rung="template", template=name)


def _tf32(request: Request) -> Outcomes:
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


def _by_rules(request: Request) -> Outcomes:
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
    reason = reason_of(found.error)
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

    def scheduled(self, piece: PrimFunc) -> PrimFunc | None:
        own = self.request
        return Scheduling(piece, own.target, own.lookup, transfers=own.transfers, piece=True).function

    def recorded(self, piece: PrimFunc) -> tuple[PrimFunc, float] | None:
        served, _ = walk(RECORD_STEPS, replace(self.request, mod=main_module(piece)))
        if served is None or served.run_s is None:
            return None
        return served.schedule.mod["main"], served.run_s

    def transferred(self, piece: PrimFunc) -> tuple[PrimFunc, float] | None:
        served, _ = walk((_transferred_traces,), replace(self.request, mod=main_module(piece)))
        if served is None or served.predicted_s is None:
            return None
        return served.schedule.mod["main"], served.predicted_s


def _long_attention(request: Request) -> Outcomes:
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
        yield StepRejected(step="template", template=attention.NAME, reason=reason_of(error))
    else:
        yield Served(step="template", schedule=schedule, rung="template", template=attention.NAME)


def _by_tiles(request: Request) -> Outcomes:
    """Of a function with open axes, tiles of known extents, each scheduled as a function of its own."""
    if not request.is_symbolic:
        return
    against = against_borrowing(request.lookup.measured(LADDER, request.exact))
    if against is not None:
        yield StepRejected(step="template", reason=against)
        return
    from tunehub.kernels.symbolic.schedule import by_tiles  # static functions need none of it

    def scheduled(tile: PrimFunc) -> tuple[PrimFunc | None, Served | None]:
        inner = Scheduling(tile, request.target, request.lookup, transfers=request.transfers)
        return inner.function, inner.served

    try:
        found = by_tiles(request.mod["main"], request.target, scheduled)
    except Exception as error:  # TVM raises many kinds for a schedule that does not fit
        yield StepRejected(step="template", reason=reason_of(error))
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


def by_rule(request: Request, function: PrimFunc) -> PrimFunc | None:
    """A function like that of ``request`` as it is scheduled without a record of its own, if it is."""
    rules = _CUDA_RULES if request.target.kind.name == "cuda" else _CPU_RULES
    served, _ = walk(rules, replace(request, mod=main_module(function)))
    return None if served is None else served.schedule.mod["main"]


def rule_text(request: Request) -> str:
    """The hash of a function as rules schedule it, whatever its names."""
    from tunehub.compiler.schedule.rule_choice import text_hash  # compiles need none of it

    with request.target:
        return text_hash(by_rule(request, request.mod["main"]))


def schedule_module(mod: IRModule, target: Target, lookup: RecordLookup) -> Scheduled:
    """Schedule ``mod``, an IRModule with one PrimFunc ``main``, by the best record of ``lookup`` that applies.

    Order: exact records, then records of the same anchor block. A record that is malformed, illegal here or refused
    by TVM is rejected with its reason; nothing is raised for a bad record.
    """
    request = Request(mod=mod, target=target, lookup=lookup)
    return _scheduled(request, LadderWalk(RECORD_STEPS, request))


def schedule_function(
    function: PrimFunc, target: Target, lookup: RecordLookup, *, transfers: Transfers = DEFAULT_TRANSFERS
) -> tuple[Scheduled, PrimFunc | None]:
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
        checked_later: bool = False,
    ) -> None:
        """Schedules it by the first thing that serves; ``piece`` as of a :class:`Request`; what ``choices`` ask for
        comes first. ``checked_later`` as there, of functions of known shapes."""
        self.original = function
        self.request = Request(
            mod=main_module(function),
            target=target,
            lookup=lookup,
            transfers=transfers,
            precision=precision,
            piece=piece,
            checked_later=checked_later and is_static(function),
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
