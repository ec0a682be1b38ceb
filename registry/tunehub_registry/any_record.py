"""A line of either kind of record for current TVM: a trace, or the knobs of a template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from tunehub_registry import _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines
from tunehub_registry.record import ScheduleRecord, encode_record
from tunehub_registry.template_record import TemplateRecord, encode_template_record

AnyRecord = ScheduleRecord | TemplateRecord


def parse_any_record(data: bytes, source: str) -> AnyRecord:
    """Read one line (without its newline): the record of a template when it names one. Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    if isinstance(value, dict) and value.get("template") is not None:
        return _json.convert(value, TemplateRecord, source)
    return _json.convert(value, ScheduleRecord, source)


def read_any_records(stream: BinaryIO, source: str) -> Iterator[AnyRecord | BadLine]:
    """Read a file of records lazily; a line that is not a record becomes a BadLine and the rest goes on."""
    return read_lines(stream, source, parse_any_record)


def encode_any_record(record: AnyRecord) -> bytes:
    """The record as a line of its file."""
    return encode_record(record) if isinstance(record, ScheduleRecord) else encode_template_record(record)
