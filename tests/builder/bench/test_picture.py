from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tunehub_builder.bench.models import RuntimeRow
from tunehub_builder.bench.picture import check_picture, draw
from tunehub_builder.exceptions import BenchError

pytestmark = pytest.mark.fast

ROWS = [
    RuntimeRow(name="tunehub", version="1", median_s=0.001, p95_s=0.0012, runs=9),
    RuntimeRow(name="default", version="1", median_s=0.2, p95_s=0.2, runs=1),
    RuntimeRow(name="wrong", version=None, median_s=0.003, p95_s=0.004, runs=9, error="its outputs differ"),
    RuntimeRow(name="dead", version=None, error="it crashed"),
]


def drawn(path: Path, rows: list[RuntimeRow] = ROWS) -> bytes:
    pytest.importorskip("matplotlib")
    draw(rows, path, title="model.onnx, 2 threads each")
    return path.read_bytes()


def test_bars_have_names_and_times_as_text(tmp_path: Path) -> None:
    root = ElementTree.fromstring(drawn(tmp_path / "bench.svg"))
    words = {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"tunehub", "default", "wrong (differs)", "1 ms", "200 ms", "model.onnx, 2 threads each"} <= words
    assert not any("dead" in word for word in words)


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
    with pytest.raises(BenchError, match=r"matplotlib is not installed: pip install 'tunehub\[bench\]'"):
        check_picture(Path("bench.svg"))
