"""A symbolic function by a ladder of records over its size: each step scheduled alone, joined in one PrimFunc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.kernels.cpu import dense
from tunehub.kernels.symbolic import rows
from tunehub.tir.branches import SizeBranch, joined, size_of
from tunehub.tir.guard import GuardError, check_function
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import largest_probes, symbols_of, with_branches_for
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.kernels.template_fit import TemplateFit
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc
    from tunehub_registry.ladder_record import LadderRecord, LadderStep, StepKnobs

Rule = Callable[[Any], Any | None]
_TARGET = "target"  # an attribute of TVM's functions


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedSteps:
    """``mod``: with the scheduled function as ``main``, as a schedule has it."""

    mod: IRModule


def by_ladder(function: PrimFunc, target: Target, record: LadderRecord, rule: Rule) -> JoinedSteps:
    """``function`` by the steps of ``record``; ``rule`` schedules one without it, None for TVM's own loops.

    Raises GuardError, KnobError and what TVM raises where a step does not fit.
    """
    if len(symbols_of(function)) != record.symbols:
        raise GuardError(f"the record has {record.symbols} symbols")
    steps = record.ladder
    if len(steps) == 1:
        return _checked(_by_step(function, target, steps[0], rule), function, target)
    branches = _branches(function, target, steps, rule)
    found = joined(function, size_of(function), branches)
    own = next(filter(None, map(_own_target, branches)), None)
    return _checked(found if own is None else found.with_attr(_TARGET, own), function, target)


def _own_target(branch: SizeBranch) -> Target | None:
    """What a step is compiled for that has kernels of one architecture alone, as those for warpgroups."""
    attributes = branch.function.attrs
    return attributes.get(_TARGET) if attributes else None


def _branches(function: PrimFunc, target: Target, steps: Sequence[LadderStep], rule: Rule) -> list[SizeBranch]:
    """A branch for each of ``steps``. Those of one kind are one function, which is compiled once."""
    from tvm import s_tir

    last, made = _kind(steps[-1]), dict[bytes, Any]()
    for step in steps:
        if _kind(step) not in made:
            # Schedules of one function share what they leave as it is, such as variables: each but that of the last
            # step is of a copy of its own.
            own = function if _kind(step) == last else s_tir.renew_defs(function)
            made[_kind(step)] = _by_step(own, target, step, rule)
    ends = [step.up_to for step in steps]
    sizes = list(zip([0, *filter(None, ends)], ends, strict=True))
    for kind, scheduled in made.items():
        own_sizes = [each for step, each in zip(steps, sizes, strict=True) if _kind(step) == kind]
        made[kind] = with_branches_for(scheduled, own_sizes)
    return [SizeBranch(up_to=step.up_to, function=made[_kind(step)], apart=_kind(step) != last) for step in steps]


def _kind(step: LadderStep) -> bytes:
    """The same for steps that schedule a function in the same way."""
    return msgspec.json.encode((step.own, step.named, step.trace), order="sorted")


def ladder_text(record: LadderRecord, names: Sequence[str]) -> str:
    """``exact for batch <= 64, rule above``: what the steps of a ladder are, for the report.

    Steps alike, one after the other, are one.
    """
    kinds = [step.own or "exact" for step in record.ladder]
    ends = [at for at in range(len(kinds)) if at + 1 == len(kinds) or kinds[at + 1] != kinds[at]]
    if len(ends) == 1:
        return f"{kinds[0]} for every size"
    size = " x ".join(names)
    said = [f"{kinds[at]} for {size} <= {record.ladder[at].up_to}" for at in ends[:-1]]
    return ", ".join([*said, f"{kinds[-1]} above"])


def static_record(record: LadderRecord, exact: str, fit: TemplateFit) -> TemplateRecord | None:
    """What a ladder says of the static function with the key ``exact``, one of those at whose sizes it was measured,
    as a record of that; ``fit`` is the function's. The times are those of the symbolic function at these sizes.

    The knobs of a tile are those of the whole. Tiles of rows are the template's own of as many rows and outputs. None
    where there are none such.
    """
    times = next(times for times in record.times if times.exact == exact)
    named = record.step_for(times.size).named
    if named is None or fit.match is None:
        return None
    template, version, knobs = fit.match.template, named.version, named.knobs
    if named.template == rows.NAME:
        like = (knobs.get("large"), knobs.get("blocks"))
        space = (
            [msgspec.to_builtins(choice) for choice in fit.knob_space(fit.match)] if template.NAME == dense.NAME else []
        )
        same = [choice for choice in space if (choice["columns"], choice["blocks"]) == like]
        if not same:
            return None
        version, knobs = template.VERSION, same[0]
    return TemplateRecord(
        exact=exact,
        op=record.op,
        run_s=(times.run_s,),
        default_s=times.default_s,
        source=record.source,
        template=template.NAME if named.template == rows.NAME else named.template,
        version=version,
        knobs=knobs,
    )


def _checked(scheduled: PrimFunc, function: PrimFunc, target: Target) -> JoinedSteps:
    # The tile of a step is checked by itself: another size is another number of tiles, by the same statements.
    check_function(scheduled, function, target, largest_probes(scheduled))
    return JoinedSteps(mod=main_module(scheduled))


def _by_step(function: PrimFunc, target: Target, step: LadderStep, rule: Rule) -> PrimFunc:
    if step.own is not None:
        found = rule(function) if step.own == "rule" else None
        return _default(function, target) if found is None else found
    named = step.named
    if target.kind.name == "cuda":
        return _on_cuda(function, target, named)
    from tunehub.compiler.schedule.by_record import by_knobs, by_trace  # static functions need none of it

    if named is not None:
        return by_knobs(function, target, named)
    assert step.trace is not None  # a step has knobs or a trace
    return by_trace(function, target, step.trace)


def _default(function: PrimFunc, target: Target) -> PrimFunc:
    """TVM's own schedule. That of CPUs is made of whole modules, later, and of functions left as they are."""
    if target.kind.name != "cuda":
        return function
    from tunehub.kernels.cuda.default import default_schedule  # CPUs need none of it

    return default_schedule(function, target)


def _on_cuda(function: PrimFunc, target: Target, named: StepKnobs | None) -> PrimFunc:
    from tunehub.kernels.cuda.knobs import by_open_knobs  # CPUs need none of it

    if named is None:
        raise GuardError("steps with traces are for CPUs: a piece's length goes with knobs")
    return by_open_knobs(function, target, named)
