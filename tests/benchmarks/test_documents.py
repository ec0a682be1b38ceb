"""Documents and the results that are kept: they say what those say, and name each file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import documents
from click.testing import CliRunner

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = Path(documents.__file__).parent / "results"
FILE_NAME = re.compile(r"\b[a-z0-9-]+\.(?:jsonl\.xz|tar\.xz|jsonl|json)\b")


@pytest.mark.slow
def test_the_documents_are_those_of_the_latest_results(tmp_path: Path) -> None:
    CliRunner().invoke(documents.main, ["--into", str(tmp_path)], catch_exceptions=False)
    for name in ("zoo.md", "dynamic.md"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.fast
def test_every_file_of_results_is_named_once_among_them() -> None:
    section = (DOCS / "benchmarks.md").read_text(encoding="utf-8").partition("\n## Files of results\n")[2]
    named = re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)
    assert named == sorted(path.name for path in RESULTS.iterdir())


@pytest.mark.fast
@pytest.mark.parametrize("document", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS)))
def test_files_of_results_that_documents_name_exist(document: Path) -> None:
    named = re.findall(r"benchmarks/results/([\w.-]*\w)", document.read_text(encoding="utf-8"))
    assert not {name for name in named if FILE_NAME.fullmatch(name)} - {path.name for path in RESULTS.iterdir()}
