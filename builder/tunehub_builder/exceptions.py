"""Errors of the builder; each says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tunehub_registry.printable import PlainMessage


class BuilderError(PlainMessage):
    """Base of every error that the builder raises on purpose."""


class WorkDirectoryError(BuilderError):
    """A work directory cannot be read, written or resumed."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path


class TuningError(BuilderError):
    """Tuning cannot start or go on."""


class NoSuchTargetError(TuningError):
    """No target has this name. Fields: `name`, `alike` (names that exist)."""

    def __init__(self, name: str, alike: Sequence[str]) -> None:
        super().__init__(
            f"unknown target {name!r}: expected 'host', 'cuda', or 'llvm-' and LLVM's name of a CPU, such as "
            f"{', '.join(alike)}"
        )
        self.name = name
        self.alike = tuple(alike)


class UnsuitableTargetError(TuningError):
    """This machine cannot measure for the target. Fields: `name`, `reason`."""

    def __init__(self, name: str, reason: str, remedy: str = "tune on a machine that has them") -> None:
        super().__init__(f"cannot tune for {name}: {reason}; {remedy}, or tune for 'host'")
        self.name = name
        self.reason = reason


class BenchError(BuilderError):
    """What `tunehub bench` was asked to compare cannot be compared, or its picture not be drawn."""


class RecipeError(BuilderError):
    """A recipe file cannot be used. Fields: `path`, `reason`."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path = path
        self.reason = reason


class PackingError(BuilderError):
    """There is nothing to pack, or the result cannot be written."""


class SubmissionError(BuilderError):
    """A submission cannot be written, or a review of one cannot begin."""
