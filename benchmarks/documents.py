"""Write ``docs/zoo.md`` and ``docs/dynamic.md`` anew from ``benchmarks/results/*-latest.json``; nothing is measured."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.dynamic import document as dynamic_document
from benchmarks.zoo import document as zoo_document


@click.command()
@click.option("--into", default=zoo_document.DOCUMENT.parent, type=click.Path(path_type=Path), help="[default: docs]")
def main(into: Path) -> None:
    """Write both."""
    zoo_document.write_document(path=into / "zoo.md")
    dynamic_document.write_document(path=into / "dynamic.md")
