"""What measurements say against using a schedule: rules of "never slower than TVM's default". All pure.

A record of this very workload was measured against TVM's default by its publisher, and is used unless its own times
speak against it. Anything else is a guess: a record of another workload, or a template's own choice of knobs. A guess
does not stand against a measurement of the very workload, and a borrowed record must promise more than a little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.comparison.guess import GUESS_MARGIN, microseconds
from tunehub.comparison.protocol import MARGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tunehub.records.lookup import Measured
    from tunehub_registry.any_record import AnyRecord
    from tunehub_registry.evidence import JudgedRule, RecordEvidence
    from tunehub_registry.ladder_record import LadderRecord


def against_record(record: AnyRecord, *, borrowed: bool) -> str | None:
    """Why a record is not used though it fits, by its own times; ``borrowed``: it was made for another workload.

    None also where the record does not say what TVM's default takes.
    """
    if record.default_s is None:
        return None
    gain = record.default_s / record.mean_s
    if gain > (GUESS_MARGIN if borrowed else 1.0):
        return None
    least = f" there; a borrowed record needs {GUESS_MARGIN:.3g}" if borrowed else ""
    return f"it is {gain:.3g} times as fast as TVM's default{least}"


def against_ladder(record: LadderRecord, *, borrowed: bool) -> str | None:
    """As :func:`against_record`: a step may take no longer than the default anywhere, and all must gain together."""
    slower = next((t for step in record.ladder if step.own is None for t in step.times if t.run_s > t.default_s), None)
    if slower is not None:
        return f"it takes {slower.run_s / slower.default_s:.3g} times as long as TVM's default at {_at(slower.at)}"
    if record.gain > (GUESS_MARGIN if borrowed else 1.0):
        return None
    least = f" there; a borrowed record needs {GUESS_MARGIN:.3g}" if borrowed else ""
    return f"it is {record.gain:.3g} times as fast as TVM's default{least}"


def against_borrowing(found: Measured | None) -> str | None:
    """Why no other workload's record of a tuner is used, by what its best took here (``found``, None: not known)."""
    return None if found is None else _no_faster(found, found.evidence.tuned_s)


def against_transfer(expected_s: float, rule_s: float) -> str | None:
    """Why a record for another shape is not used that should take ``expected_s`` where the rule should take
    ``rule_s``: its tile was measured there, which counts as much as the margin of a guess."""
    if expected_s < GUESS_MARGIN * rule_s:
        return None
    return f"it should take {microseconds(expected_s)} µs here, and {microseconds(rule_s)} µs without a record"


def against_promise(record_s: float, promised_s: float) -> str | None:
    """Why a record of a package is not used that took ``record_s`` where a rule promises ``promised_s``, in seconds.

    Without a margin: of 47 records on an H200 that or the rule served, the promise was right to a tenth, and what this
    chooses takes 1.006 times as long as the faster one (1.07 with the margin of a guess; docs/adr/0024)."""
    if record_s <= promised_s:
        return None
    return f"it took {microseconds(record_s)} µs, and {microseconds(promised_s)} µs are promised without a record"


def against_judged(judged: RecordEvidence, choice: str, promised_s: float | None) -> str | None:
    """Why a record of a package does not serve that was ``judged`` beside what rules had, where they have ``choice``
    (its hash) now: the faster serves, by what is known.

    Of the same choice that is what was measured. Of another one it is what it promises, which needs the margin of a
    guess against a measurement; a record that was slower than the rules of its day gives way to those of today.
    """
    rule_s = judged.without_s
    if rule_s is None or not judged.rule:
        return None
    if not is_stale(judged.rule, choice):
        return None if judged.tuned_s <= rule_s else f"{_took(judged.tuned_s, rule_s)} without it"
    if promised_s is not None and GUESS_MARGIN * promised_s <= judged.tuned_s:
        return f"it took {microseconds(judged.tuned_s)} µs, and rules now promise {microseconds(promised_s)} µs"
    return (
        None if judged.tuned_s <= rule_s else f"{_took(judged.tuned_s, rule_s)} by the rules of its day, now replaced"
    )


def is_stale(rule: JudgedRule, choice: str | None, text: Callable[[], str] | None = None) -> bool:
    """Whether rules have something else for a workload today than ``rule``, beside which a row of it was judged: by the
    hash of their ``choice``; where that is not known without building what they have (open axes), by its ``text``."""
    if choice is not None:
        return rule.choice != choice
    return text is not None and rule.text != text()


def stale_text(judged: RecordEvidence, choice: str, promised_s: float | None) -> str | None:
    """What a report says of a record that serves though it was judged beside another choice of the rules."""
    rule = judged.rule or None
    if rule is None or not is_stale(rule, choice):
        return None
    now = "of unknown time" if promised_s is None else f"promised to take {microseconds(promised_s)} µs"
    return f"stale: {_took(judged.tuned_s, rule.run_s)} by the rules of its day; theirs is another kernel now, {now}"


def _took(tuned_s: float, rule_s: float) -> str:
    return f"it took {microseconds(tuned_s)} µs, against {microseconds(rule_s)} µs"


def against_default_knobs(found: Measured, template: str) -> str | None:
    """Why a template's default knobs are not used, by what they took here, or the best knobs where that is unknown.

    None when another template was measured.
    """
    if (found.evidence.template or template) != template:
        return None
    return _no_faster(found, found.evidence.untuned_s or found.evidence.tuned_s)


def _no_faster(found: Measured, run_s: float) -> str | None:
    default_s = found.evidence.default_s
    if default_s > MARGIN * run_s:
        return None
    times = f"{microseconds(run_s)} against {microseconds(default_s)} µs"
    return f"measured no faster than TVM's default by {found.package}: {times}"


def _at(values: Sequence[int]) -> str:
    return " x ".join(map(str, values))
