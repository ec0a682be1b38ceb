"""The file of misses: written once a workload, read with the place of what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunehub.exceptions import MissesFileError, UsageError
from tunehub.report import misses
from tunehub.report.misses import Miss, read_misses
from tunehub.report.model import WorkloadReport
from tunehub.report.report import Report

from ..conftest import key

pytestmark = pytest.mark.fast

REPORT = Report(
    target="llvm-znver5",
    package=None,
    workloads=(
        WorkloadReport(name="conv", op="conv2d", rung="exact", exact=key(1)),
        WorkloadReport(name="softmax", op="softmax", rung="default", exact=key(4), count=2),
        WorkloadReport(name="without a key", op="x", rung="default"),
    ),
)


def test_misses_are_written_once_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "misses.jsonl"
    assert REPORT.save_misses(file) == 1
    with file.open("a") as stream:
        stream.write('{"exact": "torn')
    assert REPORT.save_misses(file) == 0
    more = replace(REPORT, workloads=(WorkloadReport(name="new", op="x", rung="template", exact=key(5)),))
    assert more.save_misses(file) == 1
    first, torn, last = file.read_text().splitlines()
    assert json.loads(first) == {
        "target": "llvm-znver5", "name": "softmax", "op": "softmax", "rung": "default", "exact": key(4),
        "anchor": None, "count": 2, "seconds": None, "tvm": None, "symbols": [],
        "function": None,
    }  # fmt: skip
    assert torn == '{"exact": "torn'
    assert json.loads(last)["exact"] == key(5)


def test_names_of_open_dimensions_are_written(tmp_path: Path) -> None:
    opened = replace(REPORT, workloads=(replace(REPORT.workloads[1], symbols=("batch", "sequence")),))
    opened.save_misses(tmp_path / "misses.jsonl")
    assert [miss.symbols for miss in read_misses(tmp_path / "misses.jsonl")] == [("batch", "sequence")]


def test_measured_time_is_written(tmp_path: Path) -> None:
    measured = replace(REPORT, workloads=(replace(REPORT.workloads[1], measured_s=0.5),))
    measured.save_misses(tmp_path / "misses.jsonl")
    assert [miss.seconds for miss in read_misses(tmp_path / "misses.jsonl")] == [1.0]


def test_reading_takes_each_key_once_and_leaves_a_torn_end(tmp_path: Path) -> None:
    file = tmp_path / "misses.jsonl"
    lines = [msgspec.json.encode(Miss(target="t", name=n, op=n, rung="default", exact=key(k))) for n, k in NAMED]
    file.write_bytes(b"\n".join([*lines, b"", b'{"target": "t"']))
    assert [miss.name for miss in read_misses(file)] == ["a", "b"]


NAMED = (("a", 1), ("b", 2), ("again", 1))


@pytest.mark.parametrize("line", [b"{}", b"[]", b"{torn", b'{"target": 1}', b"\xff\xfe"])
def test_a_line_that_is_no_miss_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "misses.jsonl"
    REPORT.save_misses(file)
    file.write_bytes(file.read_bytes() + line + b"\n")
    with pytest.raises(MissesFileError, match=r"--from-misses, line 2: .*misses.jsonl.*not a miss"):
        list(read_misses(file))


def test_a_missing_file_and_a_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="No such file"):
        list(read_misses(tmp_path / "none.jsonl"))
    monkeypatch.setattr(misses, "MAX_LINE_BYTES", 20)
    (tmp_path / "long.jsonl").write_bytes(b"x" * 21)
    with pytest.raises(MissesFileError, match="line 1 has more than 20 bytes"):
        list(read_misses(tmp_path / "long.jsonl"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "misses.jsonl"
    file.write_bytes(content)
    try:
        found = list(read_misses(file))
    except MissesFileError:
        return
    assert all(isinstance(miss, Miss) for miss in found)
