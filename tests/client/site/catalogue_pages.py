"""A catalogue written by the command, its files, and what holds for each page."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tunehub.cli.group import cli

from ..conftest import key

HOSTILE = '</script><img src=x onerror="alert(1)">$\\frac{a}{b}$\u202e'


MOST_BYTES = 500_000


class _Links(HTMLParser):
    """The addresses in a page, and the elements that could run or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [str(value) for name, value in attrs if name in ("href", "src") and value]
        assert not [name for name, _ in attrs if name.startswith("on")]


def evidence(network: str = "resnet50", reason: str | None = None) -> str:
    """Lines of evidence: an admitted record, a refused one, and a network."""
    record = {
        "type": "record", "exact": key(1), "default_s": 0.02, "tuned_s": 0.002, "speedup": 10.0, "repeats": 9,
        "spread": 0.01, "output_max_rel_diff": 1e-6, "threads": 2, "admitted": True,
    }  # fmt: skip
    refused = {**record, "exact": key(2), "admitted": False, "reason": reason or "slower", "tuned_s": 0.03}
    times = {
        "type": "network", "network": network, "default_s": 0.4, "tuned_s": 0.01, "onnxruntime_s": 0.012, "repeats": 7,
        "threads": 2, "output_max_rel_diff": 1e-6, "over_rules": 1.375,
    }  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in (record, refused, times))


def run(folder: Path, *places: object, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["catalogue", *map(str, places), "-o", str(folder), "--json"])
    assert done.exit_code == code, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_pages(folder: Path) -> None:
    """Every link of every page leads to a file of the site, and no page is heavy."""
    there = {str(path) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    for path in folder.rglob("*.html"):
        assert path.stat().st_size <= MOST_BYTES, path
        links = _Links()
        links.feed(path.read_text(encoding="utf-8"))
        for link in links.found:
            place = os.path.normpath(path.parent / link.partition("#")[0])
            assert link.startswith("#") or place in there, (path, link)
        assert not links.tags & {"img", "iframe", "object", "embed", "form"}, path
