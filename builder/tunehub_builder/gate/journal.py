"""What the gate has judged, and what is due: one rule for workloads and networks, of every generation of TVM.

A verdict counts until the records change that it is about, or the number of threads. A gain that noise has hidden is
judged again: on a quieter machine the decision may be another. Times that other programs disturbed are no verdict
against the records: they are measured again in the same call, behind all others, and if need be in the next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tunehub.comparison.protocol import is_lost_in_noise
from tunehub_builder.gate.disturbance import UNJUDGED, all_settled, unjudged_of, until_undisturbed
from tunehub_builder.tuning.journal import LineJournal


class GateVerdict(Protocol):
    """A verdict on a workload or a network, the ``subject``. ``digest`` names the records that it is about.

    Samples are in seconds, none where nothing was timed. ``reason``: why it is not admitted.
    """

    @property
    def subject(self) -> Hashable: ...

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def admitted(self) -> bool: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def default_s(self) -> tuple[float, ...]: ...

    @property
    def tuned_s(self) -> tuple[float, ...]: ...


_Case = TypeVar("_Case")
_Verdict = TypeVar("_Verdict", bound=Any)  # a msgspec.Struct that is a GateVerdict


def latest(verdicts: Iterable[_Verdict]) -> list[_Verdict]:
    """Of the verdicts on the same subject the last one."""
    return list({verdict.subject: verdict for verdict in verdicts}.values())


def is_due(known: GateVerdict | None, digest: str, threads: int) -> bool:
    """True when the verdict ``known`` is not about these records and threads, was lost in the noise or disturbed."""
    if known is None or known.digest != digest or known.threads != threads or known.reason == UNJUDGED:
        return True
    return is_lost_in_noise(known.default_s, known.tuned_s)


def judge_due(
    journal: LineJournal[_Verdict],
    cases: Sequence[_Case],
    wanted: Callable[[_Case], Mapping[Hashable, str]],
    threads: int,
    judge: Callable[[Sequence[_Case]], Iterator[Sequence[_Verdict]]],
    show: Callable[[_Verdict, int, int], None],
) -> list[_Verdict]:
    """Judge the cases that are due, write their verdicts down, and return the verdicts on all cases.

    ``wanted``: the subjects of a case's verdicts with the digests that they must have. ``judge`` yields each case's
    verdicts. ``show`` gets each new one with the position of its case and how many there are. Raises
    WorkDirectoryError; verdicts that were written stay, and a later call goes on from there.
    """
    journal.heal()
    known = {verdict.subject: verdict for verdict in journal.entries()}
    due = [
        case
        for case in cases
        if any(is_due(known.get(subject), digest, threads) for subject, digest in wanted(case).items())
    ]

    for verdicts, position, count in until_undisturbed(due, wanted, lambda some: all_settled(judge(some)), unjudged_of):
        for verdict in verdicts:
            journal.append(verdict)
            known[verdict.subject] = verdict
            show(verdict, position, count)
    return [known[subject] for case in cases for subject in wanted(case)]
