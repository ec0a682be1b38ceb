"""Sessions that stand in for those of a GPU: what the tuner hands out, without TVM and CUDA."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tunehub_builder.tuning.runner.messages import Attempt, SearchRequest
from tunehub_builder.tuning.search.warm_start import Seed

DEFAULT_S = 1.0


class FakeBuilder:
    """Times are what the candidate says; ``"dies"`` ends the process, ``"fails"`` is refused."""

    def __init__(self, log: str) -> None:
        self._log = Path(log)

    def warm_up(self, _target: Any) -> None:
        """Nothing to start."""

    def task(self, _task: str, _module: str) -> None:
        """Nothing to read."""

    def attempt(self, attempt: Attempt) -> tuple[float, ...]:
        """One line in the log for each attempt."""
        task, trace = attempt.task, attempt.candidate
        with self._log.open("a") as file:
            file.write(f"{task} {'default' if trace is None else trace[0]}\n")
        if trace is None:
            return (DEFAULT_S,)
        if trace[0] == "dies":
            os._exit(3)
        if trace[0] == "fails":
            raise ValueError("refused")
        return (float(trace[0]),)


class FakeSearcher:
    """Proposes what is planned for each workload, in batches, and nothing twice."""

    def __init__(self, planned: dict[str, list[Any]]) -> None:
        self._planned = {task: list(candidates) for task, candidates in planned.items()}
        self._told: dict[str, int] = {}

    def warm_up(self, _target: Any) -> None:
        """Nothing to start."""

    def task(self, _task: str, _module: str) -> None:
        """Nothing to read."""

    def propose(self, request: SearchRequest) -> list[Seed]:
        """The records that are known, or the next ``limit``; what was tried in an earlier run is left out."""
        task = request.task
        if request.known:
            found = [(group.how, candidate.record) for group in request.known for candidate in group.candidates]
            if any(record.trace[0] == "dies" for _, record in found):
                os._exit(3)
            return [Seed(candidate=list(record.trace), source=f"registry p, {how}") for how, record in found]
        rest = self._planned[task]
        tried = [trial.trace for trial in request.news]
        rest[:] = [candidate for candidate in rest if candidate not in tried]
        batch, rest[:] = rest[: request.limit], rest[request.limit :]
        return [Seed(candidate=candidate, source="evolutionary") for candidate in batch]
