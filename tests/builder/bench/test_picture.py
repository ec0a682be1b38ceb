from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tunehub_builder.bench.models import RuntimeRow
from tunehub_builder.bench.picture import check_picture, draw
from tunehub_builder.exceptions import BenchError

pytestmark = pytest.mark.slow  # where it first draws, matplotlib looks through the fonts of the system

ROWS = [
    RuntimeRow(name="tunehub", version="1", median_s=0.001, p95_s=0.0012, runs=9),
    RuntimeRow(name="default", version="1", median_s=0.2, p95_s=0.2, runs=1),
    RuntimeRow(name="wrong", version=None, median_s=0.003, p95_s=0.004, runs=9, error="its outputs differ"),
    RuntimeRow(name="dead", version=None, error="it crashed"),
]


def drawn(path: Path, rows: list[RuntimeRow] = ROWS) -> bytes:
    pytest.importorskip("matplotlib")
    draw(rows, path, title="model.onnx", said="x [1, 8]; llvm-acme, 2 threads; 2026-11-28")
    return path.read_bytes()


def test_bars_have_names_and_times_as_text(tmp_path: Path) -> None:
    root = ElementTree.fromstring(drawn(tmp_path / "bench.svg"))
    words = {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}
    text = " ".join(words)
    assert {"tunehub TVM 1", "default TVM 1", "wrong (differs)", "1 ms", "200 ms", "3 ms"} <= words
    assert "model.onnx" in text and "x [1, 8]; llvm-acme, 2 threads; 2026-11-28" in text
    assert not any("dead" in word for word in words)


def test_bars_begin_at_nothing_and_times_far_apart_are_dots(tmp_path: Path) -> None:
    """A bar's length would say nothing on a logarithmic axis."""
    assert b"on a logarithmic axis" in drawn(tmp_path / "far.svg")
    near = drawn(tmp_path / "near.svg", [ROWS[0], replace(ROWS[2], error=None, batch=8, per_s=100.0)])
    assert b"ms of a run, from 0" in near
    assert b"wrong batch 8" in near and b"3 ms, 100 a second" in near


def test_the_same_times_are_the_same_bytes(tmp_path: Path) -> None:
    assert drawn(tmp_path / "a.svg") == drawn(tmp_path / "b.svg")


@pytest.mark.parametrize(("name", "begins"), [("b.png", b"\x89PNG"), ("b.pdf", b"%PDF")])
def test_other_endings_are_other_forms(name: str, begins: bytes, tmp_path: Path) -> None:
    assert drawn(tmp_path / name).startswith(begins)


def test_a_picture_without_any_time_is_a_picture(tmp_path: Path) -> None:
    assert b"<svg" in drawn(tmp_path / "b.svg", ROWS[-1:])


def test_what_cannot_be_drawn_is_said_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match=r"ends in \.svg, \.png, \.pdf"):
        check_picture(Path("bench.jpg"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BenchError, match=r"matplotlib is not installed: pip install .*\[bench\]'"):
        check_picture(Path("bench.svg"))
