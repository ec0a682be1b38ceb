"""Files of one JSON document a line, read as a stream: one bad line never loses the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from tunehub_registry.exceptions import FormatError

T = TypeVar("T")

MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class BadLine:
    """A line that was skipped: its number (from 1) and why."""

    line: int
    reason: str


def read_lines(stream: BinaryIO, source: str, parse: Callable[[bytes, str], T]) -> Iterator[T | BadLine]:
    """Parse each line; a line that `parse` refuses with FormatError, or that is too long, becomes a BadLine."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            _skip_rest(stream)
            yield BadLine(line=number, reason=f"longer than {MAX_LINE_BYTES} bytes")
            continue
        try:
            yield parse(line.rstrip(b"\r\n"), f"{source}:{number}")
        except FormatError as error:
            yield BadLine(line=number, reason=f"at {error.path}: {error.reason}")


def _skip_rest(stream: BinaryIO) -> None:
    while (chunk := stream.readline(MAX_LINE_BYTES)) and not chunk.endswith(b"\n"):
        pass
