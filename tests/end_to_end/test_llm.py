"""docs/llm.md, from its first line to its last, in an empty folder; blocks marked `py` need more than tunehub. In
the sweep: two language models are compiled, which tests/client/models do in parts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("matplotlib")
pytest.importorskip("onnx")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from tunehub.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.sweep, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]

DOCUMENT = (Path(__file__).parents[2] / "docs" / "llm.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```|^    (tunehub [^\n]*)$", re.MULTILINE | re.DOTALL)


def test_all_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    called = []
    for language, block, call in _BLOCK.findall(DOCUMENT):
        if language == "python":
            exec(compile(block, "docs/llm.md", "exec"), names)
        elif language == "text":
            assert block in capsys.readouterr().out
        elif call:
            with pytest.raises(SystemExit) as stop:
                main(shlex.split(call)[1:])
            output = capsys.readouterr()
            assert not stop.value.code, output
            called.append(shlex.split(call)[1])
    assert called == ["compile", "compile", "generate", "generate", "generate", "bench"]
    assert (tmp_path / "llm.svg").is_file()
