from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FormatError
from tunehub_registry.template_record import (
    MAX_LINE_BYTES,
    BadLine,
    TemplateRecord,
    encode_template_record,
    parse_template_record,
    read_template_records,
)

pytestmark = pytest.mark.fast

RECORD = TemplateRecord(
    exact="0" * 32,
    anchor="1" * 32,
    op="fused_conv2d",
    template="conv2d",
    version=1,
    knobs={"columns": 7, "blocks": 2, "order": "rows", "unroll": True, "tile": (4, 16)},
    run_s=(1e-3, 3e-3),
    default_s=0.5,
    networks=("resnet50",),
    source="template",
)


def test_round_trip_is_canonical() -> None:
    line = encode_template_record(RECORD)
    assert line.count(b"\n") == 1
    assert parse_template_record(line[:-1], "r:1") == RECORD
    assert encode_template_record(parse_template_record(line[:-1], "r:1")) == line
    assert RECORD.mean_s == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("exact", "xyz", "$.exact"),
        ("anchor", "0" * 31, "$.anchor"),
        ("run_s", [], "$.run_s"),
        ("run_s", [0], "$.run_s[0]"),
        ("default_s", 0.0, "$.default_s"),
        ("template", "../conv2d", "$.template"),
        ("template", "os.path", "$.template"),
        ("template", "conv2d\n", "$.template"),
        ("version", 0, "$.version"),
        ("version", "1", "$.version"),
        ("version", True, "$.version"),
        ("version", 1.5, "$.version"),
        ("knobs", [], "$.knobs"),
        ("knobs", {f"k{i}": 1 for i in range(33)}, "$.knobs"),
        ("knobs", {"columns": 1.5}, "$.knobs[...]"),
        ("knobs", {"columns": None}, "$.knobs[...]"),
        ("knobs", {"columns": {"deep": 1}}, "$.knobs[...]"),
        ("knobs", {"columns": [[1]]}, "$.knobs[...][0]"),
        ("knobs", {"columns": [True]}, "$.knobs[...][0]"),
        ("knobs", {"columns": [1] * 17}, "$.knobs[...]"),
        ("knobs", {"columns": 2**60}, "$.knobs[...]"),
        ("knobs", {"columns": "x" * 65}, "$.knobs[...]"),
    ],
)
def test_errors_carry_the_path(field: str, value: Any, where: str) -> None:
    document = {**json.loads(encode_template_record(RECORD)), field: value}
    with pytest.raises(FormatError) as caught:
        parse_template_record(json.dumps(document).encode(), "r.jsonl:7")
    assert (caught.value.path, caught.value.source) == (where, "r.jsonl:7")


def test_names_of_knobs_are_words() -> None:
    document = {**json.loads(encode_template_record(RECORD)), "knobs": {"__class__": 1}}
    with pytest.raises(FormatError, match="knobs"):
        parse_template_record(json.dumps(document).encode(), "r.jsonl:7")


@pytest.mark.parametrize("field", ["exact", "op", "template", "version", "knobs", "run_s", "source"])
def test_no_field_may_be_missing(field: str) -> None:
    document = {name: value for name, value in json.loads(encode_template_record(RECORD)).items() if name != field}
    with pytest.raises(FormatError, match=field):
        parse_template_record(json.dumps(document).encode(), "r.jsonl:1")


def test_one_bad_line_never_loses_the_file() -> None:
    good = encode_template_record(RECORD)
    twice = good.replace(b'"columns":7', b'"columns":7,"columns":8')
    long_line = b'"' + b"x" * (3 * MAX_LINE_BYTES) + b'"\n'
    lines = [good, b"\n", twice, long_line, good.replace(b"0.5", b"NaN"), good[:-1]]
    result = list(read_template_records(io.BytesIO(b"".join(lines)), "r.jsonl"))
    assert [type(entry) is TemplateRecord for entry in result] == [True, *[False] * 4, True]
    bad = {entry.line: entry.reason for entry in result if isinstance(entry, BadLine)}
    assert "'columns' occurs twice" in bad[3]
    assert "longer than" in bad[4]
    assert "NaN" in bad[5]


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_give_bad_lines_only(lines: list[bytes]) -> None:
    assert all(isinstance(e, BadLine) for e in read_template_records(io.BytesIO(b"\n".join(lines)), "r.jsonl"))


NUMBERS = st.integers(-(2**53), 2**53)
WORDS = st.text(st.characters(codec="utf-8"), max_size=64)
KNOBS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True),
    st.booleans() | NUMBERS | WORDS | st.lists(NUMBERS, max_size=16).map(tuple),
    max_size=32,
)
TIMES = st.floats(min_value=1e-12, max_value=1e9)
RECORDS = st.builds(
    TemplateRecord,
    exact=st.text("0123456789abcdef", min_size=32, max_size=32),
    anchor=st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    op=WORDS,
    template=st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True),
    version=st.integers(1, 2**31),
    knobs=KNOBS,
    run_s=st.lists(TIMES, min_size=1, max_size=3).map(tuple),
    default_s=st.none() | TIMES,
    source=st.just("template"),
)


@given(RECORDS)
def test_every_valid_record_round_trips(record: TemplateRecord) -> None:
    assert list(read_template_records(io.BytesIO(encode_template_record(record)), "r.jsonl")) == [record]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["columns", "row", "a b", "Ä"]), JSON, max_size=4))
def test_any_knobs_are_read_or_refused(knobs: dict[str, Any]) -> None:
    document = {**json.loads(encode_template_record(RECORD)), "knobs": knobs}
    try:
        record = parse_template_record(json.dumps(document).encode(), "r.jsonl")
    except FormatError:
        return
    assert all(isinstance(value, bool | int | str | tuple) for value in record.knobs.values())
