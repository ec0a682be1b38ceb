"""One schedule for one workload: a line of `records/meta_schedule.jsonl`.

The format is tunehub's own. It holds the keys of the workload, TVM's trace JSON untouched, and the measured times.
Reading a record says nothing about its trace: `trace_rules.validate_trace` does, and must come before TVM sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from tunehub_registry import _json
from tunehub_registry._fields import Seconds
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines
from tunehub_registry._measured import MeasuredRecord

__all__ = ["MAX_LINE_BYTES", "BadLine", "ScheduleRecord", "Seconds", "encode_record", "parse_record", "read_records"]


class ScheduleRecord(MeasuredRecord, frozen=True, kw_only=True, omit_defaults=True):
    """A record of `meta_schedule`: `trace` is `(instructions, decisions)` as TVM's `Trace.as_json` gives them."""

    trace: tuple[list[Any], list[Any]]


def parse_record(data: bytes, source: str) -> ScheduleRecord:
    """Read one line (without its newline). Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    return _json.convert(value, ScheduleRecord, source)


def encode_record(record: ScheduleRecord) -> bytes:
    """Write one line, newline included. Raises FormatError if the line could not be read again."""
    data = _json.encode(record)
    parse_record(data[:-1], f"record {record.exact}")
    return data


def read_records(stream: BinaryIO, source: str) -> Iterator[ScheduleRecord | BadLine]:
    """Read a file of records lazily; a line that is not a record becomes a BadLine and the rest goes on."""
    return read_lines(stream, source, parse_record)
