from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FieldError, FormatError
from tunehub_registry.record import MAX_LINE_BYTES, BadLine, ScheduleRecord, encode_record, parse_record, read_records

pytestmark = pytest.mark.fast


def test_round_trip_is_canonical(record: ScheduleRecord) -> None:
    line = encode_record(record)
    assert line.count(b"\n") == 1
    assert parse_record(line[:-1], "r:1") == record
    assert encode_record(parse_record(line[:-1], "r:1")) == line
    assert record.mean_s == pytest.approx(1.55e-3)


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("exact", "xyz", "$.exact"),
        ("exact", "A" * 32, "$.exact"),
        ("anchor", "0" * 31, "$.anchor"),
        ("run_s", [], "$.run_s"),
        ("run_s", [-1.0], "$.run_s[0]"),
        ("run_s", [0], "$.run_s[0]"),
        ("run_s", ["1"], "$.run_s[0]"),
        ("default_s", 0.0, "$.default_s"),
        ("trace", [[]], "$.trace"),
        ("trace", {}, "$.trace"),
        ("networks", "resnet", "$.networks"),
        ("op_class", "", "$.op_class"),
        ("extents", [0], "$.extents[0]"),
        ("extents", [2**32], "$.extents[0]"),
        ("extents", [1] * 513, "$.extents"),
        ("anchor_class", "matmul", "$.anchor_class"),
    ],
)
def test_errors_carry_the_path(record: ScheduleRecord, field: str, value: Any, where: str) -> None:
    document = {**json.loads(encode_record(record)), field: value}
    with pytest.raises(FormatError) as caught:
        parse_record(json.dumps(document).encode(), "r.jsonl:7")
    assert (caught.value.path, caught.value.source) == (where, "r.jsonl:7")


def test_a_record_from_before_there_were_classes_is_one_still(record: ScheduleRecord) -> None:
    document = json.loads(encode_record(record))
    del document["op_class"], document["extents"]
    old = parse_record(json.dumps(document).encode(), "r.jsonl:1")
    assert (old.op_class, old.extents, old.exact) == (None, (), record.exact)
    named = parse_record(json.dumps({**document, "op_class": "matmul"}).encode(), "r.jsonl:1")
    assert named.op_class == "matmul"


def test_infinite_times_are_refused_at_once(record: ScheduleRecord) -> None:
    with pytest.raises(FieldError, match="not finite"):
        msgspec.structs.replace(record, run_s=(float("inf"),))


def test_one_bad_line_never_loses_the_file(record: ScheduleRecord) -> None:
    good = encode_record(record)
    twice = good.replace(b'{"anchor"', b'{"op": "x", "anchor"', 1)
    long_line = b'"' + b"x" * (3 * MAX_LINE_BYTES) + b'"\n'
    nan = good.replace(b"0.0015,", b"NaN,")
    lines = [good, b"\n", twice, long_line, nan, b"\xff\xfe\n", good.replace(b"\n", b"\r\n"), good[:-1]]
    result = list(read_records(io.BytesIO(b"".join(lines)), "r.jsonl"))
    assert [type(entry) is ScheduleRecord for entry in result] == [True, *[False] * 5, True, True]
    bad = {entry.line: entry.reason for entry in result if isinstance(entry, BadLine)}
    assert sorted(bad) == [2, 3, 4, 5, 6]
    assert "'op' occurs twice" in bad[3]
    assert "longer than" in bad[4]
    assert "NaN" in bad[5]
    assert "UTF-8" in bad[6]


def test_a_torn_last_line_is_reported(record: ScheduleRecord) -> None:
    good = encode_record(record)
    first, second = read_records(io.BytesIO(good + good[:100]), "r.jsonl")
    assert first == record
    assert isinstance(second, BadLine)
    assert second.line == 2


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_give_bad_lines_only(lines: list[bytes]) -> None:
    assert all(isinstance(entry, BadLine) for entry in read_records(io.BytesIO(b"\n".join(lines)), "r.jsonl"))


TIMES = st.floats(min_value=1e-12, max_value=1e9)
RECORDS = st.builds(
    ScheduleRecord,
    exact=st.text("0123456789abcdef", min_size=32, max_size=32),
    anchor=st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    op_class=st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    extents=st.lists(st.integers(1, 2**31), max_size=30).map(tuple),
    anchor_class=st.none() | st.text("0123456789abcdef", min_size=32, max_size=32),
    anchor_extents=st.lists(st.integers(1, 2**31), max_size=30).map(tuple),
    op=st.text(st.characters(codec="utf-8"), max_size=20),
    trace=st.tuples(st.just([["GetSBlock", [], ["C", "main"], ["b0"]]]), st.just([])),
    run_s=st.lists(TIMES, min_size=1, max_size=3).map(tuple),
    default_s=st.none() | TIMES,
    source=st.just("meta_schedule"),
)


@given(RECORDS)
def test_every_valid_record_round_trips(record: ScheduleRecord) -> None:
    assert list(read_records(io.BytesIO(encode_record(record)), "r.jsonl")) == [record]
