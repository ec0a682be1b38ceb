"""A line of any kind of record for current TVM: a trace, the knobs of a template, or a ladder of sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from tunehub_registry import _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.record import ScheduleRecord, encode_record
from tunehub_registry.template_record import TemplateRecord, encode_template_record

AnyRecord = ScheduleRecord | TemplateRecord


def parse_any_record(data: bytes, source: str) -> AnyRecord:
    """Read one line (without its newline): the record of a template when it names one. Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    if isinstance(value, dict) and value.get("template") is not None:
        return _json.convert(value, TemplateRecord, source)
    return _json.convert(value, ScheduleRecord, source)


def read_any_records(stream: BinaryIO, source: str) -> Iterator[AnyRecord | LadderRecord | BadLine]:
    """Read a file of records of any kind lazily; a line that is no record becomes a BadLine and the rest goes on."""
    return read_lines(stream, source, _parse_all)


def _parse_all(data: bytes, source: str) -> AnyRecord | LadderRecord:
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    is_ladder = isinstance(value, dict) and value.get("ladder") is not None
    return _json.convert(value, LadderRecord, source) if is_ladder else parse_any_record(data, source)


def encode_any_record(record: AnyRecord) -> bytes:
    """The record as a line of its file."""
    return encode_record(record) if isinstance(record, ScheduleRecord) else encode_template_record(record)
