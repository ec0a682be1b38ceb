from __future__ import annotations

import io
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.records.index import (
    MAX_CANDIDATES,
    MAX_MEMBERS,
    IndexDamagedError,
    RecordIndex,
    SetInfo,
    is_key,
    open_index,
)
from tunehub.records.index_building import RecordStream, index_in_memory, write_index
from tunehub.registries.key_scheme import KEY_SCHEME
from tunehub_registry.record import ScheduleRecord, parse_record
from tunehub_registry.tuning_log import parse_line

from ..conftest import key, lines, make_record

pytestmark = pytest.mark.fast

SET = SetInfo(id=0, tuner="meta_schedule", tvm=">=0.25", key_scheme=KEY_SCHEME)


def in_memory(data: bytes) -> RecordIndex:
    return index_in_memory("stamp", [RecordStream(info=SET, stream=io.BytesIO(data))])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "with space#?%.sqlite"
    data = lines(*(make_record(number) for number in range(50)))
    write_index(path, "stamp", [RecordStream(info=SET, stream=io.BytesIO(data))])
    return path


def test_lines_come_back_as_they_were(path: Path) -> None:
    index = open_index(path, "stamp")
    (line,) = index.exact(key(7), [0])
    assert line == lines(make_record(7)).rstrip(b"\n")
    assert index.exact(key(7), [1]) == []
    assert index.sets[0].good == 50
    index.check()
    index.close()


def test_best_first() -> None:
    data = lines(
        make_record(1, anchor=key(9), run_s=(0.02,), default_s=0.04),
        make_record(2, anchor=key(9), run_s=(0.5,), default_s=50.0),
        make_record(3, anchor=key(9), run_s=(0.001,), default_s=None),
        make_record(1, anchor=None, run_s=(0.01,), op="faster"),
    )
    index = in_memory(data)
    assert [parse_record(line, "test").op for line in index.exact(key(1), [0])] == ["faster", "matmul1"]
    ops = [parse_record(line, "test").op for line in index.anchor(key(9), [0])]
    assert ops == ["matmul2", "matmul1", "matmul3"]


def of_class(number: int, **changes: Any) -> ScheduleRecord:
    return make_record(number, **{"op_class": key(77), "extents": (number, 64, 3), **changes})


def test_members_of_a_class_with_what_it_takes_to_choose() -> None:
    data = lines(
        of_class(1, run_s=(0.02,), default_s=0.04),
        of_class(2, run_s=(0.5,), default_s=50.0),
        of_class(3, run_s=(0.001,), default_s=None),
        make_record(4),
    )
    index = in_memory(data)
    found = index.members(key(77), [0])
    assert [(m.extents, m.run_s) for m in found] == [((2, 64, 3), 0.5), ((1, 64, 3), 0.02), ((3, 64, 3), 0.001)]
    assert [m.default_s for m in found] == [pytest.approx(50.0), pytest.approx(0.04), None]
    assert [parse_record(index.line(m.line), "test").op for m in found] == ["matmul2", "matmul1", "matmul3"]
    assert index.members(key(77), [1]) == index.members(key(78), [0]) == index.members("nonsense", [0]) == []
    with pytest.raises(IndexDamagedError):
        index.line(99)


def test_members_by_the_class_of_the_anchor_alone() -> None:
    anchors = {"anchor_class": key(88), "anchor_extents": (64, 3)}
    index = in_memory(lines(of_class(1, **anchors, default_s=9.0), of_class(2, op_class=None, **anchors), of_class(3)))
    assert [(m.extents, m.anchored) for m in index.members(key(88), [0])] == [((64, 3), True)] * 2
    assert [(m.extents, m.anchored) for m in index.members(key(77), [0])] == [((1, 64, 3), False), ((3, 64, 3), False)]


@pytest.mark.parametrize("changes", [{"op_class": "matmul"}, {"op_class": None}, {"extents": ()}])
def test_records_without_a_class_are_records_all_the_same(changes: dict[str, Any]) -> None:
    index = in_memory(lines(of_class(1, **changes)))
    assert index.sets[0].good == 1
    assert index.members(key(77), [0]) == []
    assert len(index.exact(key(1), [0])) == 1


def test_members_are_bounded() -> None:
    index = in_memory(lines(*(of_class(1) for _ in range(MAX_MEMBERS + 9))))
    assert len(index.members(key(77), [0])) == MAX_MEMBERS


def test_candidates_are_bounded() -> None:
    index = in_memory(lines(*(make_record(number, anchor=key(9)) for number in range(3 * MAX_CANDIDATES))))
    assert len(index.anchor(key(9), [0])) == MAX_CANDIDATES


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"null", b"[]", b"\xff\xfe", b"{}", b'{"exact": 1}', b'{"exact": "zz"}', b"[" * 100_000,
        lines(make_record(1)).replace(b"[0.001,0.002]", b"[-1.0]"), lines(make_record(1)).replace(b"0.002", b"NaN"),
        lines(make_record(1))[:-40], b'{"op":"' + b"x" * (2 << 20) + b'"}',
    ],
)  # fmt: skip
def test_bad_lines_are_counted_and_left_out(line: bytes) -> None:
    index = in_memory(lines(make_record(2)) + line.rstrip(b"\n") + b"\n" + lines(make_record(3)))
    assert (index.sets[0].good, index.sets[0].bad) == (2, 1)
    assert index.exact(key(3), [0])


