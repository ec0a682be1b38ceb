"""Workloads of a file of misses as tuning tasks: what ``tunehub tune --from-misses`` tunes.

The functions in the file are checked before TVM reads them (:mod:`tunehub.tir.workload`), and each must be the one
that its key names, so that a record which comes of it is found when the module is compiled again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.exceptions import WorkloadTextError
from tunehub.report.misses import Miss, read_misses
from tunehub_builder.exceptions import TuningError

if TYPE_CHECKING:
    from tunehub_builder.tuning.tasks import TuningTask

_SHOWN = 3  # reasons in one note


@dataclass(frozen=True, kw_only=True, slots=True)
class MissedWorkloads:
    """The misses of one file; to a work directory they are a network with the name of the file.

    ``dims``: values of open dimensions to tune for; those of others are chosen.
    """

    name: str
    source: str
    misses: tuple[Miss, ...] = field(repr=False)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtype: str = "any"
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def tasks(self, target: str) -> tuple[list[TuningTask], tuple[str, ...]]:
        """The misses of the target with this name as tasks, and notes on the others.

        Raises TuningError when there are none.
        """
        found, reasons = [], Counter[str]()
        for miss in self.misses:
            try:
                found.append(_task(self.name, miss, target, self.dims))
            except WorkloadTextError as error:
                reasons[error.reason] += 1
        said = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(_SHOWN))
        if not found:
            raise TuningError(f"{self.source}: nothing to tune for {target}: {said or 'the file is empty'}")
        return found, (f"{self.source}: {reasons.total()} misses are left out: {said}",) if reasons else ()


def missed_workloads(path: Path, dims: Mapping[str, tuple[int, ...]] | None = None) -> MissedWorkloads:
    """The misses in a file, with values of open dimensions by name. Raises MissesFileError."""
    misses = tuple(read_misses(path))
    return MissedWorkloads(name=path.stem, source=f"misses in {path.name}", misses=misses, dims=dims or {})


def targets_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """The targets that the misses in some files are for, in their order. Raises MissesFileError."""
    return tuple(dict.fromkeys(miss.target for path in paths for miss in read_misses(path)))


def _task(network: str, miss: Miss, target: str, dims: Mapping[str, tuple[int, ...]]) -> TuningTask:
    """One miss as a task. Raises WorkloadTextError with the reason why it is none."""
    from tunehub.tir.workload import workload_of
    from tunehub_builder.tuning.tasks import task_of

    if miss.target != target:
        raise WorkloadTextError(f"missed on {miss.target}")
    if miss.function is None:
        raise WorkloadTextError("without its function: written by TVM 0.19 or older")
    task = task_of(network, miss.name, workload_of(miss.function)["main"], miss.count, dims)
    if task is None:
        raise WorkloadTextError("a reshape, or without symbols that can be given values")
    if task.exact != miss.exact:
        raise WorkloadTextError(f"not the function that its key names: changed, or written by TVM {miss.tvm}")
    return task
