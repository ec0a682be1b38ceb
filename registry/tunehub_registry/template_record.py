"""Knobs of a template for one workload: a line of `records/template.jsonl`.

A template is a schedule with named knobs that comes with the client; a record holds the template's name and version,
and the knobs that were fastest. Reading a record says nothing about its knobs: the template checks them against its
own bounds (`tunehub.kernels.cpu.read_knobs`) before it uses them. Nothing in a record is code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, BinaryIO

from msgspec import Meta

from tunehub_registry import _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines
from tunehub_registry._measured import MeasuredRecord

__all__ = [
    "MAX_LINE_BYTES",
    "BadLine",
    "KnobName",
    "KnobValue",
    "TemplateRecord",
    "encode_template_record",
    "parse_template_record",
    "read_template_records",
]

KnobName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
_Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]
_Numbers = Annotated[tuple[_Number, ...], Meta(max_length=16)]
_Word = Annotated[str, Meta(max_length=64)]
KnobValue = bool | _Number | _Word | _Numbers


class TemplateRecord(MeasuredRecord, frozen=True, kw_only=True, omit_defaults=True):
    """A record of `template`: the `version` of the template called `template`, and its `knobs` by name.

    Knobs are flat: at most 32 of them, each a whole number, a word, true or false, or up to 16 whole numbers.
    """

    template: KnobName
    version: Annotated[int, Meta(ge=1, le=2**31)]
    knobs: Annotated[dict[KnobName, KnobValue], Meta(max_length=32)]


def parse_template_record(data: bytes, source: str) -> TemplateRecord:
    """Read one line (without its newline). Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    return _json.convert(value, TemplateRecord, source)


def encode_template_record(record: TemplateRecord) -> bytes:
    """Write one line, newline included. Raises FormatError if the line could not be read again."""
    data = _json.encode(record)
    parse_template_record(data[:-1], f"record {record.exact}")
    return data


def read_template_records(stream: BinaryIO, source: str) -> Iterator[TemplateRecord | BadLine]:
    """Read a file of records lazily; a line that is not a record becomes a BadLine and the rest goes on."""
    return read_lines(stream, source, parse_template_record)
