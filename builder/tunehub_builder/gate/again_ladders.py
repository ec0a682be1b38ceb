"""A package's ladders of sizes beside what rules have today: at each size that one was measured at, the whole ladder,
what a client has without it, and TVM's default."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tunehub_builder.backends.relax.ladder_gate import (
    LadderVerdict,
    compared_at,
    ladder_evidence,
    times_at,
)
from tunehub_builder.gate.comparison import ComparedFinalists
from tunehub_builder.gate.disturbance import DISTURBED, spread
from tunehub_builder.gate.ladders import ChosenStep, mean_seconds, no_gain_reason
from tunehub_builder.tuning.runner.pool import Worker
from tunehub_builder.tuning.search.knobs import RULE
from tunehub_builder.tuning.work_directory import TaskEntry
from tunehub_registry.evidence import JudgedRule, RecordEvidence
from tunehub_registry.ladder_record import LadderRecord

Compared = Mapping[tuple[int, ...], ComparedFinalists]
_OWN, _RULE = 0, 1  # the numbers of what is compared
_LADDER, _BY_RULE = ((ChosenStep(up_to=None, choice=number),) for number in (_OWN, _RULE))


def compared_ladder(
    record: LadderRecord, task: TaskEntry, target: Mapping[str, Any], workers: Sequence[Worker]
) -> Compared:
    """A ladder and what a client has without it, at each size that it was measured at."""
    sizes = dict.fromkeys(times.at for times in record.times)
    return compared_at(sizes, task, target, (record, RULE), workers)


def ladder_verdict(record: LadderRecord, compared: Compared, threads: int) -> LadderVerdict:
    """What a comparison means: a ladder that is wrong, or does not run, at one of its sizes is out; so is one that
    gains too little over what a client has without it. Pure."""
    untimed = (found.reason for found in compared.values() if not found.default_s)
    out = next(_reasons(compared, _OWN), None) or next(untimed, None)
    common: dict[str, Any] = {"exact": record.exact, "name": record.op, "digest": "", "threads": threads}
    if out is not None:
        return LadderVerdict(**common, admitted=False, reason=out)
    right = (_OWN,) if next(_reasons(compared, _RULE), None) else (_OWN, _RULE)
    times = tuple(times_at(at, found, right) for at, found in compared.items())
    reason = no_gain_reason(times, _LADDER, _RULE if _RULE in right else None)
    return LadderVerdict(
        **common,
        admitted=reason is None,
        reason=reason,
        times=times,
        steps=_LADDER,
        difference=max(found.finalists[_OWN].difference or 0.0 for found in compared.values()),
        spread=max(spread(found.finalists[_OWN].run_s) for found in compared.values()),
    )


def ladder_line(verdict: LadderVerdict, rule: JudgedRule, known: RecordEvidence | None) -> RecordEvidence | None:
    """The evidence on a ladder, with the time of its ``rule``, TVM's default where no rule serves it; or that it is not
    admitted, and why. None where nothing was measured of it, and never was."""
    line = ladder_evidence(verdict)
    if line is None:
        return None if known is None else msgspec.structs.replace(known, admitted=False, reason=verdict.reason)
    beside = all(each.run_s[_RULE:] for each in verdict.times)
    rule_s = mean_seconds(verdict.times, _BY_RULE)[1] if beside else line.default_s
    trials = line.trials if known is None else known.trials
    return msgspec.structs.replace(line, trials=trials, rule=msgspec.structs.replace(rule, run_s=rule_s))


def is_ladder_disturbed(compared: Compared) -> bool:
    """Whether other programs were at work at half of the sizes: one of many says little against the others."""
    samples = ([found.default_s, *(finalist.run_s for finalist in found.finalists)] for found in compared.values())
    return statistics.median(max(map(spread, each)) for each in samples) > DISTURBED


def _reasons(compared: Compared, number: int) -> Iterator[str]:
    return (reason for found in compared.values() if (reason := found.finalists[number].reason) is not None)
