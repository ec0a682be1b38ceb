"""The report of a hub: its data with the texts and files that are made of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.report import text
from tunehub.report.misses import append_misses
from tunehub.report.model import ReportData

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Report(ReportData):
    """What a hub did for the workloads of all modules that it compiled, with what it had to say."""

    def summary(self) -> str:
        """The report in one to six lines."""
        return text.summary(self)

    def records_text(self) -> str:
        """Whose records serve, in words."""
        return text.records_text(self)

    def table(self) -> Table:
        """The report as a table of rich."""
        return text.table(self)

    def print(self) -> None:
        """Print the table on standard output; a pipe or file gets whole lines."""
        text.print_report(self)

    def save_misses(self, path: str | os.PathLike[str]) -> int:
        """Append the misses to a JSONL file for `tunehub tune --from-misses`, each exact key once in the file.

        Returns how many were new. Raises OSError.
        """
        return append_misses(Path(path), self)

    def __str__(self) -> str:
        return self.summary()
