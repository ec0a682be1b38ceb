"""docs/tutorial.md, from its first line to its last, in an empty folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")
pytest.importorskip("tvm")

from tunehub.cli import main

# `nox -s release` runs it, too, and all of its commands are in the documents of every run.
pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```|^    (tunehub [^\n]*)$", re.MULTILINE | re.DOTALL)
MINUTES = ("tune", "check", "distill")  # what the document says is not part of the test


def blocks() -> Iterator[tuple[str, str]]:
    """What the document has, in order: `python`, `text`, and `call` for a command."""
    for language, block, call in _BLOCK.findall(DOCUMENT):
        yield (language, block) if language else ("call", call)


def test_all_of_the_tutorial_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    for name in ("TUNEHUB_REGISTRY", "TUNEHUB_REQUIRE", "TUNEHUB_RECORDS", "TUNEHUB_STRICT", "TUNEHUB_LOCK"):
        monkeypatch.delenv(name, raising=False)
    names: dict[str, Any] = {}
    shown, called = "", []
    for kind, block in blocks():
        if kind == "python":
            exec(compile(block, "docs/tutorial.md", "exec"), names)
        elif kind == "text":
            assert not [line for line in block.splitlines() if line not in shown], shown
        else:
            first, *words = shlex.split(block)
            if words[0] in MINUTES:
                continue
            with pytest.raises(SystemExit) as stop:
                main(words)
            output = capsys.readouterr()
            shown = output.out
            assert (first, stop.value.code or 0) == ("tunehub", 0), output
            called.append(words[0])
    assert called == ["explain", "compile", "run", "run", "bench", "lock", "sync"]
    for name in ("model.so", "report.json", "y.npz", "bench.svg", "tunehub.lock"):
        assert (tmp_path / name).is_file()
