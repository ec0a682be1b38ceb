"""The search of the tuner ``template``: which knobs of a workload's template to measure next.

Small spaces are measured whole. In a larger one the default's neighbours come first, then those of the best so far,
until some candidates in a row brought nothing. What comes next depends on the trials alone, so that a resumed run goes
on where the journal ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cpu.base import knob_distance
from tunehub.records.lookup import EmptyLookup
from tunehub_builder.tuning.journal import KnobChoice, Trial
from tunehub_builder.tuning.search.strategy import trace_id

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

WHOLE = 16  # a space of so many choices is measured whole
PATIENCE = 12  # candidates in a row without a better one that end the search of a larger space
RULE = KnobChoice(template="rule", version=1, knobs={})  # what a client does without a record
_BETTER = 0.99  # times within 1 % of each other are the same


class KnobSearch:
    """The knobs of one task's template, the default's first. A task that no template recognises has none.

    ``proposed``: choices from elsewhere, which come right after the default's, whether they are in the space or not.
    The name holds the template's version: trials of another one say nothing about this one's knobs. Those of other
    sources count when they are of this template and version.
    """

    def __init__(self, mod: IRModule, target: Target, proposed: Sequence[KnobChoice] = ()) -> None:
        self.space = space_of(mod, target)
        self._proposed = proposed
        self.name = f"{self.space[0].template} {self.space[0].version}" if self.space else "no template"

    def propose(self, trials: Sequence[Trial], limit: int) -> list[KnobChoice]:
        """As the port of the searches says."""
        own = [trial for trial in trials if trial.choice is not None and _same_template(trial.choice, self.space)]
        asked = asked_choices(self.space, own, self._proposed)
        return (asked or next_choices(self.space, own))[:limit]


def space_of(mod: IRModule, target: Target) -> tuple[KnobChoice, ...]:
    """The knobs worth measuring for ``mod``, the default's first; none when no template recognises it.

    A symbolic workload whose schedule has no knobs has the rule's as the only choice.
    """
    import msgspec

    from tunehub.kernels.cpu import find, machine_of
    from tunehub.tir.symbols import is_symbolic

    if target.kind.name == "cuda":
        return _tile_space(mod, target)
    if is_symbolic(mod["main"]):
        return _open_space(mod["main"], target)
    match = find(mod)
    if match is None:
        return ()
    template = match.template
    return tuple(
        KnobChoice(template=template.NAME, version=template.VERSION, knobs=msgspec.to_builtins(knobs))
        for knobs in template.knob_space(match.workload, machine_of(target))
    )


def _tile_space(mod: IRModule, target: Target) -> tuple[KnobChoice, ...]:
    """Tiles of the rules for CUDA."""
    from tunehub.kernels.cuda.knobs import knob_space
    from tunehub.tir.symbols import is_symbolic

    found = tuple(
        KnobChoice(template=each.template, version=each.version, knobs=dict(each.knobs))
        for each in knob_space(mod, target)
    )
    if not is_symbolic(mod["main"]) or by_rule(mod["main"], target) is None:
        return found
    return (RULE, *found)  # of several tiles, which the gate compares a ladder with


def _open_space(function: PrimFunc, target: Target) -> tuple[KnobChoice, ...]:
    import msgspec

    from tunehub.compiler.schedule.by_record import knob_space

    found = [
        KnobChoice(template=template, version=version, knobs=msgspec.to_builtins(knobs))
        for template, version, knobs in knob_space(function, target)
    ]
    return tuple(found) or ((RULE,) if by_rule(function, target) is not None else ())


def by_rule(function: PrimFunc, target: Target) -> Any | None:
    """A function as a client schedules it without records; None for TVM's own loops."""
    from tunehub.compiler.schedule.ladder import schedule_function

    return schedule_function(function, target, EmptyLookup())[1]


def asked_choices(
    space: Sequence[KnobChoice], trials: Sequence[Trial], proposed: Sequence[KnobChoice]
) -> list[KnobChoice]:
    """The proposed choices that were not measured yet, behind the default's; none when all were."""
    known = {choice_id(trial.choice) for trial in trials if trial.choice is not None}
    fresh = {choice_id(choice): choice for choice in proposed if _same_template(choice, space)}
    asked = [choice for key, choice in fresh.items() if key not in known]
    if not asked or trials:
        return asked
    return [space[0], *(choice for choice in asked if choice_id(choice) != choice_id(space[0]))]


def next_choices(space: Sequence[KnobChoice], trials: Sequence[Trial]) -> list[KnobChoice]:
    """The choices to measure next, the most promising first; none when the search is at its end."""
    known = {choice_id(trial.choice) for trial in trials if trial.choice is not None}
    fresh = [choice for choice in space if choice_id(choice) not in known]
    if len(space) <= WHOLE:
        return fresh
    if _without_gain(trials) >= PATIENCE and len(trials) >= WHOLE:
        return []
    measured = [trial for trial in trials if trial.choice is not None and trial.run_s]
    best = min(measured, key=lambda trial: trial.mean_s, default=None)
    center = best.choice if best is not None and best.choice is not None else space[0]
    # Sorting is stable: among equals the template's order decides.
    return sorted(fresh, key=lambda choice: knob_distance(choice.knobs, center.knobs))


def choice_id(choice: KnobChoice) -> str:
    """A text that is equal for equal choices."""
    return trace_id([choice.template, choice.version, choice.knobs])


def _same_template(choice: KnobChoice, space: Sequence[KnobChoice]) -> bool:
    """Whether it is of a template of the space, of which a GPU may have two."""
    return any((choice.template, choice.version) == (own.template, own.version) for own in space)


def _without_gain(trials: Sequence[Trial]) -> int:
    """How many trials came after the last one that was clearly better than all before it."""
    best, last = float("inf"), 0
    for position, trial in enumerate(trials, 1):
        if trial.mean_s < _BETTER * best:
            best, last = trial.mean_s, position
    return len(trials) - last
