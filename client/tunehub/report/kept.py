"""What a hub reported of one compile, as it is kept beside the library that the compile made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunehub.report.model import WorkloadReport, WrongOperator


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileSaid:
    """The report's part of one compile. `functions` are the texts of workloads without a record, and the TVM that wrote
    them, by exact key."""

    workloads: tuple[WorkloadReport, ...]
    wrong_operators: tuple[WrongOperator, ...]
    notes: tuple[str, ...]
    functions: Mapping[str, tuple[str, str]]
