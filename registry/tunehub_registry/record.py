"""One schedule for one workload: a line of `records/meta_schedule.jsonl`.

The format is tunehub's own. It holds the keys of the workload, TVM's trace JSON untouched, and the measured times.
Reading a record says nothing about its trace: `trace_rules.validate_trace` does, and must come before TVM sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines

__all__ = ["MAX_LINE_BYTES", "BadLine", "ScheduleRecord", "encode_record", "parse_record", "read_records"]


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record. `exact` and `anchor` are the workload's keys (32 hex digits), `op` is its name for people.

    `trace` is `(instructions, decisions)` as TVM's `Trace.as_json` gives them. `run_s` are the measured times in
    seconds, `default_s` that of the default schedule. `networks` names the networks that the workload occurs in,
    `source` the tuner or template that produced the record.
    """

    exact: _fields.Key
    anchor: _fields.Key | None = None
    op_class: _fields.Label | None = None
    op: Annotated[str, Meta(max_length=1024)]
    trace: tuple[list[Any], list[Any]]
    run_s: Annotated[tuple[_fields.Seconds, ...], Meta(min_length=1, max_length=1000)]
    default_s: _fields.Seconds | None = None
    networks: tuple[_fields.Label, ...] = ()
    source: _fields.Label

    def __post_init__(self) -> None:
        _fields.check_finite("run_s", *self.run_s)
        _fields.check_finite("default_s", self.default_s)

    @property
    def mean_s(self) -> float:
        """The mean of the measured times, in seconds: the number that records are ranked by."""
        return sum(self.run_s) / len(self.run_s)


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
