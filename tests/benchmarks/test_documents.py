"""Documents of the results that are kept: they say what those say."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import documents
from click.testing import CliRunner

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documents_are_those_of_the_latest_results(tmp_path: Path) -> None:
    CliRunner().invoke(documents.main, ["--into", str(tmp_path)], catch_exceptions=False)
    for name in ("zoo.md", "dynamic.md"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (DOCS / name).read_text(encoding="utf-8")
