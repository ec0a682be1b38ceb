"""Rows that compiles found stale are remembered for the doctor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tunehub.cli.doctor import _examine_rows
from tunehub.options import read_options
from tunehub.records.stale_rows import FILE, StaleRow, known_stale, remember_stale

pytestmark = pytest.mark.fast


def row(number: int, package: str = "llvm-znver4 0.5.0") -> StaleRow:
    return StaleRow(package=package, exact=f"{number:032x}", op=f"conv2d_{number}")


def test_each_row_is_remembered_once(tmp_path: Path) -> None:
    remember_stale(tmp_path, [row(1), row(2)])
    remember_stale(tmp_path, [row(2), row(3)])
    assert known_stale(tmp_path) == (row(1), row(2), row(3))


def test_of_another_version_of_the_package_nothing_stays(tmp_path: Path) -> None:
    remember_stale(tmp_path, [row(1), row(2, "cuda-h200 0.17.0")])
    remember_stale(tmp_path, [row(1, "llvm-znver4 0.6.0")])
    assert known_stale(tmp_path) == (row(2, "cuda-h200 0.17.0"), row(1, "llvm-znver4 0.6.0"))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"[" * 100_000])
def test_a_damaged_file_is_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert known_stale(tmp_path) == ()
    remember_stale(tmp_path, [row(1)])
    assert known_stale(tmp_path) == (row(1),)


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    remember_stale(tmp_path / "file", [row(1)])
    assert known_stale(tmp_path / "file") == ()


def test_the_doctor_lists_them(tmp_path: Path) -> None:
    options = replace(read_options(), cache=tmp_path)
    assert _examine_rows(options) == []
    remember_stale(tmp_path, map(row, range(12)))
    (finding,) = _examine_rows(options)
    assert (finding.name, finding.state) == ("stale rows", "warning")
    assert finding.text.startswith("llvm-znver4 0.5.0: 12 rows were judged beside other rules: conv2d_0 (00000000), ")
    assert finding.text.endswith(" and 2 more")
