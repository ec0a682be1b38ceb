"""Errors of the builder; each says what is wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path


class BuilderError(Exception):
    """Base of every error that the builder raises on purpose."""


class WorkDirectoryError(BuilderError):
    """A work directory cannot be read, written or resumed."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path


class TuningError(BuilderError):
    """Tuning cannot start or go on."""
