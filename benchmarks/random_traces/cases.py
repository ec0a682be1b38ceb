"""One random record at a time, on its way through a client: refused by which check, or served, right or not."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from benchmarks.random_traces.forks import LOST, Send, in_fork
from benchmarks.random_traces.functions import random_function
from benchmarks.random_traces.traces import random_knobs, random_trace
from tunehub.compiler.schedule import ladder
from tunehub.compiler.schedule.apply import apply_candidate, apply_exact
from tunehub.compiler.verify.inputs import apart, arrays_for, random_numbers, unwritten, written
from tunehub.compiler.verify.limits import VerifyLimits
from tunehub.compiler.verify.session import VerifySession
from tunehub.exceptions import last_line, typed_last_line
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.template_fit import TemplateFit, machine_for, with_short_indices
from tunehub.records.lookup import Candidate, EmptyLookup
from tunehub.tir.guard import FaultFoundError, GuardError
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import buffer_shapes, main_module
from tunehub.tir.traces import import_trace
from tunehub.tir.workload import workload_text
from tunehub_registry.record import ScheduleRecord
from tunehub_registry.template_record import TemplateRecord

CASES = 20  # of one function
_KNOBS = 0.2  # of the cases, where a template is for the function
_WAYS = (("exact", False), ("exact", False), ("exact", False), ("anchor", True), ("transfer", False))
_GUARD_BYTES = 1 << 16  # on both sides of an output
_ALIGNMENT = 64


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record and what came of it. ``refused``: by which check, for which ``reason``; ``right``: whether a refused
    schedule computes the same without the checks, None where it was not run. ``bad``: what must not happen."""

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
    target: Any
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
    def plain(self) -> Any:
        """What TVM makes of it as it is."""
        return _build(self.mod["main"], self.target)

    def cases(self) -> Iterator[Case]:
        """All of them, each tried in a fork."""
        session = VerifySession(str(self.target))
        if self.runs:
            session.warm_up()
            session.refer(workload_text(self.mod["main"]))
            _ = self.plain  # which all forks have
        for number in range(CASES):
            yield self._case(number, session)

    def _case(self, number: int, session: VerifySession) -> Case:
        case = Case(target=self.name, kind=self.kind, seed=self.seed, number=number)
        made = in_fork(lambda send: send("made", self._record(number)))
        if "made" not in made:  # TVM ends while steps are tried at random: what a record of them does is not known
            return msgspec.structs.replace(case, refused="not made", reason=str(made.get(LOST)))
        form, (rung, anchored), content = made["made"]
        case = msgspec.structs.replace(case, form=form, rung=rung)
        sent = in_fork(lambda send: self._try(_candidate(self, form, rung, anchored, content), session, send))
        return _judged(case, sent, content)

    def _record(self, number: int) -> tuple[str, tuple[str, bool], Any]:
        """The form of a record, how it is found, and what it says."""
        rng = random.Random(f"{self.kind} {self.seed} {number}")
        match = self.fit.match if rng.random() < _KNOBS else None
        if match is not None:
            own = match.template.default_knobs(match.workload, machine_for(self.target))
            knobs = random_knobs(msgspec.to_builtins(own), rng)
            return "knobs", ("exact", False), (match.template.NAME, match.template.VERSION, knobs)
        return "trace", rng.choice(_WAYS), random_trace(self.mod, rng, cuda=self.target.kind.name == "cuda")

    def _try(self, candidate: Candidate, session: VerifySession, send: Send) -> None:
        found = ladder.schedule_module(self.mod, self.target, _Lookup(candidate))
        if found.served is None:
            send("refused", _why_refused(self, candidate))
            if self.runs and (scheduled := _unchecked(self, candidate)) is not None:
                send("right", _is_right(session, scheduled))
            return
        scheduled = found.served.schedule.mod["main"]
        if not self.runs:
            send("serves", None)
            _build(scheduled, self.target)
            send("served", None)
            return
        send("verifying", None)
        began = time.process_time()
        result = session.judge(workload_text(scheduled))
        took = time.process_time() - began
        if took > VerifyLimits().run_s:
            send("refused", ("run", f"it took {took:.0f} s"))
            return
        if result.error is not None or not (result.difference or 0.0) <= result.tolerance:
            send("refused", ("run", result.error or f"differs by {result.difference}"))
            return
        send("serves", None)
        send("served", _what_is_wrong(self, scheduled, result.tolerance))


