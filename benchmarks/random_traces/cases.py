"""One random record at a time, on its way through a client: refused by which check, or served, right or not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

import msgspec

from benchmarks.random_traces.forks import Send, in_fork, limit_cpu
from benchmarks.random_traces.functions import random_function
from benchmarks.random_traces.runs import Runs, agrees
from benchmarks.random_traces.traces import random_knobs, random_trace
from benchmarks.shared.threads_as_loops import threads_as_loops
from tunehub.compiler.schedule import attempts, ladder
from tunehub.compiler.schedule.apply import apply_candidate, apply_exact
from tunehub.compiler.verify.limits import VerifyLimits
from tunehub.compiler.verify.port import ScheduledFunction
from tunehub.compiler.verify.static import StaticVerifier
from tunehub.exceptions import last_line, typed_last_line
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.template_fit import TemplateFit, machine_for, with_short_indices
from tunehub.records.lookup import Candidate, EmptyLookup
from tunehub.report.ladder import StepRejected
from tunehub.tir.cuda.check import fault
from tunehub.tir.guard import GuardError
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import main_module
from tunehub.tir.traces import import_trace
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.target.types import Target

CASES = 20  # of one function
_KNOBS = 0.2  # of the cases, where a template is for the function
RUN_OF_REFUSED = 0.1  # of the refused ones, to see how many are right
_WAYS = (("exact", False), ("exact", False), ("exact", False), ("anchor", True), ("transfer", False))
_CPU_SECONDS, _UNCHECKED_CPU_SECONDS = 100, 10
_DONE = "done"
_SCOPES = r"local|shared.*|warp|wmma.*|m16n8k8.*"
Made: TypeAlias = "tuple[str, tuple[Any, bool], Any]"  # form; rung and whether by its anchor; trace or knobs


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record and what came of it. ``refused``: by which check, for which ``reason``; ``right``: whether a refused
    schedule computes the same without the checks, or one that serves on a GPU with loops in place of threads; None
    where that was not tried, or failed for a ``reason``. ``bad``: what must not happen."""

    target: str
    kind: str
    seed: int
    number: int
    form: str = ""
    rung: str = ""
    refused: str | None = None
    reason: str | None = None
    right: bool | None = None
    bad: str | None = None
    record: Any = None  # of a bad case


@dataclass(frozen=True)
class Unit:
    """A function and its cases; ``runs``: code for the target runs here."""

    name: str
    target: Target
    kind: str
    seed: int
    runs: bool

    @cached_property
    def mod(self) -> Any:
        """The function without a schedule."""
        return random_function(self.kind, self.seed)

    @cached_property
    def fit(self) -> TemplateFit:
        """The template for it."""
        return TemplateFit(self.mod, self.target)

    @cached_property
    def beside(self) -> Runs | None:
        """What runs schedules beside the plain loops, those for GPUs with loops in place of threads; None where code
        for the target does not run here."""
        if self.runs:
            return Runs(self.mod["main"], self.target)
        return Runs(self.mod["main"], _emulator()) if self._is_cuda else None

    def cases(self) -> Iterator[Case]:
        """All of them. A fork tries one after the other; what ends it costs the case at hand, and the next fork goes
        on behind that."""
        _ = self.beside, self.fit.match  # which all forks have
        first = 0
        while first < CASES:
            sent = in_fork(partial(self._try_from, first))
            while _DONE in sent.of.get(first, {}):
                yield self._case(first, sent.of[first], None)
                first += 1
            if first < CASES:
                yield self._case(first, sent.of.get(first, {}), sent.lost or "it ended early")
                first += 1

    def _try_from(self, first: int, send: Send) -> None:
        for number in range(first, CASES):
            limit_cpu(_CPU_SECONDS)
            self._try(number, partial(send, number))
            send(number, _DONE, None)

    def _try(self, number: int, send: Callable[[str, Any], None]) -> None:
        made = self._record(number)
        send("made", made)
        with _noted_errors() as errors:
            found = ladder.schedule_module(self.mod, self.target, _Lookup(_candidate(self, *made)))
        if found.served is None:
            send("refused", _why_refused(found.rejected, errors))
            return
        scheduled = found.served.schedule.mod["main"]
        if not self.runs:
            if (unproven := self._unproven(scheduled)) is not None:
                send("refused", ("simulation", unproven))
                return
            send("serves", None)
            _build(scheduled, self.target)
            if self._is_cuda:
                self._try_as_loops(scheduled, send)
            send("served", None)
            return
        assert self.beside is not None
        send("verifying", None)
        began = time.process_time()
        result = self.beside.verified(scheduled)
        took = time.process_time() - began
        if took > VerifyLimits().run_s:
            send("refused", ("run", f"it took {took:.0f} s"))
        elif not agrees(result):
            send("refused", ("run", result.error or f"differs by {result.difference}"))
        else:
            send("serves", None)
            send("served", self.beside.what_is_wrong(result.tolerance))

    def _try_as_loops(self, scheduled: Any, send: Callable[[str, Any], None]) -> None:
        """Compute what a GPU's schedule does, one thread after the other."""
        assert self.beside is not None
        result = self.beside.verified(threads_as_loops(main_module(scheduled), scopes=_SCOPES)["main"])
        if result.error is not None:
            send("not run", result.error)
        elif not agrees(result):
            send("wrong", f"its threads, one after the other, differ by {result.difference}")
        else:
            wrong = self.beside.what_is_wrong(result.tolerance)
            send("right" if wrong is None else "wrong", True if wrong is None else wrong)

    @property
    def _is_cuda(self) -> bool:
        return str(self.target.kind.name) == "cuda"

    def _unproven(self, scheduled: Any) -> str | None:
        """Why a GPU's schedule does not serve where it cannot be run."""
        if not self._is_cuda:
            return None
        asked = ScheduledFunction(exact="", original=self.mod["main"], scheduled=scheduled, foreign=True)
        refusal = StaticVerifier(self.target, fault, "it is for no device here").verdict(asked).refusal
        return None if refusal is None else refusal.reason

    def _record(self, number: int) -> Made:
        """The form of a record, how it is found, and what it says."""
        rng = self._random(number)
        match = self.fit.match if rng.random() < _KNOBS else None
        if match is not None:
            own = match.template.default_knobs(match.workload, machine_for(self.target))
            knobs = random_knobs(msgspec.to_builtins(own), rng)
            return "knobs", ("exact", False), (match.template.NAME, match.template.VERSION, knobs)
        return "trace", rng.choice(_WAYS), random_trace(self.mod, rng, cuda=self._is_cuda)

    def _random(self, *of: Any) -> random.Random:
        return random.Random(" ".join(map(str, (self.kind, self.seed, *of))))

    def _case(self, number: int, sent: dict[str, Any], lost: str | None) -> Case:
        """What a fork ``sent`` of a case, and, of some that were refused, whether they are right."""
        case = Case(target=self.name, kind=self.kind, seed=self.seed, number=number)
        if "made" not in sent:  # TVM ends while steps are tried at random: what a record of them does is not known
            return msgspec.structs.replace(case, refused="not made", reason=lost)
        form, (rung, _), _content = made = sent["made"]
        case = _judged(msgspec.structs.replace(case, form=form, rung=rung), sent, lost)
        if case.refused in (None, "run") or self._random(number, "refused").random() >= RUN_OF_REFUSED:
            return case
        return msgspec.structs.replace(case, right=self._is_right(_candidate(self, *made)))

    def _is_right(self, candidate: Candidate) -> bool | None:
        """Whether a refused schedule computes the same; None where it does not run here, or there is none. In a fork of
        its own: nobody promised that it leaves memory alone."""
        if not self.runs:
            return None
        found = in_fork(partial(self._try_unchecked, candidate))
        return found.of.get(0, {}).get("right", None if found.lost is None else False)

    def _try_unchecked(self, candidate: Candidate, send: Send) -> None:
        limit_cpu(_UNCHECKED_CPU_SECONDS)
        scheduled = _unchecked(self, candidate)
        if scheduled is not None and self.beside is not None:
            send(0, "right", self.beside.is_right(scheduled))


