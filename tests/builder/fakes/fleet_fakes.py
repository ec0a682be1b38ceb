"""Sessions that stand in for those of a device: they "build" what takes the time that the candidate says."""

from __future__ import annotations

import json
from typing import Any

from tunehub_builder.tuning.runner.archive import Archive


class FakeDevice:
    """A candidate is a list with its time in seconds; ``"fails"`` is refused. None, the default, takes 1 s."""

    def __init__(self) -> None:
        self._loaded: Any = None

    def task(self, _task: str, _module: str) -> None:
        """Nothing to read."""

    def archive(self, _task: str, _target: Any, candidate: Any) -> Archive:
        """The candidate in the place of the library."""
        if candidate == ["fails"]:
            raise ValueError("refused")
        return Archive(library=json.dumps(candidate).encode(), shapes=())

    def load(self, _number: int, _target: Any, archive: Archive) -> None:
        """As a session does it."""
        self._loaded = json.loads(archive.library)

    def measure(self, _number: int, _best_s: float | None, _options: Any) -> tuple[float, ...]:
        """What the candidate says."""
        return (1.0 if self._loaded is None else float(self._loaded[0]),)

    def drop(self) -> None:
        """Nothing is kept."""
