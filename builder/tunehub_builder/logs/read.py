"""Reading logs made elsewhere (TopHub's files, a colleague's): which lines can be used, and why others cannot.

AutoTVM 0.2 and auto-scheduler 0.6 lines stay byte for byte; AutoTVM 0.1 lines are translated to 0.2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from packaging.version import InvalidVersion, Version

from tunehub_builder.exceptions import BuilderError, PackingError
from tunehub_builder.logs.autotvm_v01_to_v02 import UntranslatableError, translate
from tunehub_registry.exceptions import FieldError
from tunehub_registry.legacy_target import descriptor_of_legacy, parse_target
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_log import (
    MAX_LINE_BYTES,
    LogLineError,
    LogRecord,
    parse_line,
)

DEFAULT_VERSION = "0.1.0"
_FILE_VERSION = re.compile(r"[_-]v(\d+(?:\.\d+)*)\.(?:log|json)$")
TRANSLATED_FROM = "autotvm 0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something about one line: its number (from 1) and what there is to say."""

    line: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A line that goes into the package of `target`. `original` is the SHA-256 of the line that it translates."""

    record: LogRecord
    target: TargetDescriptor
    file: str
    line: int
    original: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFile:
    """One file, read. `lines` counts records, good or bad: not blank lines and comments.

    What TVM says of the imported ones: `proved` is the number of those that it takes, `outside_space` those of them
    whose config is no longer in the template's search space, `refuted` those that it does not take, `unproved` those
    that it cannot decide on.
    """

    path: Path
    sha256: str
    version: str
    lines: int
    imported: tuple[Imported, ...]
    skipped: tuple[Remark, ...]
    proved: int = 0
    outside_space: tuple[Remark, ...] = ()
    unproved: tuple[Remark, ...] = ()
    refuted: tuple[Remark, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The file's part of the report."""
        return {
            "file": str(self.path),
            "sha256": self.sha256,
            "lines": self.lines,
            "imported": len(self.imported),
            "translated": sum(item.original is not None for item in self.imported),
            "skipped": [_as_json(remark) for remark in self.skipped],
            "proof": {
                "proved": self.proved,
                "outside_space": [_as_json(remark) for remark in self.outside_space],
                "refuted": [_as_json(remark) for remark in self.refuted],
                "unproved": [_as_json(remark) for remark in self.unproved],
            },
        }


def read_file(path: Path, version: str | None = None) -> ReadFile:
    """Read one log. Raises BuilderError when it cannot be read or `version` is none."""
    digest = hashlib.sha256()
    imported: list[Imported] = []
    skipped: list[Remark] = []
    try:
        with path.open("rb") as stream:
            for number, line in _numbered_lines(stream, digest.update):
                try:
                    imported.append(_import_line(line, path.name, number))
                except (LogLineError, UntranslatableError) as error:
                    skipped.append(Remark(line=number, reason=error.reason))
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror}; give a tuning log that can be read") from error
    return ReadFile(
        path=path,
        sha256=digest.hexdigest(),
        version=_version(path, version),
        lines=len(imported) + len(skipped),
        imported=tuple(imported),
        skipped=tuple(skipped),
    )


def _numbered_lines(stream: BinaryIO, seen: Callable[[bytes], object]) -> Iterator[tuple[int, bytes]]:
    """The lines that should be records; of a line that is far too long only the beginning."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 2):
        number += 1
        seen(line)
        piece = line
        while piece and not piece.endswith(b"\n"):
            piece = stream.readline(MAX_LINE_BYTES)
            seen(piece)
        line = line.strip()
        if line and not line.startswith(b"#"):
            yield number, line


def _import_line(line: bytes, file: str, number: int) -> Imported:
    """Raises LogLineError or UntranslatableError with the reason why the line is left out."""
    record = parse_line(line)
    original = None
    if not record.is_measured:
        # A translation keeps the result, so this holds for all formats and says the true reason first.
        failed = f"a failed trial (error {record.error_no})" if record.error_no else "its cost is no possible time"
        raise LogLineError(f"{failed}: there is no measured time")
    if record.format == TRANSLATED_FROM:
        original = hashlib.sha256(line).hexdigest()
        record = parse_line(translate(line))
    problem = record.config_problem
    if problem is not None:
        raise LogLineError(f"its configuration is refused: {problem}")
    return Imported(record=record, target=_target(record.target), file=file, line=number, original=original)


@lru_cache(maxsize=1024)
def _target(text: str) -> TargetDescriptor:
    try:
        return descriptor_of_legacy(parse_target(text))
    except FieldError as error:
        raise LogLineError(f"the target cannot be read: {error.reason}") from None


def _version(path: Path, given: str | None) -> str:
    found = _FILE_VERSION.search(path.name)
    text = given or (found[1] if found else DEFAULT_VERSION)
    try:
        return str(Version(text))
    except InvalidVersion:
        raise PackingError(f"{text!r} is not a version; give one such as --version 0.10 (PEP 440)") from None


def _as_json(remark: Remark) -> dict[str, object]:
    return {"line": remark.line, "reason": remark.reason}