class _Lookup(EmptyLookup):
    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate

    def by_exact(self, _key: str) -> Candidate:
        return self._candidate


def _emulator() -> Any:
    """The CPU whose loops stand for threads."""
    import tvm

    return tvm.target.Target({"kind": "llvm", "num-cores": 2})


def _candidate(unit: Unit, form: str, way: tuple[Any, bool], content: Any) -> Candidate:
    rung, anchored = way
    common: dict[str, Any] = {
        "exact": workload_key(unit.mod), "op": unit.kind, "run_s": (1e-9,), "default_s": 1.0, "source": "random"
    }  # fmt: skip
    if form == "trace":
        return Candidate(record=ScheduleRecord(**common, trace=content), rung=rung, package="r 1", anchored=anchored)
    template, version, knobs = content
    record = TemplateRecord(**common, template=template, version=version, knobs=knobs)
    return Candidate(record=record, rung=rung, package="r 1")


def _judged(case: Case, sent: dict[str, Any], lost: str | None) -> Case:
    """``case`` with what its fork sent; ``lost``: how that ended."""
    if "refused" in sent:
        check, reason = sent["refused"]
        return msgspec.structs.replace(case, refused=check, reason=reason, right=False if check == "run" else None)
    if "verifying" in sent and "serves" not in sent:
        return msgspec.structs.replace(case, refused="run", reason=lost, right=False)
    bad = sent.get("served") or sent.get("wrong")
    if lost is not None:
        bad = f"{'serving' if 'serves' in sent else 'checking'} ended: {lost}"
    record = None if bad is None else sent["made"][2]
    return msgspec.structs.replace(case, bad=bad, record=record, right=sent.get("right"), reason=sent.get("not run"))


@contextmanager
def _noted_errors() -> Iterator[list[Exception]]:
    """What applying records raises inside the block: the ladder keeps texts alone."""
    errors: list[Exception] = []

    def noted(*arguments: Any) -> Any:
        try:
            return apply_candidate(*arguments)
        except Exception as error:
            errors.append(error)
            raise

    with patch.object(attempts, "apply_candidate", noted):
        yield errors


def _why_refused(rejected: Sequence[StepRejected], errors: list[Exception]) -> tuple[str, str]:
    """By which check, and what it says."""
    for each in rejected:
        if each.refusal is not None:
            return "static", each.refusal.reason or ""
    for error in errors:
        if isinstance(error, GuardError):
            return "guard", last_line(error)
        return ("knobs", last_line(error)) if isinstance(error, KnobError) else ("TVM", typed_last_line(error)[:160])
    return "ladder", "; ".join(each.reason for each in rejected)


def _unchecked(unit: Unit, candidate: Candidate) -> Any | None:
    """The schedule of an exact record without the checks; None where there is none."""
    record = candidate.record
    try:
        if isinstance(record, TemplateRecord):
            match = unit.fit.match
            assert match is not None
            from tunehub.kernels.cpu import read_knobs

            knobs = read_knobs(match.template.KNOBS, record.knobs)
            return match.template.apply(with_short_indices(unit.mod), match.workload, knobs).mod["main"]
        if candidate.rung != "exact":
            return None
        return apply_exact(unit.mod, import_trace(record.trace)).mod["main"]
    except Exception:
        return None


def _build(scheduled: Any, target: Target) -> Any:
    import tvm

    return tvm.tirx.build(main_module(scheduled), target=target)