@given(st.binary(max_size=300))
def test_any_bytes_can_be_indexed(data: bytes) -> None:
    index = in_memory(data + b"\n" + lines(make_record(3)))
    assert len(index.exact(key(3), [0])) == 1


@given(st.text(max_size=40) | st.none() | st.integers())
def test_other_keys_are_misses(text: object) -> None:
    if not is_key(text):
        index = in_memory(lines(make_record(3)))
        assert index.exact(text, [0]) == []  # type: ignore[arg-type]
        assert index.anchor(text, [0]) == []  # type: ignore[arg-type]


def test_missing_and_other_stamp(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_index(path.with_name("none"), "stamp")
    with pytest.raises(IndexDamagedError, match="stamp"):
        open_index(path, "another stamp")


@pytest.mark.parametrize("keep", [0, 50, 99, 100, 4096, -1, -4096])
def test_truncated_file_is_damaged(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(IndexDamagedError):
        open_index(path, "stamp")


def test_garbage_is_damaged(path: Path) -> None:
    size = path.stat().st_size
    header = path.read_bytes()[:100]
    for content in (b"garbage" * 100, header + b"\xa5" * (size - 100), bytes(size)):
        path.write_bytes(content)
        with pytest.raises(IndexDamagedError):
            open_index(path, "stamp")


def test_wrong_schema_is_damaged(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE meta(stamp TEXT)")
    connection.execute("INSERT INTO meta VALUES ('stamp')")
    connection.commit()
    connection.close()
    with pytest.raises(IndexDamagedError):
        open_index(path, "stamp")


def test_damage_in_the_middle_shows_when_it_is_read(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in range(3 * 4096, len(data), 4096):
        data[start : start + 4096] = b"\x5a" * len(data[start : start + 4096])
    path.write_bytes(data)
    index = open_index(path, "stamp")
    with pytest.raises(IndexDamagedError):
        for number in range(50):
            index.exact(key(number), [0])
    with pytest.raises(IndexDamagedError):
        index.check()
    index.close()


def test_opening_does_not_read_the_records(tmp_path: Path) -> None:
    path = tmp_path / "index"
    record = json.loads(lines(make_record(1)))

    def stream() -> io.BytesIO:
        rows = (
            {**record, "exact": key(number), "anchor": key(number % 100), "trace": [[], []]} for number in range(20_000)
        )
        return io.BytesIO(b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    write_index(path, "stamp", [RecordStream(info=SET, stream=stream())])
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        index = open_index(path, "stamp")
        times.append(time.perf_counter() - begin)
        assert index.exact(key(12_345), [0])
        index.close()
    assert min(times) < 0.005


def autotvm_line(channels: int, cost: float, task: str = "dense_pack.x86", target: str = "llvm") -> bytes:
    arguments = [["TENSOR", [1, channels], "float32"], ["TENSOR", [1000, channels], "float32"], None, "float32"]
    config = {"index": 0, "code_hash": None, "entity": [["tile_x", "sp", [-1, 8]]]}
    value = {"input": [target, task, arguments, {}], "config": config, "result": [[cost], 0, 0.1, 1.0], "version": 0.2}
    return json.dumps({**value, "tvm_version": "0.19.0"}).encode() + b"\n"


def test_members_of_a_class_of_a_tuning_log() -> None:
    """Fastest first; TVM's lines do not say how long the default takes."""
    data = autotvm_line(512, 2e-3) + autotvm_line(64, 1e-3) + autotvm_line(64, 1e-4, "dense_nopack.x86")
    info = SetInfo(id=3, tuner="autotvm", tvm="<0.20", key_scheme="autotvm-1")
    index = index_in_memory("stamp", [RecordStream(info=info, stream=io.BytesIO(data))])
    known = parse_line(autotvm_line(7, 1.0)).operator_class
    assert known is not None
    found = index.members(known.key, [3])
    assert [(m.extents, m.run_s, m.default_s) for m in found] == [
        ((1, 64, 1000, 64), 1e-3, None),
        ((1, 512, 1000, 512), 2e-3, None),
    ]
    assert [line.line + b"\n" for m in found for line in index.logged_member(m)] == [
        autotvm_line(64, 1e-3),
        autotvm_line(512, 2e-3),
    ]
    assert index.members(known.key, [0]) == []


def test_lines_of_an_operator_whatever_its_implementation() -> None:
    data = autotvm_line(64, 1e-3) + autotvm_line(64, 1e-4, "dense_nopack.x86") + autotvm_line(512, 1e-5)
    info = SetInfo(id=0, tuner="autotvm", tvm="<0.20", key_scheme="autotvm-1")
    index = index_in_memory("stamp", [RecordStream(info=info, stream=io.BytesIO(data))])
    operator = parse_line(autotvm_line(64, 1.0)).operator
    assert [line.task for line in index.of_operator(operator, [0])] == ["dense_nopack.x86", "dense_pack.x86"]
    assert index.of_operator(operator, [1]) == index.of_operator("nonsense", [0]) == []


def test_an_index_that_nobody_closes_closes_its_file(path: Path) -> None:
    index = open_index(path, "stamp")
    connection = index._connection
    del index
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
