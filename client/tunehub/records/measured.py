"""What compiles have measured: kept in memory for the hub, and appended to the user's own records for the next one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub._files.lines import append_lines
from tunehub._files.lock import locked
from tunehub.exceptions import MeasureError
from tunehub.records.lookup import Candidate, EmptyLookup

if TYPE_CHECKING:
    from tunehub.report.model import WorkloadReport
    from tunehub_registry.any_record import AnyRecord

_LOCK_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredChoice:
    """The fastest schedule of a workload by measurement here: a ``record``, one of ``candidates`` that were tried.

    ``unmeasured_s``: seconds of what would have been used without measuring, None when that is wrong or does not run.
    """

    record: AnyRecord
    candidates: int
    unmeasured_s: float | None


class MeasuredRecords(EmptyLookup):
    """The layer of records that this process has measured, before all others; at most ``limit`` candidates each.

    ``file`` is where they are kept. Only exact records are found: a compile looks at its own workloads, the next one
    finds these in the file, and what was measured here decides by its record.
    """

    def __init__(self, limit: int, file: Path) -> None:
        self.limit = limit
        self.file = file
        self._choices: dict[str, MeasuredChoice] = {}

    def add(self, choice: MeasuredChoice) -> None:
        """Use a choice from now on, and remember it in the file. Raises MeasureError when only the first works."""
        from tunehub_registry.any_record import encode_any_record

        self._choices[choice.record.exact] = choice
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.file.with_name(f"{self.file.name}.lock"), _LOCK_TIMEOUT_S):
                append_lines(self.file, encode_any_record(choice.record))
        except OSError as error:
            reason = f"what was measured cannot be kept in {self.file}: {error.strerror or error}"
            remedy = "set TUNEHUB_RECORDS to a file that can be written; until then every compile measures again"
            raise MeasureError(reason, remedy=remedy, cause="measured records") from error

    def described(self, workload: WorkloadReport) -> WorkloadReport:
        """``workload`` with what was measured of it, if anything was."""
        choice = self._choices.get(workload.exact or "")
        if choice is None:
            return workload
        return replace(workload, trials=choice.candidates, unmeasured_s=choice.unmeasured_s)

    def by_exact(self, key: str) -> Candidate | None:
        """As the port says."""
        choice = self._choices.get(key)
        if choice is None:
            return None
        return Candidate(record=choice.record, rung="measured", package=str(self.file))


def records_file(records: Path, target: str) -> Path:
    """The file of a user's ``records`` (a file, or a folder with one a target) for a target's name; made when needed.

    What is not there yet is a file when its name has a suffix.
    """
    try:
        is_folder = records.is_dir() or (not records.exists() and not records.suffix)
    except OSError:  # a folder around it may not be searched; writing will say so
        is_folder = not records.suffix
    return records / f"{target}.jsonl" if is_folder else records