class _Lookup(EmptyLookup):
    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate

    def by_exact(self, _key: str) -> Candidate:
        return self._candidate


def _candidate(unit: Unit, form: str, rung: Any, anchored: bool, content: Any) -> Candidate:
    common: dict[str, Any] = {
        "exact": workload_key(unit.mod), "op": unit.kind, "run_s": (1e-9,), "default_s": 1.0, "source": "random"
    }  # fmt: skip
    if form == "trace":
        return Candidate(record=ScheduleRecord(**common, trace=content), rung=rung, package="r 1", anchored=anchored)
    template, version, knobs = content
    record = TemplateRecord(**common, template=template, version=version, knobs=knobs)
    return Candidate(record=record, rung=rung, package="r 1")


def _judged(case: Case, sent: dict[str, Any], content: Any) -> Case:
    """``case`` with what its fork sent."""
    lost, bad = sent.get(LOST), None
    if "refused" in sent:
        check, reason = sent["refused"]
        right = sent.get("right", False if lost is not None else None)
        return msgspec.structs.replace(case, refused=check, reason=reason, right=right)
    if "verifying" in sent and "serves" not in sent:
        return msgspec.structs.replace(case, refused="run", reason=lost, right=False)
    if lost is not None:
        bad = f"{'serving' if 'serves' in sent else 'checking'} ended: {lost}"
    bad = bad or sent["served"]
    return msgspec.structs.replace(case, bad=bad, record=None if bad is None else content)


def _why_refused(unit: Unit, candidate: Candidate) -> tuple[str, str]:
    """By which check, and what it says."""
    from tunehub.tir.cpu_check import check_proven

    try:
        schedule = apply_candidate(unit.mod, candidate, unit.target, unit.fit)
        if unit.target.kind.name == "llvm":
            check_proven(schedule.mod["main"], unit.target)
    except FaultFoundError as error:
        return "static", last_line(error)
    except GuardError as error:
        return "guard", last_line(error)
    except KnobError as error:
        return "knobs", last_line(error)
    except Exception as error:
        return "TVM", typed_last_line(error)[:160]
    return "ladder", "not by its schedule"


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


def _is_right(session: VerifySession, scheduled: Any) -> bool:
    result = session.judge(workload_text(scheduled))
    return result.error is None and (result.difference or 0.0) <= result.tolerance


def _build(scheduled: Any, target: Any) -> Any:
    import tvm

    return tvm.tirx.build(main_module(scheduled), target=target)


def _what_is_wrong(unit: Unit, scheduled: Any, most: float) -> str | None:
    """Of a schedule that serves, on other inputs than it was verified on, with memory around its outputs that must
    stay as it is."""
    original = unit.mod["main"]
    try:
        library = _build(scheduled, unit.target)
    except Exception as error:
        return f"it does not compile: {typed_last_line(error)}"
    inputs = arrays_for(original, "signed")
    fresh = [None if given is None else _other(given, number) for number, given in enumerate(inputs)]
    plain, found = (_outputs(each, original, fresh) for each in (unit.plain, library))
    if found is None or plain is None:
        return "it writes beyond its output"
    difference = apart(found, plain)
    return None if difference <= most else f"it differs by {difference}"


def _other(given: Any, number: int) -> Any:
    if given.dtype.kind in "iub":
        return given
    return random_numbers(given.shape, str(given.dtype), "signed", 1000 + number) * np.abs(given).max() / 4


def _outputs(library: Any, function: Any, inputs: list[Any]) -> list[Any] | None:
    """What a function writes; None where it writes beyond it."""
    import tvm

    tensors, guarded = [], []
    for (shape, dtype), given, output in zip(buffer_shapes(function), inputs, written(function), strict=True):
        if not output:
            tensors.append(tvm.runtime.tensor(given.astype(dtype)))
            continue
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = np.full(size + 2 * _GUARD_BYTES + _ALIGNMENT, 0x5A, np.uint8)
        start = _GUARD_BYTES + -(memory.ctypes.data + _GUARD_BYTES) % _ALIGNMENT
        own = memory[start : start + size].view(dtype).reshape(shape)
        own[...] = unwritten(shape, dtype)
        guarded.append((memory, start, size, own))
        tensors.append(tvm.runtime.from_dlpack(own))
    library["main"](*tensors)
    for memory, start, size, _ in guarded:
        if (memory[:start] != 0x5A).any() or (memory[start + size :] != 0x5A).any():
            return None
    return [own.copy() for *_, own in guarded]
