"""Choices of knobs that come from elsewhere (logs of AutoTVM): the tuner ``template`` measures them next.

They are in ``proposals.jsonl`` of a work directory and not among its trials, because nothing was measured here: no
time of another machine reaches the gate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tunehub.registries.key_scheme import TEMPLATE
from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.tuning.journal import KnobChoice, LineJournal
from tunehub_builder.tuning.trial_record import candidate_of
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.template_record import TemplateRecord


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A choice for the workload with the exact key ``task``; ``source`` is that of the record that it is from."""

    task: str
    choice: KnobChoice
    source: str


def propose(path: Path, records: Iterable[TemplateRecord]) -> int:
    """Propose the knobs of ``records`` for the workloads in the work directory ``path`` that have their anchor keys.

    Returns how many proposals are new. Raises WorkDirectoryError when the directory is in use or not one of the tuner
    `template`.
    """
    with WorkDirectory(path).locked() as directory:
        run = directory.existing_run()
        if run.tuner != TEMPLATE:
            reason = "was not tuned with `--tuner template`, so it has no workloads with knobs"
            raise WorkDirectoryError(path, reason, "give the folder of a `tunehub tune --tuner template --work`")
        by_anchor: dict[str | None, list[str]] = defaultdict(list)
        for task in directory.tasks():
            by_anchor[task.anchor].append(task.exact)
        journal = _journal(path)
        journal.heal()
        known = {(entry.task, msgspec.json.encode(entry.choice, order="sorted")) for entry in journal.entries()}
        before = len(known)
        for record in records:
            choice = candidate_of(record)
            for task_key in by_anchor[record.anchor] if record.anchor else ():
                entry = (task_key, msgspec.json.encode(choice, order="sorted"))
                if entry not in known:
                    known.add(entry)
                    journal.append(Proposal(task=task_key, choice=choice, source=record.source))
        return len(known) - before


def proposals(path: Path) -> dict[str, tuple[KnobChoice, ...]]:
    """The proposed choices of a work directory by the exact key of their workload. Raises WorkDirectoryError."""
    found: dict[str, list[KnobChoice]] = defaultdict(list)
    for entry in _journal(path).entries():
        found[entry.task].append(entry.choice)
    return {task: tuple(choices) for task, choices in found.items()}


def _journal(path: Path) -> LineJournal[Proposal]:
    return LineJournal(path / "proposals.jsonl", Proposal)
